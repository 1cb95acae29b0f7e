"""The engines of `mjolnir verify vllm`, run some at a time and judged; a row for every pair of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from mjolnir.research.bench import result_file
from mjolnir.research.bench.rows import write as write_json
from mjolnir.research.serving.agreement import compare
from mjolnir.research.serving.job import Job, Run
from mjolnir.research.serving.modes import Mode
from mjolnir.research.serving.process import EngineFailed
from mjolnir.research.tell import tell

SCHEMA = "mjolnir.verify-vllm/1"
CONTROL = "control"
LEAST_SHARE = 0.99
"""Share of the decode-only steps that have to run on Mjolnir."""

NAMES = ("mode", "against", "runner", "layout", "block_size", "model", "prompts")
"""What names a row: of two with the same name the newer one counts."""

MOST_SHOWN = 3

Row = dict[str, Any]
Engine = Callable[[Job], Run]
"""Runs a job; tests put another in the place of a process."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The engines of a run.

    Attributes:
        stock: one of each stock backend, by its name.
        ours: Mjolnir's, each with its mode and what its rows say of it.
        control: Mjolnir's with zeros for attention, and what its rows say.
    """

    stock: Mapping[str, Job]
    ours: Sequence[tuple[Job, Mode, Row]]
    control: tuple[Job, Row]


@dataclass
class Trial:
    """One run of all engines.

    Args:
        engine: runs a job.
        earlier: rows of other runs, which are kept where they are not made anew.
        out: the file that is written after every engine.
        how: what the file says of how rows were taken.
        beside: engines that run at a time.
    """

    engine: Engine
    earlier: Sequence[Row] = ()
    out: Path | None = None
    how: Mapping[str, Any] = field(default_factory=dict)
    beside: int = 1
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def run(self, jobs: Jobs) -> None:
        """Run all engines; one that fails is told in its rows, and the others go on.

        What they are judged by begins first, then what takes longest to start.
        """
        pool = ThreadPoolExecutor(self.beside)
        try:
            stock = {name: pool.submit(self._answer, job) for name, job in jobs.stock.items()}
            control, about = jobs.control
            ours = {pool.submit(self._answer, control): (_judge_control, about)}
            for job, mode, about in sorted(jobs.ours, key=lambda item: -item[1].compilation):
                ours[pool.submit(self._answer, job)] = partial(_judge, mode=mode), about
            for done in as_completed(ours):
                judge, about = ours[done]
                for name, expected in stock.items():
                    self._add(
                        {**about, "against": name}, judge(self._kept(done.result()), self._kept(expected.result()))
                    )
        finally:  # an interrupt waits for no engine
            pool.shutdown(wait=False, cancel_futures=True)

    def data(self) -> dict[str, Any]:
        """The result: figures, all rows, how they were taken."""
        named = {tuple(row[name] for name in NAMES): row for row in (*self.earlier, *self.rows)}
        rows = [named[key] for key in sorted(named, key=str)]
        taken = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **self.facts, **self.how}
        return {"schema": SCHEMA, "figures": figures(rows), "rows": rows, "taken": taken}

    def _answer(self, job: Job) -> Run | str:
        """What came of a job, or why nothing did."""
        try:
            run = self.engine(job)
        except EngineFailed as error:
            tell(f"{job.name}: failed")
            return str(error)
        tell(f"{job.name}: {sum(run.facts['seconds'].values()):.0f} s {run.facts['seconds']}")
        return run

    def _kept(self, run: Run | str) -> Run | str:
        """The same, with its facts taken down."""
        if isinstance(run, Run):
            self.facts |= {name: run.facts[name] for name in ("device", "torch", "vllm")}
        return run

    def _add(self, about: Row, judged: Row) -> None:
        self.rows.append({**about, **judged})
        if self.out:
            write_json(self.out, self.data())


def _judge(found: Run | str, expected: Run | str, mode: Mode) -> Row:
    """What a row says beside what it is about."""
    if isinstance(found, str) or isinstance(expected, str):
        return {"problems": [text for text in (found, expected) if isinstance(text, str)]}
    agreed = compare(found.completions, expected.completions)
    share = found.step_share
    problems = [*agreed.problems, *mode.unmet(found.scheduled)]
    if share is None or share < LEAST_SHARE:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in found.counted.get("reasons", {}).items())
        told = "none was scheduled" if share is None else f"{share:.1%} of them ran on Mjolnir"
        problems.append(f"decode-only steps: {told}, {LEAST_SHARE:.0%} are needed; to the fallback went {reasons}")
    return {**_told(found, agreed.as_dict()), "problems": problems}


def _judge_control(found: Run | str, expected: Run | str) -> Row:
    """The same of the control, which has to be found wrong."""
    if isinstance(found, str) or isinstance(expected, str):
        return {"problems": [text for text in (found, expected) if isinstance(text, str)]}
    agreed = compare(found.completions, expected.completions[-len(found.completions) :])
    blind = "with zeros for attention the answers agree all the same: this comparison says nothing of this model"
    return {**_told(found, agreed.as_dict()), "problems": [] if agreed.far else [blind]}


def _told(found: Run, agreed: Mapping[str, Any]) -> Row:
    numbers = {name: value for name, value in agreed.items() if name != "problems"}
    share = found.step_share
    return {
        **{name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()},
        "mjolnir_steps": found.mjolnir_steps,
        "mjolnir_step_share": None if share is None else round(share, 4),
        "scheduled": dict(found.scheduled),
        "counted": dict(found.counted),
        "engine": dict(found.facts),
    }


def figures(rows: Sequence[Row]) -> dict[str, float | int]:
    """How many comparisons there are, how many are wrong, the worst of each kind, and how many steps Mjolnir ran."""
    real = [row for row in rows if row["mode"] != CONTROL]
    whole = [row for row in real if "most" in row]
    shares = [row["mjolnir_step_share"] for row in whole if row["mjolnir_step_share"] is not None]
    runs = {tuple(row[name] for name in NAMES if name != "against"): row["mjolnir_steps"] for row in whole}
    worst = {name: max((row[name] for row in whole if row[name] is not None), default=0.0) for name in ("most", "mean")}
    return {
        "comparisons": len(real),
        "wrong": sum(bool(row["problems"]) for row in rows),
        "controls_found_wrong": sum(row["mode"] == CONTROL and not row["problems"] for row in rows),
        "steps_compared": sum(row["shared"] for row in whole),
        "near_ties": sum(row["parted"] - row["far"] for row in whole),
        "most_nats": worst["most"],
        "mean_nats": worst["mean"],
        "mjolnir_steps": sum(runs.values()),
        **({"mjolnir_step_share": min(shares)} if shares else {}),
    }


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each row, and under it what is wrong there."""
    head = f"{'compared':>9}{'parted':>7}{'far':>4}{'most':>7}{'mean':>7}{'steps':>7}{'share':>7}"
    yield f"{'mode':<28}{'runner':>7}{'layout':>7}{'block':>6} {'against':<12}{head}"
    for row in rows:
        place = f"{row['runner'] or '-':>7}{row['layout'] or '-':>7}{row['block_size']:>6} {row['against']:<12}"
        verdict = "wrong" if row["problems"] else "right" if row["mode"] != CONTROL else "found wrong, as it has to be"
        yield f"{row['mode']:<28}{place}{_numbers(row)}  {verdict}"
        yield from (f"    {problem}" for problem in row["problems"][:MOST_SHOWN])


def _numbers(row: Row) -> str:
    if "most" not in row:
        return f"{'':>48}"
    share = row["mjolnir_step_share"]
    most, mean = (f"{row[name]:.3f}" if row[name] is not None else "inf" for name in ("most", "mean"))
    counts = f"{row['shared']:>9}{row['parted']:>7}{row['far']:>4}{most:>7}{mean:>7}{row['mjolnir_steps']:>7}"
    return f"{counts}{'-' if share is None else f'{share:.3f}':>7}"


def read(path: Path) -> list[Row]:
    """The rows of a result file.

    Raises:
        UsageFailure: it cannot be read, or is none of this command.
    """
    return list(result_file.read(path, SCHEMA, "`verify vllm`", _whole)["rows"])


def _whole(data: Mapping[str, Any]) -> bool:
    return all(name in row for row in data["rows"] for name in (*NAMES, "problems"))
