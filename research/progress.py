"""What a run shows while it goes on: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from mjolnir.research.plain import plain
from mjolnir.research.summary import DECISIONS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.table import Table

    from mjolnir.research.naming import Names
    from mjolnir.tuner.session import Best, Progress

QUIET_SECONDS = 10.0
"""A plain screen says how far the run is at least this often."""

FINALS = ("shootout", "confirmation", "promotion")
"""Phases that are about one bucket."""

PHASES = {
    "canary": "checking that the gate rejects wrong kernels",
    "noise": "measuring the noise",
    "search": "searching",
    "shootout": "comparing the best candidates",
    "confirmation": "confirming in fresh processes",
    "promotion": "deciding",
    "end": "done",
}


class Screen(Protocol):
    """Where a run says what it does; the tuner's observer."""

    def say(self, text: str) -> None:
        """Print one line that stays."""

    def watching(self, names: Names) -> AbstractContextManager[None]:
        """Show progress while the block runs; `names` puts settings into words."""

    def about(self, names: Names, title: str) -> None:
        """What follows is about this one of several campaigns."""

    def update(self, progress: Progress) -> None:
        """Take the tuner's progress."""


def screen(console: Console) -> Screen:
    """The screen that suits `console`."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Lines: each phase, each new best, and how far the run is every `QUIET_SECONDS`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._names: Names | None = None
        self._title = ""
        self._phase = ("", "")
        self._spoke = time.monotonic()
        self._warned = False

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text)
        self._spoke = time.monotonic()

    @contextmanager
    def watching(self, names: Names) -> Iterator[None]:
        """See `Screen`."""
        self._names = names
        yield

    def about(self, names: Names, title: str) -> None:
        """See `Screen`; lines begin with the title."""
        self._names, self._title = names, f"{title}: "

    def update(self, progress: Progress) -> None:
        """Print a line when there is something new."""
        if progress.replayed or self._names is None:
            return
        if not self._warned and (warning := warning_line(progress)):
            self._warned = True
            self.say(self._title + warning)
        phase = (self._title * (progress.phase not in FINALS), progress.phase)  # finals are taken in turns
        if phase != self._phase:
            self._phase = phase
            if progress.phase != "promotion":
                self.say(f"{self._title}{phase_text(progress)} ...")
        line = kept_line(progress, self._names) or decision_line(progress)
        if line or time.monotonic() - self._spoke > QUIET_SECONDS:
            self.say(self._title + (line or status_line(progress)))


class LiveScreen:
    """A panel that is redrawn in place: phase, time left, trials per minute, best so far of each bucket."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar, self._task = _bar(console)
        self._names: Names | None = None
        self._title = ""
        self._best: Mapping[int, Best] = {}
        self._warned = False

    def say(self, text: str) -> None:
        """Print one line above the panel."""
        self._console.print(text)

    @contextmanager
    def watching(self, names: Names) -> Iterator[None]:
        """See `Screen`."""
        from rich.live import Live

        self._names = names
        with Live(get_renderable=self._panel, console=self._console, refresh_per_second=4):
            yield

    def about(self, names: Names, title: str) -> None:
        """See `Screen`."""
        self._names, self._title = names, f"{title}: "

    def update(self, progress: Progress) -> None:
        """Take new numbers; the panel redraws itself."""
        if not self._warned and not progress.replayed and (warning := warning_line(progress)):
            self._warned = True
            self.say(self._title + warning)
        self._best = progress.best
        self._bar.update(
            self._task,
            description=self._title + phase_text(progress),
            completed=progress.done,
            total=progress.total or None,
            rate=f"{progress.trials_per_minute:.0f} trials/min",
            left="" if progress.seconds_left is None else f"{_clock(progress.seconds_left)} left",
        )

    def _panel(self) -> Table:
        from rich.table import Table

        panel = Table.grid()
        panel.add_row(self._bar)
        panel.add_row(self._best_table())
        return panel

    def _best_table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("batch", "best so far", "setting (where it differs from the default)"):
            table.add_column(title)
        for bucket, found in sorted(self._best.items()):
            words = self._names(found.setting) if self._names else str(found.setting)
            table.add_row(str(bucket), f"{found.ratio:.3f}", words)
        return table


def _bar(console: Console) -> tuple[Bar, TaskID]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    extra = (TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[left]}"))
    bar = Progress(*columns, *extra, console=console)
    return bar, bar.add_task("starting", total=None, rate="", left="")


def phase_text(progress: Progress) -> str:
    """The phase in words, with the batch bucket that it is about."""
    bucket = progress.record["body"].get("bucket") if progress.phase in FINALS else None
    text = PHASES.get(progress.phase, progress.phase)
    return text if bucket is None else f"batch {bucket}: {text}"


def kept_line(progress: Progress, names: Names) -> str:
    """A line for a trial that is a new best somewhere; "" for anything else."""
    record = progress.record
    if record["kind"] != "trial" or record["body"]["verdict"] != "keep":
        return ""
    body = record["body"]
    buckets = ", ".join(f"batch {bucket} {body['ratios'][str(bucket)]:.3f}" for bucket in body["kept_buckets"])
    return f"trial {body['trial']}: new best for {buckets}: {names(body['setting'])}"


def warning_line(progress: Progress) -> str:
    """A line for a trial whose proposer failed, which a screen says once; "" for anything else."""
    body = progress.record["body"]
    note = body["proposal"].get("note") if progress.record["kind"] == "trial" else None
    if not note:
        return ""
    replaced = f"a {body['proposal']['replaced']} setting takes its place"
    return f"warning: trial {body['trial']}: {plain(note)}; {replaced}, and so with any later failure"


def decision_line(progress: Progress) -> str:
    """A line for a decision; "" for anything else."""
    body = progress.record["body"]
    if progress.record["kind"] != "promotion":
        return ""
    return f"batch {body['bucket']}: {DECISIONS[body['decision']]}: {body['reason']}"


def status_line(progress: Progress) -> str:
    """How far the run is."""
    left = f", {_clock(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    rate = f", {progress.trials_per_minute:.0f} trials/min" if progress.trials_per_minute else ""
    return f"{phase_text(progress)}: {progress.done} of {progress.total}{rate}{left}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
