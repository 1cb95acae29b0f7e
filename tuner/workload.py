"""A workload: weighted points, and the batch buckets that table rows serve."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "mjolnir.workload/1"

MOST_SEQUENCES = 65_536
"""Sequences of one point."""

MOST_POINTS = 256
MOST_TOKENS = 1 << 24
"""Tokens of one sequence."""


@dataclass(frozen=True, slots=True)
class Point:
    """One batch with its context lengths.

    Attributes:
        batch: number of sequences.
        contexts: tokens of each sequence; `batch` of them.
        weight: share of the point in its bucket's mean, above zero.
    """

    batch: int
    contexts: tuple[int, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.batch < 1 or len(self.contexts) != self.batch:
            raise ValueError(f"a point of batch {self.batch} needs {self.batch} contexts, not {len(self.contexts)}")
        if min(self.contexts) < 0 or not 0 < self.weight < float("inf"):
            raise ValueError(f"contexts must not be negative, and the weight ({self.weight}) must be above zero")
        if max(self.contexts) > MOST_TOKENS:
            raise ValueError(f"a context of {max(self.contexts)} tokens is above {MOST_TOKENS}")

    @property
    def name(self) -> str:
        """`8x4096` for equal lengths; mixed lengths show their total and a digest."""
        if len(set(self.contexts)) == 1:
            return f"{self.batch}x{self.contexts[0]}"
        digest = hashlib.sha256(repr(self.contexts).encode()).hexdigest()[:6]
        return f"{self.batch}x{sum(self.contexts)}t-{digest}"

    @property
    def bucket(self) -> int:
        """The bucket that serves this batch: the power of two b with batch in (b/2, b]."""
        return bucket_of(self.batch)


def bucket_of(batch: int) -> int:
    """The smallest power of two that is at least `batch`."""
    return 1 << (batch - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Workload:
    """Named points, in a fixed order; a point is referred to by its index."""

    name: str
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError(f"workload {self.name!r} has no points")

    @property
    def buckets(self) -> tuple[int, ...]:
        """The buckets of the points, ascending."""
        return tuple(sorted({point.bucket for point in self.points}))

    def of_bucket(self, bucket: int) -> tuple[int, ...]:
        """Indices of the points of `bucket`."""
        return tuple(i for i, point in enumerate(self.points) if point.bucket == bucket)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, schema `mjolnir.workload/1`; equal contexts are written as one number."""
        points = [
            {
                "batch": point.batch,
                "contexts": point.contexts[0] if len(set(point.contexts)) == 1 else list(point.contexts),
                "weight": point.weight,
            }
            for point in self.points
        ]
        return {"schema": SCHEMA, "name": self.name, "points": points}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Workload:
        """Read the JSON form.

        Raises:
            ValueError: another schema, or a point that is malformed; the message names it.
        """
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            found = repr(values.get("schema")) if isinstance(values, Mapping) else "in no object"
            raise ValueError(f"this is no workload: schema is {found}, expected {SCHEMA!r}")
        entries = values.get("points")
        if not isinstance(entries, list) or not 0 < len(entries) <= MOST_POINTS:
            raise ValueError(f"points must be a list of 1 to {MOST_POINTS} points")
        points = []
        for number, entry in enumerate(entries):
            try:
                points.append(_point(entry))
            except ValueError as error:
                raise ValueError(f"points[{number}]: {error}") from error
        return cls(str(values.get("name", "unnamed")), tuple(points))

    @classmethod
    def load(cls, name_or_path: str) -> Workload:
        """A preset by name, or a JSON file.

        Raises:
            ValueError: neither a preset nor a readable workload file.
        """
        if name_or_path in PRESETS:
            return PRESETS[name_or_path]
        path = Path(name_or_path)
        if not path.is_file():
            raise ValueError(f"{name_or_path!r} is neither a preset ({', '.join(PRESETS)}) nor a file")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _point(entry: object) -> Point:
    """Read the JSON form of a point; ValueError says what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise ValueError("this is no object with batch, contexts and perhaps weight")
    if unknown := [name for name in entry if name not in ("batch", "contexts", "weight")]:
        raise ValueError(f"{unknown[0]!r} is none of batch, contexts, weight")
    batch, contexts, weight = entry.get("batch"), entry.get("contexts"), entry.get("weight", 1.0)
    if type(batch) is not int or not 1 <= batch <= MOST_SEQUENCES:
        raise ValueError(f"batch must be a whole number from 1 to {MOST_SEQUENCES}")
    lengths = [contexts] * batch if type(contexts) is int else contexts
    if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
        raise ValueError("contexts must be a whole number of tokens, or a list of one for each sequence")
    if type(weight) not in (int, float):
        raise ValueError("weight must be a number")
    return Point(batch, tuple(lengths), float(weight))


def uniform(batch: int, context: int, weight: float = 1.0) -> Point:
    """A point whose sequences all have `context` tokens."""
    return Point(batch, (context,) * batch, weight)


DECODE8 = Workload(
    "decode8",
    tuple(
        uniform(batch, context)
        for batch, context in (
            (1, 4096), (1, 16384), (1, 65536), (4, 8192), (8, 8192), (32, 4096), (64, 8192), (128, 2048),
        )
    ),
)  # fmt: skip
"""The eight points on which the peers were measured, in equal weights."""

MOST_KEYS = 1 << 20
"""Tokens of one point of `SERVING27`: 2 GiB of fp8 KV at 8 heads of 128, so that all its points fit a card at once."""


def _three_contexts(batch: int) -> tuple[int, ...]:
    """2K, 8K and 32K tokens; where the longest would be too much, what fits and a half and a quarter of it."""
    most = MOST_KEYS // batch
    if most >= 32768:
        return 2048, 8192, 32768
    return (2048, 8192, 16384) if most == 16384 else (most // 4, most // 2, most)


SERVING27 = Workload(
    "serving27",
    tuple(uniform(1 << power, context) for power in range(9) for context in _three_contexts(1 << power)),
)
"""Nine buckets, batch 1 to 256, of three context lengths each: what a table row has to serve, in equal weights."""

PRESETS: Mapping[str, Workload] = {preset.name: preset for preset in (DECODE8, SERVING27)}
