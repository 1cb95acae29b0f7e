"""Knobs from the environment: `MJOLNIR_ATTN_CTAS` and its like, one variable a knob, derived from `KNOBS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mjolnir.kernel.knobs import KNOBS, Knob, Setting, knob, parse_assignment

PREFIX = "MJOLNIR_ATTN_"

OLDER_PREFIX = "THOR_T5_"
"""The older spelling, read where the new one is absent."""


def variable(knob: Knob) -> str:
    """The environment variable that overrides `knob`."""
    return PREFIX + knob.variable


BELONGS_TO = {"consumer_warps": ("ctas_per_sm",), "kv_stages": ("ctas_per_sm", "consumer_warps")}
"""Knobs whose value was chosen for that of others."""


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
        for item in KNOBS:
            for name in (variable(item), OLDER_PREFIX + item.variable):
                # Empty is unset, as shells have it.
                if text := environ.get(name):
                    values[item.name], variables[item.name] = _parse(item, name, text), name
                    break
        return cls(values, variables)

    def apply(self, setting: Setting) -> Setting:
        """`setting` with the knobs of the environment put over it.

        Computing warps belong to the number of CTAs that they were chosen for, and a ring depth to both: where only
        what they belong to is set, they become what they are by default.
        """
        return replace(setting, **{name: knob(name).default for name in self._displaced()}, **self.values)

    def source(self, name: str) -> str | None:
        """The variable that a knob's value comes from, its own or that of a knob which it belongs to; or None."""
        return self.variables.get(name) or self._displaced().get(name)

    def _displaced(self) -> dict[str, str]:
        """Knobs that are not set and belong to one that is, and its variable."""
        return {
            name: self.variables[owner]
            for name, owners in BELONGS_TO.items()
            for owner in reversed(owners)
            if name not in self.values and owner in self.values
        }

    def __str__(self) -> str:
        return ", ".join(f"{self.variables[name]}={value}" for name, value in self.values.items())


def _parse(knob: Knob, name: str, text: str) -> int:
    try:
        return parse_assignment(f"{knob.name}={text}")[1]
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not allowed: {knob.domain()}") from None
