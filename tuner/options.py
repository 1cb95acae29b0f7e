"""What a campaign is told: its budget, its seed, its rules of proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mjolnir.kernel.knobs import Setting, knob

PROPOSERS = ("gp", "tpe", "cmaes", "qmc", "random", "exhaustive", "external")
"""Names that `Options.proposer` takes."""


@dataclass(frozen=True, slots=True)
class Effort:
    """A preset of the search's budget."""

    trials: int
    minutes: float


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(40, 2.0),
    "default": Effort(150, 10.0),
    "full": Effort(600, 40.0),
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
        proposer_command: of the proposer `external`.
        proposer_seconds: that the command may take for an answer.
        until_flat: end the search when what is left to gain is below the noise in every bucket.
        race: drop settings that are clearly slow at the first points.
        margin: how much faster a promoted setting has to be; 0.01 is 1 %.
        alpha: chance that the campaign promotes any setting falsely, at most.
        instances: instances that a candidate is tested with, at most.
        group: instances that one process takes of a candidate, one after the other.
        processes: fresh processes before anything is promoted, at least.
        depth: asks made ahead of the device; ask n sees the trials below n - depth.
        noise: A/A instances before the search.
        candidates: most candidates of a bucket in its shoot-out.
        rounds: rounds of a confirmation's instance; a shoot-out takes twice as many.
        robust: a bucket's winner has the least largest regret over its points, not the least weighted one.
        incumbents: what is in force in each bucket, where that is not the built-in default: a row, or what the built-in
            rule says.
        enqueued: settings to ask before the proposer is asked.

    Raises:
        ValueError: a value that makes no campaign; the message names it.
    """

    trials: int = 150
    minutes: float = 10.0
    effort: str = "default"
    seed: int = 0
    pins: Mapping[str, int] = field(default_factory=dict)
    proposer: str = "gp"
    proposer_command: str = ""
    proposer_seconds: float = 60.0
    until_flat: bool = True
    race: bool = False
    margin: float = 0.01
    alpha: float = 0.05
    instances: int = 60
    group: int = 2
    processes: int = 3
    depth: int = 4
    noise: int = 30
    candidates: int = 3
    rounds: int = 10
    robust: bool = False
    incumbents: Mapping[int, Setting] = field(default_factory=dict)
    enqueued: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        if self.proposer not in PROPOSERS:
            raise ValueError(f"--proposer {self.proposer!r} is unknown; there are {', '.join(PROPOSERS)}")
        if self.proposer == "external" and not self.proposer_command:
            raise ValueError("the proposer external needs a command: --proposer-command 'python propose.py'")
        if self.proposer != "external" and self.proposer_command:
            raise ValueError("--proposer-command is for the proposer external: give --proposer external with it")
        for name in ("trials", "instances", "group", "processes", "noise", "candidates", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_option(name)} {getattr(self, name)} must be at least 1")
        for name in ("depth", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{_option(name)} {getattr(self, name)} must not be negative")
        for name in ("minutes", "proposer_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{_option(name)} {getattr(self, name)} must be above zero")
        for name in ("margin", "alpha"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{_option(name)} {getattr(self, name)} must lie between 0 and 1")
        for name, value in self.pins.items():
            knob(name).check(value)

    @classmethod
    def of_effort(cls, effort: str, **overrides: Any) -> Options:
        """The options of a preset, with single values set otherwise.

        Raises:
            ValueError: no such preset, or a bad value.
        """
        if effort not in EFFORTS:
            raise ValueError(f"--effort {effort!r} is unknown; there are {', '.join(EFFORTS)}")
        return cls(**{"effort": effort, **asdict(EFFORTS[effort]), **overrides})

    def as_dict(self) -> dict[str, Any]:
        """The `options` of a campaign record: everything but the settings, which the record holds elsewhere."""
        names = [f.name for f in fields(self) if f.name not in ("incumbents", "enqueued")]
        return {name: dict(self.pins) if name == "pins" else getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Options:
        """The inverse of `as_dict`; unknown keys, written by a later version, are passed over.

        Options without `group` are of the first method of proof, whose instances and processes meant something else:
        what is decided from now on is decided by the method in force.
        """
        known = {f.name for f in fields(cls)} - (set() if "group" in values else {"instances", "processes"})
        began = {"until_flat": False, **values}  # campaigns that do not say so spent their whole budget
        return cls(**{**{name: value for name, value in began.items() if name in known}, **overrides})


def _option(name: str) -> str:
    """The name of a value as the command line has it; what has no option there has its own."""
    return name if name in ("processes", "candidates", "rounds", "margin") else f"--{name.replace('_', '-')}"
