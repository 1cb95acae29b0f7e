"""Several geometries in one run: a campaign each, on the same devices, which share what is slow to start.

The searches come one after another; then the campaigns are confirmed side by side, each fresh process taking instances
of all of them. The compile pool and the devices' workers are the same for all, and what a later campaign begins with is
compiled while an earlier one searches. Each geometry has a tag of its own, `TAG-<geometry>`, and its own records: a run
that was cut off is gone on with by `--resume`, which starts what was not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mjolnir import ledger as ledgers
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research import campaign, places
from mjolnir.research.answer import Answer, Exit, UsageFailure
from mjolnir.research.campaign import Campaign
from mjolnir.research.ending import told
from mjolnir.research.naming import Names
from mjolnir.research.removal import require_in_force
from mjolnir.research.stopping import Running
from mjolnir.research.tags import checked_tag, fresh_tag
from mjolnir.tuner import coordinator

if TYPE_CHECKING:
    from mjolnir.kernel.device import Device
    from mjolnir.ledger import Ledger
    from mjolnir.research.hardware import Hardware
    from mjolnir.research.progress import Screen
    from mjolnir.research.request import Request
    from mjolnir.tuner.session import Progress


def run(request: Request, geometries: Sequence[str], screen: Screen) -> Answer:
    """Run or resume a campaign for each geometry, and say what they found.

    Args:
        request: what holds for all; its own geometry is not looked at.
        geometries: as `--geometry` takes them, two at least.
        screen: where the run says what it does.

    Raises:
        UsageFailure: options that contradict one another, or a geometry that does not parse or comes twice.
        MissingFailure: no device.
        Failure: the ledger cannot be used, or the device failed.
    """
    requests = _requests(request, geometries)
    for each in requests:
        campaign.require_outputs(each, str(each.tag))
    with ledgers.open(request.ledger) as ledger, ExitStack() as stack:
        ledger.prepare()
        requests = [replace(each, resume=_resumes(each, ledger)) for each in requests]
        if request.resume and not any(each.resume for each in requests):
            raise UsageFailure(f"there is no campaign of {request.tag} to resume; leave --resume out to start them")
        for each in requests:
            require_in_force(ledger, str(each.tag), campaign.TAKEN)
            campaign.require_replayable(each)
        folder = places.state_folder(ledger.folder)
        running = [stack.enter_context(Running(folder, str(each.tag)).claim()) for each in requests]
        again = ("--tag", _base(requests, geometries), "--resume")
        places_of = [word for text in geometries for word in ("--geometry", text)]
        stack.enter_context(campaign.failures_in_words(ledger, "run", *again, *places_of))
        return _Together(ledger, requests, running, screen, stack).run()


def _requests(request: Request, geometries: Sequence[str]) -> list[Request]:
    """A request for each geometry."""
    for given, flag in ((request.storage, "--storage"), (request.dry_run, "--dry-run"), (request.model, "--model")):
        if given:
            raise UsageFailure(f"{flag} goes with one geometry, not with {len(geometries)}")
    if request.resume and not request.tag:
        raise UsageFailure("--resume needs --tag, the one that the run was given or printed")
    base = request.tag or fresh_tag()
    made = [replace(request, geometry=text) for text in geometries]
    names = [slug(each.problem()[0]) for each in made]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageFailure(f"--geometry: {twice} is there twice")
    return [
        replace(
            each,
            tag=checked_tag(f"{base}-{name}"),
            export=request.export / f"{base}-{name}" if request.export else None,
        )
        for each, name in zip(made, names, strict=True)
    ]


def slug(geometry: Geometry) -> str:
    """A geometry as the end of a tag, such as 32x8-d128-p64-q1; what is not as usual is added."""
    usual = Geometry(geometry.heads_q, geometry.heads_kv, geometry.head_dim, geometry.page_size, geometry.q_len)
    name = f"{geometry.heads_q}x{geometry.heads_kv}-d{geometry.head_dim}-p{geometry.page_size}-q{geometry.q_len}"
    odd = [word for word in str(geometry).split(",") if word not in str(usual).split(",")]
    return "-".join([name, *(word.replace("=", "-") for word in odd)])


def _resumes(request: Request, ledger: Ledger) -> bool:
    return request.resume and bool(ledger.records(str(request.tag)))


def _base(requests: Sequence[Request], geometries: Sequence[str]) -> str:
    """The tag that the requests have in common."""
    return str(requests[0].tag).removesuffix("-" + slug(replace(requests[0], geometry=geometries[0]).problem()[0]))


class _Together:
    """One run; `stack` closes what it opens."""

    def __init__(
        self,
        ledger: Ledger,
        requests: Sequence[Request],
        running: Sequence[Running],
        screen: Screen,
        stack: ExitStack,
    ) -> None:
        self._ledger, self._requests, self._running = ledger, requests, running
        self._screen, self._stack = screen, stack
        self._hardware = _hardware(requests[0], stack)
        self._open: list[Campaign] = []

    def run(self) -> Answer:
        results = coordinator.run_together(self._runs())
        answers = [
            told(request, self._ledger, opened.journal.history(), result)
            for request, opened, result in zip(self._requests, self._open, results, strict=True)
        ]
        return _joined(answers)

    def _runs(self) -> Iterator[coordinator.Run]:
        for place, request in enumerate(self._requests):
            opened = campaign.opened(request, self._ledger, str(request.tag), self._stop(place), self._hardware)
            made = self._stack.enter_context(opened)
            names = Names(made.bench.geometry, made.bench.device)
            campaign.announce(made, self._screen)
            if not self._open:
                self._require_spaces(made.bench.device)
                self._stack.enter_context(self._screen.watching(names))
            self._open.append(made)
            self._foresee(place + 1, made.bench.device)
            observer = Observer(self._screen, names, slug(made.bench.geometry))
            yield coordinator.Run(made.bench, made.journal, made.options, observer, self._stop(place))

    def _require_spaces(self, device: Device) -> None:
        """Refuse pins that leave nothing to search at a later geometry, before the first is searched."""
        for request in self._requests[1:]:
            if not request.resume:
                campaign.require_space(request.problem()[0], device, request.options())

    def _stop(self, place: int) -> Callable[[], bool]:
        """A signal ends all campaigns, and `autoresearch stop TAG` the one of that tag."""
        return lambda: self._running[place].requested or any(each.signalled for each in self._running)

    def _foresee(self, place: int, device: Device) -> None:
        """Compile what the next campaign begins with, while there is nothing else to compile."""
        if self._hardware is None or place >= len(self._requests):
            return
        from mjolnir.tuner.bench import CANARIES
        from mjolnir.tuner.gpu.parts import Parts
        from mjolnir.tuner.gpu.pool import Need

        request = self._requests[place]
        geometry, placement, workload = request.problem()
        parts = Parts(self._hardware.pool(), geometry, device, Need.PERHAPS)
        parts.submit_canaries(CANARIES, Need.PERHAPS)
        rows = campaign.rows_in_force(request, device, geometry, placement, workload.buckets)
        for setting in (Setting(), *rows.values()):
            parts.submit(setting, Need.PERHAPS)


class Observer:
    """Tells a screen of one campaign among several.

    Args:
        screen: what is told.
        names: put the campaign's settings into words.
        title: names the campaign.
    """

    def __init__(self, screen: Screen, names: Names, title: str) -> None:
        self._screen, self._names, self._title = screen, names, title

    def update(self, progress: Progress) -> None:
        """See `mjolnir.tuner.session.Observer`."""
        self._screen.about(self._names, self._title)
        self._screen.update(progress)


def _hardware(request: Request, stack: ExitStack) -> Hardware | None:
    """What the campaigns share; None for replays."""
    if request.device == "replay":
        return None
    from mjolnir.research import benches
    from mjolnir.research.hardware import Hardware

    hardware = Hardware(len(benches.gpu_indices(request.device)))
    stack.callback(hardware.close)
    return hardware


def _joined(answers: Sequence[Answer]) -> Answer:
    from rich.console import Group

    data: dict[str, Any] = {"campaigns": [answer.data for answer in answers]}
    views = [part for answer in answers for part in (answer.view, "")]
    return Answer(data, Group(*views), max((answer.code for answer in answers), default=Exit.DONE))
