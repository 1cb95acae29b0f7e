"""`mjolnir bench ledger`: what a record costs, and how long it takes to find it again.

Ledgers of synthetic trials as large as real ones lie in fresh git repositories. An append is what a campaign pays for a
record, with git and the index at work as they are in a campaign; an equal append with fsync to a file beside it is
timed after each, and 1.25 times its median is taken off. For the growth a ledger of 100 and one of 100,000 records are
appended to in turn; these two lie outside a repository, as 100,000 commits take minutes and no append waits for one.
Commands are whole processes, timed from outside, of which the median counts; of `show` and `list` the slower one. The
first `show` after a new record, which works the summary out, is told apart. Bytes are those of all packs and their
indices after a campaign has closed its writer, a trial, less 2 a raw sample.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from platform import machine, python_version, system
from statistics import median
from time import perf_counter
from typing import Any

from mjolnir import ledger as ledgers
from mjolnir.ledger.live import NAME
from mjolnir.research.answer import Answer, Failure
from mjolnir.research.bench.ledger_trials import SAMPLES, Trials, fill
from mjolnir.research.bench.replay import SCHEMA, written

TAG = "bench"
TARGETS: Mapping[str, float] = {
    "append_ms_over_fsync": 0.5, "append_growth_100k": 1.3, "git_ms_per_record": 2.0, "show_s_1k": 0.7,
    "show_s_100k": 1.5, "reindex_s_10k": 3.0, "export_s_1k": 6.0, "bytes_per_trial": 1100, "help_s": 0.25,
}  # fmt: skip
"""The numbers to reach: at most so much."""

SLACK = 1.25
"""Of the median fsync: a margin for what the same disk does to two appends."""

APPENDS, BATCHES, BATCH, REPEATS = 400, 32, 32, 5


def ledger(out: Path | None = None, scale: float = 1.0) -> Answer:
    """Take the figures, and write them to `out` where it is given.

    Args:
        out: the file.
        scale: of the sizes of the ledgers; below 1 for a trial run, whose figures are no figures.
    """
    load = _load()
    figures: dict[str, float] = {"help_s": _command("--help")}
    sizes = {name: max(20, int(count * scale)) for name, count in (("1k", 1000), ("10k", 10_000), ("100k", 100_000))}
    figures |= _appends(sizes["1k"])
    figures |= _flushes(max(2, int(BATCHES * scale)))
    figures |= _small(sizes["1k"])
    figures["reindex_s_10k"] = _reindex(sizes["10k"])
    figures |= _large(sizes["100k"])
    rounded = {name: round(value, 4) for name, value in figures.items()}
    data = {
        "schema": SCHEMA,
        "bench": "ledger",
        "figures": {name: rounded[name] for name in TARGETS},
        "beside": {name: value for name, value in rounded.items() if name not in TARGETS},
        "targets": dict(TARGETS),
        "taken": _taken(sizes, load),
    }
    rows = [f"{name:22} {rounded[name]:>10g}   at most {most:g}" for name, most in TARGETS.items()]
    return Answer(data, "\n".join([*rows, *written(data, out, indent=2)]))


def _taken(sizes: Mapping[str, int], load: list[float]) -> dict[str, Any]:
    return {
        "trials": dict(sizes),
        "samples_per_trial": SAMPLES,
        "load": {"before": load, "after": _load()},
        "machine": {"cpus": os.cpu_count(), "python": python_version(), "system": system(), "arch": machine()},
        "how": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
    }


def _load() -> list[float]:
    """The load averages of the machine, over 1, 5 and 15 minutes: others at work make every figure worse."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []


@contextmanager
def _repository() -> Iterator[Path]:
    """A fresh git repository."""
    with tempfile.TemporaryDirectory(prefix="mjolnir-bench-") as name:
        subprocess.run(["git", "init", "--quiet", name], check=True, timeout=60)
        yield Path(name)


