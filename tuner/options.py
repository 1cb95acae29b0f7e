"""What a campaign is told: its budget, its seed, its rules of proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mjolnir.kernel.knobs import Setting, knob

PROPOSERS = ("tpe", "random")
"""Names that `Options.proposer` takes."""


@dataclass(frozen=True, slots=True)
class Effort:
    """A preset of the budget: trials, minutes, and A/A instances before them."""

    trials: int
    minutes: float
    noise: int


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(40, 2.0, 4),
    "default": Effort(150, 10.0, 10),
    "full": Effort(600, 40.0, 30),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The rules of one campaign.

    Attributes:
        trials: most trials, default and incumbents included.
        minutes: most minutes of search on the bench's clock; the finals come on top.
        effort: the preset that the budget came from.
        seed: of every draw of the sampler.
        pins: knobs that the search holds fixed.
        proposer: one of `PROPOSERS`.
        margin: how much faster a promoted setting has to be in every instance; 0.01 is 1 %.
        alpha: error budget of the campaign.
        instances: instances of a confirmation.
        processes: fresh processes that they are spread over.
        depth: asks made ahead of the device; ask n sees the trials below n - depth.
        noise: A/A instances before the search.
        candidates: most candidates of a bucket in its shoot-out.
        rounds: rounds of a confirmation's instance; a shoot-out takes twice as many.
        incumbents: the row in force of each bucket that has one.
        enqueued: settings to ask before the proposer is asked.

    Raises:
        ValueError: a value that makes no campaign; the message names it.
    """

    trials: int = 150
    minutes: float = 10.0
    effort: str = "default"
    seed: int = 0
    pins: Mapping[str, int] = field(default_factory=dict)
    proposer: str = "tpe"
    margin: float = 0.01
    alpha: float = 0.05
    instances: int = 12
    processes: int = 3
    depth: int = 4
    noise: int = 10
    candidates: int = 3
    rounds: int = 10
    incumbents: Mapping[int, Setting] = field(default_factory=dict)
    enqueued: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        if self.proposer not in PROPOSERS:
            raise ValueError(f"proposer {self.proposer!r} is unknown; there are {', '.join(PROPOSERS)}")
        for name in ("trials", "instances", "processes", "noise", "candidates", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        for name in ("depth", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must not be negative")
        if not self.minutes > 0:
            raise ValueError(f"minutes = {self.minutes} must be above zero")
        if not 0 < self.margin < 1 or not 0 < self.alpha < 1:
            raise ValueError(f"margin = {self.margin} and alpha = {self.alpha} must lie between 0 and 1")
        for name, value in self.pins.items():
            knob(name).check(value)

    @classmethod
    def of_effort(cls, effort: str, **overrides: Any) -> Options:
        """The options of a preset, with single values set otherwise.

        Raises:
            ValueError: no such preset, or a bad value.
        """
        if effort not in EFFORTS:
            raise ValueError(f"effort {effort!r} is unknown; there are {', '.join(EFFORTS)}")
        return cls(**{"effort": effort, **asdict(EFFORTS[effort]), **overrides})

    def as_dict(self) -> dict[str, Any]:
        """The `options` of a campaign record: everything but the settings, which the record holds elsewhere."""
        names = [f.name for f in fields(self) if f.name not in ("incumbents", "enqueued")]
        return {name: dict(self.pins) if name == "pins" else getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Options:
        """The inverse of `as_dict`; unknown keys, written by a later version, are passed over."""
        known = {f.name for f in fields(cls)}
        return cls(**{**{name: value for name, value in values.items() if name in known}, **overrides})
