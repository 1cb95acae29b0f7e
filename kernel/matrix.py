"""The matrix of correctness: cases that bring everything the contract promises together, pair by pair.

What is compiled into a binary (geometry, formats, knobs, engine, factors) is covered pairwise by some hundred binaries;
what is decided at run time (lengths, splits, margins, layouts, places of tensors) is covered pairwise on top, also
against what is compiled in, by at least four cases a binary.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np

from mjolnir.kernel.case import QUERY_PLACES, SCALE_SHAPES, Case
from mjolnir.kernel.cases import MAX_TOKENS, shapes
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.engine import ENGINES, Engine, engine_for, refusal
from mjolnir.kernel.geometry import DTYPES, HEAD_DIMS, PAGE_SIZES, Q_FORMATS, Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.layouts import LAYOUTS
from mjolnir.kernel.pairwise import TRIES, Pair, Row, all_pairs, covering, pairs_of
from mjolnir.kernel.variant import Variant

LEAST_CASES = 400
FEW_MISSING = 600
"""Pairs not met yet, at most, from which on cases are also made for them and not by chance alone."""

MOST_ROWS = 60_000
"""Query rows of one case over all sequences and heads; a crowd of long blocks is made smaller."""

SETTINGS = (
    Setting(),
    Setting(ctas_per_sm=1, kv_stages=2, pdl=1),
    Setting(ctas_per_sm=1, l2_prefetch=3),
    Setting(ctas_per_sm=2, kv_stages=2, kv_evict_first=0),
    Setting(ctas_per_sm=3, pdl=1, l2_prefetch=8),
    Setting(ctas_per_sm=1, consumer_warps=8, pdl=1),
)

BINARY_AXES: Mapping[str, tuple[Any, ...]] = {
    "head_dim": HEAD_DIMS,
    "page_size": PAGE_SIZES,
    "dtype": DTYPES,
    "gqa": (1, 2, 3, 4, 5, 7, 8, 12, 16, 24),
    "heads_kv": (1, 2, 3, 8),
    "q_len": (1, 2, 3, 4, 8, 16),
    "causal": (True, False),
    "q_format": Q_FORMATS,
    "q_mul": (False, True),
    "o_mul": (False, True),
    "lse": (False, True),
    "merge": (True, False),
    "setting": SETTINGS,
    "engine": (None, *ENGINES),
}

CASE_AXES: Mapping[str, tuple[Any, ...]] = {
    "shape": (
        "edges", "one-long", "halves", "fifths", "grown", "clamped", "crowd", "loud", "drafts", "tail", "alone",
    ),
    "max_splits": (0, 1, 2, 3, 5, 64, 512),
    "margin": (0, 1, 16),
    "layout": LAYOUTS,
    "token_major": (None, False, True),
    "block_gap": (0, 16, 256),
    "scales": SCALE_SHAPES,
    "scale_gain": (1.0, 0.7),
    "query": QUERY_PLACES,
    "out": QUERY_PLACES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """One case with what it is run with.

    Attributes:
        case: the problem.
        setting: the knobs; `max_splits` as in the case.
        engine: the engine's name, None = the best.
        lse: whether the log-sum-exp is asked for.
        out: where O lies, as `Case.query`.
    """

    case: Case
    setting: Setting
    engine: str | None
    lse: bool
    out: str

    def variant(self, device: Device) -> Variant:
        """What is compiled for it."""
        case = self.case
        return Variant.of(
            self.setting, case.geometry, device, engine=self.engine, lse=self.lse, q_mul=case.q_mul, o_mul=case.o_mul
        )

    def shape(self, device: Device) -> Engine:
        """The engine on `device`."""
        return engine_for(self.case.geometry, device.arch, self.engine, self.setting.consumer_warps)

    def grid(self, device: Device) -> int:
        """CTAs on `device`."""
        return device.sm_count * self.setting.ctas_per_sm


def matrix_cases(seed: int, count: int = 420, device: Device = H200) -> tuple[Probe, ...]:
    """The matrix for one device: the same for the same arguments.

    Args:
        seed: of which values meet, and of the cases' numbers.
        count: cases; `LEAST_CASES` cover all pairs, fewer are the first of them.
        device: for which settings are feasible, engines run and grids are made.
    """
    rows = matrix_rows(seed, count, device)
    return tuple(_probe(row, seed * 10_000 + number, device) for number, row in enumerate(rows))


def matrix_rows(seed: int, count: int, device: Device) -> list[Row]:
    """The matrix as values of the axes."""
    rng = random.Random(seed)
    binaries, _ = binary_rows(device, rng)
    return _with_cases(binaries, count, rng)


def binary_rows(device: Device, rng: random.Random) -> tuple[list[Row], set[Pair]]:
    """What is compiled, and the pairs that cannot be: one query token that is not causal, and knobs that fit no engine
    with the other value."""
    return covering(BINARY_AXES, lambda row: _possible(row, device), rng)


def binary_geometry(row: Mapping[str, Any]) -> Geometry:
    """The geometry of a row of `BINARY_AXES`."""
    names = ("heads_kv", "head_dim", "page_size", "q_len", "causal", "q_format", "dtype")
    return Geometry(heads_q=row["gqa"] * row["heads_kv"], **{name: row[name] for name in names})


def _possible(row: Row, device: Device) -> bool:
    """Whether a binary can be: with one query token there is nothing to hide, and knobs and engine must fit."""
    if row["q_len"] == 1 and not row["causal"]:
        return False
    geometry = binary_geometry(row)
    if row["engine"] is not None and refusal(row["engine"], geometry, device.arch):
        return False
    try:
        Variant.of(row["setting"], geometry, device, engine=row["engine"])
    except ValueError:
        return False
    return True


def _with_cases(binaries: list[Row], count: int, rng: random.Random) -> list[Row]:
    """Rows of both kinds of axes: the binaries in turn, each time with the case that brings most together anew."""
    missing = all_pairs({**BINARY_AXES, **CASE_AXES}) - all_pairs(BINARY_AXES)
    rows: list[Row] = []
    for binary in cycle(binaries):
        if len(rows) >= count:
            return rows
        splits = [n for n in CASE_AXES["max_splits"] if (n != 1) == binary["merge"]]
        axes = {**{name: (value,) for name, value in binary.items()}, **CASE_AXES, "max_splits": splits}
        tries = [{name: rng.choice(values) for name, values in axes.items()} for _ in range(TRIES)]
        if len(missing) < FEW_MISSING:
            tries += [{**tries[0], **dict(pair)} for pair in sorted(missing, key=repr) if _fits(pair, axes)]
        best = max(tries, key=lambda row: len(pairs_of(row) & missing))
        missing -= pairs_of(best)
        rows.append(best)
    return rows


def _fits(pair: Pair, axes: Mapping[str, Any]) -> bool:
    """Whether a pair's values are among those of the axes."""
    return all(value in axes[name] for name, value in pair)


