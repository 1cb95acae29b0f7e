"""Proposers: what to try next. They speak coordinates of the space and know nothing of devices or records."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mjolnir.tuner.options import PROPOSERS
from mjolnir.tuner.space import Coordinates, Space
from mjolnir.tuner.workload import Workload


class ProposerError(RuntimeError):
    """A proposer that cannot be used, or an ask that it had no answer to: what is wrong, and what to do."""


class CommandError(ProposerError):
    """The command of the proposer `external` cannot be run as it was given."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a study expects of the settings that were not tried.

    Attributes:
        expected: expected improvement of the best one on the lead, as a logarithm of the ratio.
        optimistic: how far below the lead any of them lies at most, as the study sees it; also a logarithm.
    """

    expected: float
    optimistic: float


class Proposer(Protocol):
    """A source of settings, with one study per bucket.

    A proposer is deterministic: its answers depend on the seed, on `number`, on `taken` and on what was told before,
    not on how many asks there were. So a campaign that was killed can be told its records and go on as if it had not
    been. An external command is as deterministic as whoever wrote it made it.
    """

    @property
    def name(self) -> str:
        """As `Options.proposer` and the records have it."""

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """Propose for `bucket`; `number` is the trial it becomes. It may repeat what is taken.

        Args:
            bucket: whose study is asked.
            number: the trial that the proposal becomes.
            taken: what was tried, is being measured or cannot run.

        Raises:
            ProposerError: it has no answer this time.
        """

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """What `bucket` has left to gain; None where the proposer cannot tell."""

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """Report a finished trial to one bucket's study: its ratio there (smaller is better), None if it has none.

        It has none when it failed, or was raced and so is known to be slow: None stands behind every value.
        """


@runtime_checkable
class Foresight(Protocol):
    """A proposer that can tell what it may propose soon, so that it is compiled by then."""

    def likely(self, bucket: int, number: int, taken: Set[Coordinates]) -> Sequence[Coordinates]:
        """The most likely answers to the asks that follow, likeliest first; as for `Proposer.ask`."""


def make(
    name: str, space: Space, seed: int, *, workload: Workload | None = None, command: str = "", seconds: float = 60.0
) -> Proposer:
    """The proposer of that name.

    Args:
        name: one of `Options.proposer`.
        space: of the settings.
        seed: of its draws.
        workload: what its settings are to be fast at.
        command: of the proposer `external`.
        seconds: that the command may take.

    Raises:
        ValueError: no such proposer.
        CommandError: the command does not parse, or is not there.
        ProposerError: it needs a package that is not installed.
    """
    match name:
        case "gp":
            from mjolnir.tuner.proposers.gp import GpProposer

            return GpProposer(space, seed, workload)
        case "tpe":
            from mjolnir.tuner.proposers.tpe import TpeProposer

            return TpeProposer(space, seed)
        case "cmaes":
            from mjolnir.tuner.proposers.cmaes import CmaesProposer

            return CmaesProposer(space, seed)
        case "qmc":
            from mjolnir.tuner.proposers.qmc import QmcProposer

            return QmcProposer(space, seed)
        case "random":
            from mjolnir.tuner.proposers.random import RandomProposer

            return RandomProposer(space, seed)
        case "exhaustive":
            from mjolnir.tuner.proposers.exhaustive import ExhaustiveProposer

            return ExhaustiveProposer(space)
        case "external":
            from mjolnir.tuner.proposers.external import ExternalProposer

            return ExternalProposer(space, command, seconds)
    raise ValueError(f"proposer {name!r} is unknown; there are {', '.join(PROPOSERS)}")
