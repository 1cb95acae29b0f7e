"""Knobs from the environment: `MJOLNIR_ATTN_CTAS` and its like, one variable a knob, derived from `KNOBS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mjolnir.kernel.knobs import KNOBS, Knob, Setting, parse_assignment

PREFIX = "MJOLNIR_ATTN_"

OLDER_PREFIX = "THOR_T5_"
"""The older spelling, read where the new one is absent."""


def variable(knob: Knob) -> str:
    """The environment variable that overrides `knob`."""
    return PREFIX + knob.variable


@dataclass(frozen=True, slots=True)
class Overrides:
    """The knobs that the environment sets.

    Attributes:
        values: value by knob name.
        variables: the variable that it came from, by knob name.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Overrides:
        """Read the variables of every knob.

        Raises:
            ValueError: a value that does not parse or is out of the knob's domain; the message names the variable, the
                value and what is allowed.
        """
        values, variables = {}, {}
        for knob in KNOBS:
            for name in (variable(knob), OLDER_PREFIX + knob.variable):
                # Empty is unset, as shells have it.
                if text := environ.get(name):
                    values[knob.name], variables[knob.name] = _parse(knob, name, text), name
                    break
        return cls(values, variables)

    def apply(self, setting: Setting) -> Setting:
        """`setting` with the knobs of the environment put over it.

        A ring depth belongs to the number of CTAs it was chosen for: where only the latter is set, the depth becomes 0.
        """
        values = dict(self.values)
        if "ctas_per_sm" in values:
            values.setdefault("kv_stages", 0)
        return replace(setting, **values)

    def __str__(self) -> str:
        return ", ".join(f"{self.variables[name]}={value}" for name, value in self.values.items())


def _parse(knob: Knob, name: str, text: str) -> int:
    try:
        return parse_assignment(f"{knob.name}={text}")[1]
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not allowed: {knob.domain()}") from None