def _probe(row: Row, seed: int, device: Device) -> Probe:
    geometry = binary_geometry(row)
    setting = replace(row["setting"], max_splits=row["max_splits"])
    engine = engine_for(geometry, device.arch, row["engine"], setting.consumer_warps)
    grid = device.sm_count * setting.ctas_per_sm
    case = _case(row["shape"], geometry, grid, engine, np.random.default_rng(seed))
    names = ("max_splits", "layout", "token_major", "block_gap", "scales", "scale_gain", "query", "q_mul", "o_mul")
    margin = max(case.margin, row["margin"])
    case = replace(case, margin=margin, seed=seed, **{name: row[name] for name in names})
    return Probe(case, setting, row["engine"], row["lse"], row["out"])


def _case(shape: str, geometry: Geometry, grid: int, engine: Engine, rng: np.random.Generator) -> Case:
    """A case by the name of its shape; lengths that are not the gate's are drawn from `rng`."""
    q_len = geometry.q_len
    drawn: dict[str, tuple[int, ...]] = {
        "drafts": (1, 1, *(int(n) for n in rng.integers(0, 2 * q_len + 2, 24)), 1, 1),
        "tail": tuple(int(min(n, 2500)) for n in rng.pareto(1.1, 14) * 40),
        "alone": (int(rng.integers(1, MAX_TOKENS)),),
    }
    gates = {case.name: case for case in shapes(geometry, grid, engine)}
    case = gates[shape] if shape in gates else Case(shape, geometry, _few(drawn[shape], MAX_TOKENS), 0)
    most = max(1, MOST_ROWS // (geometry.heads_q * q_len)) if shape == "crowd" else len(case.lengths)
    return replace(case, lengths=case.lengths[:most])


def _few(lengths: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The first of them that have no more tokens together."""
    total = np.cumsum(lengths)
    return lengths[: max(1, int((total <= most).sum()))]
