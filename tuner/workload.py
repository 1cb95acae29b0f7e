"""A workload: weighted points, and the batch buckets that table rows serve."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "mjolnir.workload/1"


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
        if min(self.contexts) < 0 or not self.weight > 0:
            raise ValueError(f"contexts must not be negative, and the weight ({self.weight}) must be above zero")

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
        if values.get("schema") != SCHEMA:
            raise ValueError(f"this is no workload: schema is {values.get('schema')!r}, expected {SCHEMA!r}")
        points = []
        for number, entry in enumerate(values.get("points") or ()):
            try:
                batch, contexts = entry["batch"], entry["contexts"]
                lengths = (contexts,) * batch if isinstance(contexts, int) else tuple(contexts)
                points.append(Point(batch, lengths, float(entry.get("weight", 1.0))))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"point {number} of workload {values.get('name')!r} is malformed: {error!r}"
                ) from error
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
            return cls.from_dict(json.loads(path.read_text()))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error


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

PRESETS: Mapping[str, Workload] = {DECODE8.name: DECODE8}
