"""The seam between a campaign and the device: what is asked of a bench, and what comes back.

There are two benches: `tuner.gpu` measures on a GPU, `tuner.replay` draws from a recording. A campaign cannot tell
them apart but for `Bench.simulated`. All times are whole nanoseconds of one launch of decode at one
point, already freed of the chain around them (see `Timing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import FAULTS, Setting
from mjolnir.tuner.workload import Workload

CANARIES = (*FAULTS[1:], "stale", "replayed")
"""What is sent through the gate to see it rejected: kernels with a fault; the binary of another setting in the place of
the one asked for; outputs copied from an earlier launch instead of computed."""

RACED = "clearly slow at the first points, so not timed at the others"
"""The reason of a trial that was raced."""


class Status(StrEnum):
    """How a trial ended."""

    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    COMPILE_FAILED = "compile-failed"
    COMPILE_TIMEOUT = "compile-timeout"
    CRASHED = "crashed"
    HUNG = "hung"
    INCORRECT = "incorrect"
    NAN = "nan"
    DIRTY = "dirty"
    RACED = "raced"
    INFRASTRUCTURE = "infrastructure"


REJECTED = (Status.INCORRECT, Status.NAN)
"""How a gate turns a kernel down; a canary that ends otherwise has not been through it."""


class BenchFailure(RuntimeError):
    """The bench could not measure, and no setting is to blame.

    Attributes:
        status: `dirty` where only the window was no good, else `infrastructure`.
        log: the end of the worker's output.
    """

    def __init__(self, message: str, log: str = "", status: Status = Status.INFRASTRUCTURE) -> None:
        super().__init__(message)
        self.log = log
        self.status = status


@dataclass(frozen=True, slots=True)
class Timing:
    """Paired samples of two settings at one point, taken interleaved in one window.

    A sample is the time of one chain (writer, decode, reader) by CUDA-graph replay over rotating KV sets,
    divided by the number of chains in the replay. `empty` are samples of the same chain without decode.

    Attributes:
        point: index of the point in the workload.
        candidate: chain times of the candidate in ns, one per round.
        baseline: chain times of the baseline in ns, of the same rounds.
        empty: chain times without decode in ns.
        window: what was seen of the device meanwhile: clock, temperature, power, throttle reasons, other processes.
    """

    point: int
    candidate: tuple[int, ...]
    baseline: tuple[int, ...]
    empty: tuple[int, ...]
    window: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON form for records: the baseline as it is, the candidate as differences from it (integers, lossless)."""
        return {
            "point": self.point,
            "baseline": list(self.baseline),
            "difference": [c - b for c, b in zip(self.candidate, self.baseline, strict=True)],
            "empty": list(self.empty),
            "window": dict(self.window),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Timing:
        """The inverse of `as_dict`."""
        baseline = tuple(values["baseline"])
        candidate = tuple(b + d for b, d in zip(baseline, values["difference"], strict=True))
        return cls(values["point"], candidate, baseline, tuple(values["empty"]), dict(values["window"]))


class Windowed(Protocol):
    """Whatever was measured in a window."""

    @property
    def window(self) -> Mapping[str, Any]:
        """As in `Timing`."""


def dirt(measured: Iterable[Windowed]) -> str:
    """What makes windows dirty, each reason once; empty when all can be trusted."""
    reasons = (str(item.window.get("dirty", "")) for item in measured)
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one trial.

    Attributes:
        status: how it ended; without `timings` unless it is `measured`, `dirty` or `raced` (fewer points).
        reason: one line for a person; empty when measured.
        timings: one per point, against the built-in default; those of a `dirty` trial are data and never used.
        correctness: worst error, its bound and the seeds, by check; empty where nothing was checked.
        binary: key of the compiled variant, empty where none was built.
        plans: plan digest of each point.
        facts: registers, spill bytes, shared memory, compile seconds and the like.
        phases: seconds by phase ("compile", "gate", "measure").
        log: the end of the compiler's or worker's output, when it failed.
    """

    status: Status
    reason: str = ""
    timings: tuple[Timing, ...] = ()
    correctness: Mapping[str, Any] = field(default_factory=dict)
    binary: str = ""
    plans: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """One instance: fresh inputs, fresh graphs, several arms timed against one another at some points.

    Attributes:
        process: index of the fresh process that takes it; instances of one index share a process.
        number: index of the instance, which seeds its inputs.
        points: indices of the points.
        arms: settings in a fixed order; each round times all of them in rotating order.
        rounds: rounds per point.
    """

    process: int
    number: int
    points: tuple[int, ...]
    arms: tuple[Setting, ...]
    rounds: int = 10


@dataclass(frozen=True, slots=True)
class Instance:
    """What came of an instance.

    Attributes:
        status: `measured`, or how it failed.
        reason: one line, when it failed.
        samples: `samples[point][arm]` are the ns of each round, with the chain's own time already taken off;
            by position in the request's `points` and `arms`.
        correctness: as in `Outcome`, of this instance's own outputs.
        window: as in `Timing`.
        phases: seconds by phase: "wait" for a process, "open", "inputs", "gate", "measure".
    """

    status: Status
    reason: str = ""
    samples: tuple[tuple[tuple[int, ...], ...], ...] = ()
    correctness: Mapping[str, Any] = field(default_factory=dict)
    window: Mapping[str, Any] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)


class Race(Protocol):
    """Decides at a few points whether a setting is worth timing at the others."""

    @property
    def points(self) -> Sequence[int]:
        """The points that it is decided at, ascending; none when all settings go on."""

    def __call__(self, timings: Sequence[Timing]) -> bool:
        """Whether a setting with these timings, one per point of `points`, goes on."""


class OneByOne:
    """The announcements of a bench that does nothing before it is asked."""

    width = 1

    def begin(self, trial: int, setting: Setting, race: Race | None = None) -> None:
        """See `Bench`."""

    def begun(self, trial: int) -> bool:
        """See `Bench`."""
        return False

    def foresee(self, settings: Iterable[Setting]) -> None:
        """See `Bench`."""

    def begin_noise(self, number: int) -> None:
        """See `Bench`."""

    def begin_instance(self, request: InstanceRequest) -> None:
        """See `Bench`."""


class Bench(Protocol):
    """A device to measure on, or a recording of one."""

    @property
    def simulated(self) -> bool:
        """True for a replay: times are recorded ones and `now` is a simulated clock."""

    @property
    def device(self) -> Device:
        """The device that is measured, or was recorded."""

    @property
    def geometry(self) -> Geometry:
        """The problem."""

    @property
    def placement(self) -> Placement:
        """How the KV caches lie in memory."""

    @property
    def workload(self) -> Workload:
        """The points."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """What an epoch is made of: versions, driver, kernel hash, policy; strings, numbers, nested dicts."""

    @property
    def canaries(self) -> Sequence[str]:
        """Those of `CANARIES` that this bench can send through its gate, in order."""

    def settings(self) -> Sequence[Setting] | None:
        """The settings that can be measured, resolved; None = every feasible one (a recording holds a finite grid)."""

    def now(self) -> float:
        """Seconds on the bench's clock, from an arbitrary start, monotonic."""

    def submit(self, setting: Setting) -> None:
        """Start compiling `setting` ahead of its `measure`; may do nothing."""

    @property
    def width(self) -> int:
        """How many devices measure side by side."""

    def begin(self, trial: int, setting: Setting, race: Race | None = None) -> None:
        """Announce a trial that `measure` will ask for: a device takes it up as soon as it is free."""

    def begun(self, trial: int) -> bool:
        """Whether a device has taken an announced trial up; from then on one that was not is forgotten."""

    def foresee(self, settings: Iterable[Setting]) -> None:
        """Compile what may be asked for soon while there is nothing else to compile; may do nothing."""

    def begin_noise(self, number: int) -> None:
        """Announce a comparison that `noise` will ask for; a device that would be idle takes it up."""

    def begin_instance(self, request: InstanceRequest) -> None:
        """Announce an instance that `instance` will ask for; a device that would be idle takes it up."""

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        """Build, check and time `setting` at every point against the built-in default, interleaved.

        `fault` builds a canary instead: the gate is expected to reject it. Never raises for what a setting does;
        `infrastructure` says that the bench itself failed. `trial` seeds inputs and, in a replay, the noise. With a
        `race`, which is told the timings of its first points, a setting that does not go on ends as `raced` with these
        timings alone; a bench that cannot time in stages passes over it.
        """

    def noise(self, number: int) -> tuple[Timing, ...]:
        """An A/A comparison of the built-in default with itself on a fresh instance, one timing per point.

        It is dirty where a window of it is.

        Raises:
            BenchFailure: it could not be measured.
        """

    def instance(self, request: InstanceRequest) -> Instance:
        """Take one instance, in the process that the request names; a new index means a new process."""

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on a simulated clock (proposing, recording); a real bench ignores it."""

    def close(self) -> None:
        """End workers and give the device back. Idempotent."""
