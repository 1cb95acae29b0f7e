"""The knobs of a source experiment: those in force, the same for both; or, asked for, tuned for each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.research.answer import Failure
from mjolnir.research.bodies import environment, open_records
from mjolnir.research.campaign import incumbents_of
from mjolnir.research.journal import LedgerJournal
from mjolnir.research.naming import Names
from mjolnir.research.source.proving import Stopped
from mjolnir.tuner import coordinator
from mjolnir.tuner.sources import Arm, Pair, Source

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger
    from mjolnir.research.progress import Screen
    from mjolnir.research.request import Request
    from mjolnir.research.source.change import Change
    from mjolnir.tuner.options import Options
    from mjolnir.tuner.sources import SourceBench


def arms_of(request: Request, bench: SourceBench, options: Options) -> Pair:
    """Both builds with the same knobs: the row in force of each bucket, else the default; pins come before either.

    Raises:
        Failure: the pins cannot run.
    """
    rows = incumbents_of(request, bench.side(Source.BASE), None)
    knobs = {bucket: _held(rows.get(bucket), bench, options.pins) for bucket in bench.workload.buckets}
    return _arm(Source.CHANGE, bench, knobs), _arm(Source.BASE, bench, knobs)


def _held(row: Setting | None, bench: SourceBench, pins: Mapping[str, int]) -> Setting:
    for known in (row, Setting()):
        if known is not None:
            setting = Setting.from_dict({**known.as_dict(), **pins})
            reason = infeasible(setting, bench.geometry, bench.device)
            if reason is None:
                return resolve(setting, bench.geometry, bench.device)
    raise Failure(f"these knobs cannot run: {reason}; give other --pin")


def _arm(source: Source, bench: SourceBench, knobs: Mapping[int, Setting]) -> Arm:
    return Arm(source, tuple(knobs[point.bucket] for point in bench.workload.points))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search is recorded: the ledger, the tag of the experiments, the change that they are about."""

    ledger: Ledger
    tag: str
    change: Change

    def tag_of(self, source: Source) -> str:
        """The tag of one side's search: the same for equal sources."""
        commit = self.change.commit if source is Source.CHANGE else self.change.base
        return f"{self.tag[:40]}.{commit[:12]}.{source}"


def retuned(
    request: Request, bench: SourceBench, options: Options, place: Place, screen: Screen, stop: Callable[[], bool]
) -> Pair:
    """Search the knobs of each build by itself, under tags of their own, and take the best of each bucket.

    What a search finds is a lead, which flatters itself; the instances that follow are fresh, and tell.

    Raises:
        Stopped: a search ended without a best setting for every bucket.
    """
    arms = []
    for source in (Source.CHANGE, Source.BASE):
        name, side = place.tag_of(source), bench.side(source)
        screen.say(f"tuning the {source}, as {name}")
        with place.ledger.writer(name, environment(side)) as writer:
            journal = LedgerJournal(place.ledger, writer, name)
            open_records(request, side, options, journal)
            with screen.watching(Names(side.geometry, side.device)):
                result = coordinator.run(side, journal, options, screen, stop, finals=False)
        best = {bucket: resolve(lead.setting, side.geometry, side.device) for bucket, lead in result.best.items()}
        if result.void or set(best) != set(bench.workload.buckets):
            raise Stopped(f"the search for the {source} ended ({result.reason}) without a setting: see {name}")
        arms.append(_arm(source, bench, best))
    return arms[0], arms[1]
