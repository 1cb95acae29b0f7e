"""The knobs: what may change the kernel's speed and never what it computes.

Each knob is declared once, as a field of `Setting`. The search space, the environment variables, the
validation of the defaults table, the CLI flags and the documentation table are derived from `KNOBS`.
A switch is an integer knob with the values 0 (off) and 1 (on).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

FAULTS = ("none", "mask", "skip", "silent")
"""Canary variants of the kernel: right, mask off by one, a tile skipped, the output not written."""


@dataclass(frozen=True, slots=True)
class Knob:
    """What is known of one knob.

    Attributes:
        name: the field of `Setting`, the key in tables and records.
        values: the domain, ascending.
        default: the built-in default.
        search: the values that a search proposes (a subset of `values`).
        baked: True when the value is compiled into the binary, False when it only changes the plan.
        costs: the resource it takes, in words ("shared memory", "registers", "").
        variable: the suffix of the serving backend's environment variable `MJOLNIR_ATTN_<variable>`.
        help: one line, in the field's words.
    """

    name: str
    values: tuple[int, ...]
    default: int
    search: tuple[int, ...]
    baked: bool
    costs: str
    variable: str
    help: str

    @property
    def is_switch(self) -> bool:
        """True for an off/on knob."""
        return self.values == (0, 1)

    def check(self, value: object) -> int:
        """Return `value` as an int of the domain.

        Raises:
            ValueError: the value is no whole number, or outside the domain; the message names both.
        """
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, int) or value not in self.values:
            raise ValueError(f"{self.name} = {value!r} is not allowed: {self.domain()}")
        return value

    def domain(self) -> str:
        """The domain in words, for messages and tables."""
        if self.is_switch:
            return "off (0), on (1)"
        low, high = self.values[0], self.values[-1]
        if len(self.values) <= 2:
            return " or ".join(map(str, self.values))
        if len(self.values) == high - low + 1:
            return f"{low} to {high}"
        return f"0, {self.values[1]} to {high}"


def _knob(
    values: Iterable[int],
    default: int,
    *,
    baked: bool,
    variable: str,
    help: str,
    costs: str = "",
    search: Iterable[int] | None = None,
) -> Any:
    domain = tuple(values)
    facts = {
        "values": domain,
        "search": domain if search is None else tuple(search),
        "baked": baked,
        "costs": costs,
        "variable": variable,
        "help": help,
    }
    return field(default=default, metadata=facts)


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """One value for every knob; `Setting()` is the built-in default."""

    ctas_per_sm: int = _knob(
        range(1, 5), 2, baked=True, variable="CTAS", costs="shared memory, registers",
        help="CTAs resident per SM: the size of the persistent grid",
    )  # fmt: skip
    kv_stages: int = _knob(
        (0, *range(2, 13)), 0, baked=True, variable="KV_STAGES", costs="shared memory",
        help="ring depth in KV tiles of 64 tokens; 0 = as many as fit",
    )  # fmt: skip
    consumer_warps: int = _knob(
        (4, 8), 4, baked=True, variable="CONSUMER_WARPS", costs="registers, shared memory",
        help="computing warps of one CTA; eight work on two tiles at once",
    )  # fmt: skip
    max_splits: int = _knob(
        range(513), 0, baked=False, variable="MAX_SPLITS",
        search=(0, *(1 << i for i in range(10))),
        help="most KV chunks of one (sequence, KV head); 0 = as many as fill the grid, 1 = never split",
    )  # fmt: skip
    pdl: int = _knob(
        (0, 1), 0, baked=True, variable="PDL",
        help="programmatic dependent launch of the decode kernel",
    )  # fmt: skip
    l2_prefetch: int = _knob(
        range(9), 0, baked=True, variable="L2_PREFETCH",
        help="how many tiles beyond the one being loaded TMA prefetches into L2",
    )  # fmt: skip
    kv_evict_first: int = _knob(
        (0, 1), 1, baked=True, variable="KV_EVICT_FIRST",
        help="L2 evict-first policy on KV loads (KV is read once)",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for item in KNOBS:
            object.__setattr__(self, item.name, item.check(getattr(self, item.name)))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Setting:
        """Build a setting from knob names and values; missing knobs take their default.

        Raises:
            ValueError: an unknown knob, or a value outside its domain.
        """
        unknown = set(values) - {knob.name for knob in KNOBS}
        if unknown:
            known = ", ".join(knob.name for knob in KNOBS)
            raise ValueError(f"unknown knob {sorted(unknown)[0]!r}; the knobs are {known}")
        return cls(**values)  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, int]:
        """Knob names and values, in the order of declaration."""
        return asdict(self)

    def changed(self, base: Setting) -> dict[str, int]:
        """The knobs whose value differs from `base`."""
        return {name: value for name, value in self.as_dict().items() if value != getattr(base, name)}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.as_dict().items())


KNOBS: tuple[Knob, ...] = tuple(
    Knob(name=f.name, default=f.default, **f.metadata)  # type: ignore[arg-type]
    for f in fields(Setting)
)
"""Every knob, in the order of declaration."""


def knob(name: str) -> Knob:
    """The knob of that name.

    Raises:
        ValueError: no such knob; the message lists them.
    """
    for item in KNOBS:
        if item.name == name:
            return item
    raise ValueError(f"unknown knob {name!r}; the knobs are {', '.join(item.name for item in KNOBS)}")


def parse_assignment(text: str) -> tuple[str, int]:
    """Read `kv_stages=4` as it is given to `--pin`; switches also take on/off, yes/no, true/false.

    Raises:
        ValueError: not of the form NAME=VALUE, an unknown knob, or a value outside its domain.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r} is not of the form KNOB=VALUE, such as kv_stages=4")
    item = knob(name.strip())
    words = {"on": 1, "yes": 1, "true": 1, "off": 0, "no": 0, "false": 0} if item.is_switch else {}
    word = value.strip().lower()
    try:
        number = words[word] if word in words else int(word)
    except ValueError:
        raise ValueError(f"{item.name} = {value!r} is not a whole number: {item.domain()}") from None
    return item.name, item.check(number)