def _timed(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


def _command(*words: object, repeats: int | None = None) -> float:
    """Median seconds of a whole `mjolnir` command.

    Raises:
        Failure: it failed.
    """
    line = [sys.executable, "-m", "mjolnir.research.cli.main", *map(str, words)]

    def once() -> None:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise Failure(f"`mjolnir {' '.join(map(str, words))}` failed: {done.stderr.strip()}")

    return median(_timed(once) for _ in range(repeats or REPEATS))


def _probe(path: Path, size: int) -> float:
    """Seconds to append `size` bytes with fsync, as the live file is appended to."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    data = os.urandom(size // 2).hex().encode() + b"\n"

    def once() -> None:
        os.write(handle, data)
        os.fsync(handle)

    try:
        return _timed(once)
    finally:
        os.close(handle)


def _appends(trials: int) -> dict[str, float]:
    """What an acknowledged append takes beyond an equal append with fsync; and the size of a campaign's packs."""
    source = Trials()
    with _repository() as root, ledgers.open(root / "ledger") as book:
        times, probes = [], []
        with book.writer(TAG, source.environment) as writer:
            for kind, body in source.head:
                writer.append(kind, body)
            for number in range(1, trials + 1):
                body, begin = source.body(number), perf_counter()
                record = writer.append("trial", body)
                times.append(perf_counter() - begin)
                probes.append(_probe(root / "probe", len(record.line)))
        packs = [path.stat().st_size for path in (root / ".git" / "objects" / "pack").iterdir()]
        kept = len(book.records(TAG, "trial"))
    return {
        "append_ms_over_fsync": 1e3 * (median(times) - SLACK * median(probes)),
        "append_ms": 1e3 * median(times),
        "fsync_ms": 1e3 * median(probes),
        "bytes_per_trial": sum(packs) / kept - 2 * SAMPLES,
    }


def _flushes(batches: int) -> dict[str, float]:
    """Milliseconds of git for a record, in batches as a campaign has them."""
    source = Trials()
    with _repository() as root, ledgers.open(root / "ledger") as book, book.writer(TAG) as writer:
        taken = []
        for batch in range(batches):
            for number in range(BATCH):
                writer.append("trial", source.body(1 + batch * BATCH + number))
            taken.append(_timed(writer.flush))
    return {"git_ms_per_record": 1e3 * sum(taken) / (batches * BATCH)}


def _small(trials: int) -> dict[str, float]:
    with _repository() as root:
        folder = root / "ledger"
        fill(folder, TAG, trials)
        _flush(folder)
        found = _found("1k", folder)
        out = root / "export"
        found["export_s_1k"] = _command("autoresearch", "export", TAG, "--out", out, "--ledger", folder, repeats=3)
    return found


def _found(name: str, folder: Path) -> dict[str, float]:
    """Seconds of `show` and `list`, and of the first `show`, which has to work the summary out."""
    show, listing = (("autoresearch", *words, "--ledger", folder) for words in (("show", TAG), ("list",)))
    first = _command(*show, repeats=1)
    both = _command(*show), _command(*listing)
    return {f"show_first_s_{name}": first, f"show_s_{name}": max(both), f"list_s_{name}": both[1]}


def _flush(folder: Path) -> None:
    with ledgers.open(folder) as book:
        book.flush()


def _reindex(trials: int) -> float:
    with _repository() as root:
        fill(root / "ledger", TAG, trials)
        _flush(root / "ledger")
        return _command("ledger", "reindex", "--ledger", root / "ledger", repeats=3)


def _large(trials: int) -> dict[str, float]:
    """Appends in turn to a ledger of a hundred trials and to a large one; then what finding takes in the large one."""
    source = Trials(seed=1)
    with tempfile.TemporaryDirectory(prefix="mjolnir-bench-") as name:
        small, large = Path(name, "small"), Path(name, "large")
        times: dict[Path, list[float]] = {small: [], large: []}
        fill(small, TAG, 100)
        fill(large, TAG, trials)
        size = (large / NAME).stat().st_size
        with (
            ledgers.open(small, git="off") as few, ledgers.open(large, git="off") as many,
            few.writer(TAG) as first, many.writer(TAG) as second,
        ):  # fmt: skip
            for number in range(1, 1 + APPENDS // 2):
                body = source.body(trials + number)
                times[small].append(_timed(lambda: first.append("trial", body)))  # noqa: B023 (called at once)
                times[large].append(_timed(lambda: second.append("trial", body)))  # noqa: B023
        found = _found("100k", large)
    return {"append_growth_100k": median(times[large]) / median(times[small]), "live_bytes_100k": size, **found}
