"""Interleaved rounds: every arm and the empty chain once a round, in an order that rotates from round to round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from mjolnir.tuner.gpu.window import between

if TYPE_CHECKING:
    from mjolnir.tuner.gpu.card import Graph

ROOF_BYTES_PER_SECOND = 4.8e12
CHAIN_SECONDS = 6e-6
"""A chain is guessed to take this and its bytes at the roof: what an H200 cannot beat, so others replay for longer."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How times are taken; part of the epoch, since other policies give other times.

    Attributes:
        rounds: rounds of a trial, and of a recorded cell.
        empty_every: the empty chain is timed in every so many-th round.
        replay_seconds: what one replay takes at least, about.
        rotating_bytes: KV bytes that the sets of a point have at least together.
        chain: what a sample is the time of.
        order: how arms are interleaved.
        clock: how a replay is timed.
        execution: how a chain is launched.
        l2: what of the KV a launch finds in the L2 cache.
        warmups: replays of each arm before the first round.
        attempts: how often a block, that is one point's rounds, is taken whose window was dirty.
    """

    rounds: int = 12
    empty_every: int = 1
    replay_seconds: float = 250e-6
    rotating_bytes: int = 400_000_000
    chain: str = "write Q, write KV rows, decode, read O"
    order: str = "rotating"
    clock: str = "CUDA events around one graph replay"
    execution: str = "graph"
    l2: str = "cold"
    warmups: int = 1
    attempts: int = 3

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def chain_seconds(kv_bytes: int) -> float:
    """The guess of what a chain takes; no measurement, so that every run has graphs of the same length."""
    return CHAIN_SECONDS + kv_bytes / ROOF_BYTES_PER_SECOND


def sets_of(kv_bytes: int, policy: Policy) -> int:
    """KV sets of a point."""
    return max(2, math.ceil(policy.rotating_bytes / max(1, kv_bytes)))


def passes_of(kv_bytes: int, sets: int, policy: Policy) -> int:
    """How often a replay goes over all sets."""
    return max(1, math.ceil(policy.replay_seconds / (sets * chain_seconds(kv_bytes))))


@dataclass(frozen=True, slots=True)
class Block:
    """The samples of one point, in ns per chain.

    Attributes:
        samples: `samples[arm][round]`.
        empty: of the rounds that timed the empty chain.
        window: what was seen of the device; `dirty` is empty when it can be trusted, `discarded` are earlier windows
            of the same block that could not, with their samples.
    """

    samples: tuple[tuple[int, ...], ...]
    empty: tuple[int, ...]
    window: Mapping[str, Any]

    @property
    def net(self) -> tuple[tuple[int, ...], ...]:
        """`samples` with the empty chain of the same round taken off; needs one in every round."""
        return tuple(tuple(s - e for s, e in zip(arm, self.empty, strict=True)) for arm in self.samples)


def rotated(count: int, number: int) -> list[int]:
    """The order of `count` arms in round `number`: each begins a round, and each pair meets in either order."""
    order = list(range(count)) if number // count % 2 == 0 else list(reversed(range(count)))
    start = number % count
    return order[start:] + order[:start]


def schedule(arms: int, rounds: int, empty_every: int) -> list[int]:
    """What is replayed, in order: arms by index, the empty chain as index `arms`."""
    order: list[int] = []
    for number in range(rounds):
        count = arms + (number % empty_every == 0)
        order += rotated(count, number)
    return order


@dataclass(frozen=True, slots=True)
class Job:
    """What is replayed at one point: the arms' graphs, the empty chain, and how many chains a replay holds."""

    graphs: tuple[Graph, ...]
    empty: Graph
    chains: int


class Stopwatch(Protocol):
    """The part of a `card.Card` that measuring needs."""

    def start(self, graphs: Sequence[Graph]) -> None: ...

    def finish(self) -> list[float]: ...

    def look(self) -> dict[str, Any]: ...


class TimingError(RuntimeError):
    """A replay took no time, or one that is no number."""


Samples = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""`samples` and `empty` of a block."""


def take(
    card: Stopwatch, points: Sequence[Callable[[], Job]], policy: Policy, rounds: int | None = None
) -> list[Block]:
    """Time the arms against one another, point by point, each point in a window of its own.

    A look takes a millisecond, so it is taken while the device replays: the one at the start of a block ends the window
    before it as well. Blocks whose window was dirty are taken again after all points.

    Args:
        card: the device.
        points: each makes the plans of its point and returns what to replay; called right before.
        policy: how; a block whose window was dirty is taken again, as often as it allows.
        rounds: other than the policy's.

    Raises:
        TimingError: a time that is none.
    """
    count = rounds or policy.rounds
    looks: list[dict[str, Any]] = []
    taken = [_rounds(card, ready(), policy, count, lambda: looks.append(card.look())) for ready in points]
    looks.append(card.look())
    windows = [between(before, after) for before, after in pairwise(looks)]
    blocks: list[Block] = []
    for ready, samples, window in zip(points, taken, windows, strict=True):
        blocks.append(_clean(card, ready, policy, count, Block(*samples, window), looks))
    return blocks


def _clean(
    card: Stopwatch,
    ready: Callable[[], Job],
    policy: Policy,
    rounds: int,
    block: Block,
    looks: list[dict[str, Any]],
) -> Block:
    """A block, taken again while its window is dirty and the policy allows; adds to the `looks`, of which the last is
    the one before."""
    discarded: list[dict[str, Any]] = []
    while block.window["dirty"] and len(discarded) + 1 < policy.attempts:
        discarded.append({**block.window, "samples": [list(arm) for arm in block.samples], "empty": list(block.empty)})
        samples = _rounds(card, ready(), policy, rounds)
        looks.append(card.look())
        block = Block(*samples, between(*looks[-2:]))
    return replace(block, window={**block.window, "discarded": discarded}) if discarded else block


def _rounds(
    card: Stopwatch, job: Job, policy: Policy, rounds: int, meanwhile: Callable[[], None] = lambda: None
) -> Samples:
    """The samples of a block; `meanwhile` is called once all of it is enqueued."""
    everything = [*job.graphs, job.empty]
    order = schedule(len(job.graphs), rounds, policy.empty_every)
    # The warm-up also keeps the GPU busy while the first rounds are enqueued, so that no replay waits for the host.
    warmups = list(range(len(everything))) * policy.warmups
    card.start([everything[index] for index in warmups + order])
    meanwhile()
    times = card.finish()[len(warmups) :]
    samples: list[list[int]] = [[] for _ in everything]
    for index, nanoseconds in zip(order, times, strict=True):
        if not (math.isfinite(nanoseconds) and nanoseconds > 0):
            raise TimingError(f"a replay of {job.chains} chains took {nanoseconds} ns by the device's clock")
        samples[index].append(round(nanoseconds / job.chains))
    return tuple(map(tuple, samples[:-1])), tuple(samples[-1])
