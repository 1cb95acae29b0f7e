"""The problems of `mjolnir bench kernel`: geometries, and the batches with their lengths at which each is timed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.answer import UsageFailure
from mjolnir.tuner.workload import DECODE8, MOST_SEQUENCES, MOST_TOKENS

EIGHT = tuple((point.batch, point.contexts[0]) for point in DECODE8.points)
"""Batch and context of the eight points of `decode8`."""

LONG_QUERIES = ((8, 8192), (64, 4096))
"""Where blocks of 4 and 8 queries are timed, and a single query beside them."""

MIXED = (65536,) + (4096,) * 31
"""One long sequence among short ones; the same tokens in equal lengths are timed beside it."""

UNIFORM = (sum(MIXED) // len(MIXED),) * len(MIXED)


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """One geometry at one batch.

    Attributes:
        geometry: the problem.
        contexts: tokens of each sequence, those of its queries among them.
    """

    geometry: Geometry
    contexts: tuple[int, ...]

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.contexts)

    @property
    def context(self) -> int:
        """Mean tokens of a sequence, which are those of each where all are equal."""
        return sum(self.contexts) // self.batch

    @property
    def lengths(self) -> str:
        """`8x8192`; unequal lengths as a sum, `1x65536+31x4096`."""
        return "+".join(f"{len(list(same))}x{length}" for length, same in groupby(self.contexts))

    @property
    def kv_bytes(self) -> int:
        """KV bytes that one launch reads."""
        return sum(self.contexts) * self.geometry.kv_bytes_per_token

    @property
    def width(self) -> int:
        """Pages of a block-table row."""
        return -(-max(self.contexts) // self.geometry.page_size)

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages of each sequence."""
        return tuple(-(-length // self.geometry.page_size) for length in self.contexts)

    def __str__(self) -> str:
        return f"{short(self.geometry)} {self.lengths}"


def short(geometry: Geometry) -> str:
    """`32/8xd128,page=64,q=1`."""
    return str(geometry).partition(",kv=")[0]


def spot(geometry: Geometry, batch: int, context: int) -> Spot:
    """`batch` sequences of `context` tokens."""
    return Spot(geometry, (context,) * batch)


MAIN = Geometry(32, 8)
"""The geometry of the targets."""


def spots() -> tuple[Spot, ...]:
    """All that is timed by default, most important geometry first.

    Raises:
        ValueError: the kernel does not support one of the geometries.
    """
    wide = Geometry(64, 8)
    paged, deep = replace(MAIN, page_size=16), Geometry(16, 2, head_dim=256)
    planned = [spot(geometry, *point) for geometry in (MAIN, paged, wide, deep) for point in EIGHT]
    planned += [Spot(MAIN, MIXED), Spot(MAIN, UNIFORM)]
    for geometry in (MAIN, wide):
        for q_len in (1, 4, 8):
            planned += [spot(replace(geometry, q_len=q_len), *point) for point in LONG_QUERIES]
    return tuple(dict.fromkeys(planned))


def select(geometries: Sequence[Geometry], points: Sequence[str]) -> tuple[Spot, ...]:
    """The spots that are asked for; what is left out stands for everything that is planned.

    Args:
        geometries: a geometry that is not among the planned ones is timed at the eight points.
        points: as `Spot.lengths` spells them; one that is not planned for a geometry is added to it.

    Raises:
        UsageFailure: a point that is not of that form.
    """
    asked = {name: parse(name) for name in points}
    planned = [item for item in spots() if not geometries or item.geometry in geometries]
    known = {item.geometry for item in planned}
    planned += [spot(geometry, *point) for geometry in geometries if geometry not in known for point in EIGHT]
    if not asked:
        return tuple(planned)
    chosen = [item for item in planned if item.contexts in asked.values()]
    if geometries:
        chosen += [Spot(geometry, contexts) for geometry in geometries for contexts in asked.values()]
    if not chosen:
        named = ", ".join(dict.fromkeys(item.lengths for item in planned))
        raise UsageFailure(f"no geometry is timed at {', '.join(points)}; name one with --geometry, or one of {named}")
    return tuple(dict.fromkeys(chosen))


def parse(text: str) -> tuple[int, ...]:
    """The lengths that `8x8192` or `1x65536+31x4096` stands for.

    Raises:
        UsageFailure: another form, or more than a point may have.
    """
    if not re.fullmatch(r"\d{1,6}x\d{1,9}(\+\d{1,6}x\d{1,9})*", text):
        raise UsageFailure(f"--point {text!r} is not of the form BATCHxTOKENS, such as 8x8192 or 1x65536+31x4096")
    parts = [tuple(map(int, part.split("x"))) for part in text.split("+")]
    if not 1 <= sum(count for count, _ in parts) <= MOST_SEQUENCES or min(min(part) for part in parts) < 1:
        raise UsageFailure(f"--point {text!r} has no sequences, more than {MOST_SEQUENCES}, or empty ones")
    if max(length for _, length in parts) > MOST_TOKENS:
        raise UsageFailure(f"--point {text!r} has a sequence of more than {MOST_TOKENS} tokens")
    return tuple(length for count, length in parts for _ in range(count))
