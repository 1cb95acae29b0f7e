"""Small cases on which a binary is judged: every kind of split, length, margin and place, and made in a blink."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from mjolnir.kernel.case import QUERY_PLACES, SCALE_SHAPES, Case
from mjolnir.kernel.case_inputs import Inputs, make_inputs
from mjolnir.kernel.device import H200
from mjolnir.kernel.emulator import emulate
from mjolnir.kernel.engine import TILE_WARPS, Engine, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import LAYOUTS

__all__ = ["MAX_TOKENS", "Case", "Expected", "Inputs", "expected", "gate_cases", "make_inputs", "shapes"]

MAX_TOKENS = 4096
"""Most tokens of one case over all its sequences: what the CPU emulates in a blink."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a right kernel gives, on the CPU.

    Attributes:
        out: (tokens, heads_q, head_dim), bf16 or f16.
        lse: (tokens, heads_q), f32, natural logarithm.
    """

    out: Tensor
    lse: Tensor


def gate_cases(
    geometry: Geometry,
    grid: int,
    *,
    merge: bool = True,
    layout: str | None = None,
    token_major: bool | None = None,
    q_mul: bool = False,
    o_mul: bool = False,
    engine: Engine | None = None,
    seed: int = 0,
) -> tuple[Case, ...]:
    """The cases of one binary.

    Args:
        geometry: the problem.
        grid: CTAs of its grid, on which it depends how many items share a run.
        merge: whether the binary's decode may be split; without, the cases have max_splits 1 alone.
        layout: layout of all cases; None = the six in turn.
        token_major: memory order of all cases; None = as the layouts are spelled.
        q_mul, o_mul: whether the binary takes factors of Q and O.
        engine: how rows are dealt out to items; None = as on the H200.
        seed: of the first case; the others count on from it.
    """
    return tuple(
        replace(
            case,
            max_splits=case.max_splits if merge else 1,
            layout=layout or LAYOUTS[number % len(LAYOUTS)],
            token_major=token_major,
            block_gap=(0, 256, 16)[number % 3],
            scales=SCALE_SHAPES[number % len(SCALE_SHAPES)],
            query=QUERY_PLACES[number // 2 % len(QUERY_PLACES)],
            q_mul=q_mul,
            o_mul=o_mul,
            seed=seed + number,
        )
        for number, case in enumerate(shapes(geometry, grid, engine))
    )


def _edges(geometry: Geometry) -> tuple[int, ...]:
    """Lengths around the borders of warps, pages, tiles and the query's block; zeros within and, as padding, behind."""
    page, q_len = geometry.page_size, geometry.q_len
    near = {
        1,
        15,
        16,
        17,
        63,
        64,
        65,
        page - 1,
        page,
        page + 1,
        127,
        128,
        129,
        193,
        q_len - 1,
        q_len,
        q_len + 1,
        64 + q_len - 1,
    }
    return (0, *sorted(near - {0}), 0, 331, 0, 0)


def shapes(geometry: Geometry, grid: int, engine: Engine | None = None) -> tuple[Case, ...]:
    """The kinds of cases by their lengths, splits and margins; places and seeds as `Case` has them."""
    page = geometry.page_size
    engine = engine or engine_for(geometry, H200.arch)
    return (
        Case("edges", geometry, _edges(geometry), 0),
        Case("one-long", geometry, (130, 2900, 1, 0, 5 * page + 1, 0), 0),
        Case("halves", geometry, (1027, 700, 3, 513, 64, 0), 2),
        Case("fifths", geometry, (77, 1501, 0, 961, 640), 5),
        Case("grown", geometry, (196, 1, 0, 1027, 65, 577, 129, 12), 0, margin=15),
        Case("clamped", geometry, (1024 + 37, 100, 1023, 0), 3, table_pages=1024 // page),
        Case("crowd", geometry, _crowd(geometry.heads_kv * engine.blocks, grid), 0),
        Case("loud", geometry, (300, 65, 16, 0), 3, query_gain=2.0 ** (17 if geometry.dtype == "bf16" else 14)),
    )


def _crowd(heads: int, grid: int) -> tuple[int, ...]:
    """More items than CTAs, twice over where the tokens suffice, so that runs hold several items."""
    batch = min(-(-9 * grid // (4 * heads)), MAX_TOKENS // 2)
    longest = min(2 * MAX_TOKENS // batch - 1, 193)
    rng = np.random.default_rng(batch)
    lengths = [int(n) for n in rng.integers(0, longest, batch, endpoint=True)]
    while sum(lengths) > MAX_TOKENS:
        lengths[lengths.index(max(lengths))] = 0
    return tuple(lengths)


def expected(
    case: Case, grid: int, engine: Engine | None = None, warps: int = TILE_WARPS, inputs: Inputs | None = None
) -> Expected:
    """The emulator's output for `case` planned on `grid` CTAs, made on the CPU.

    Without an engine it is the H200's; `inputs` are those of the case where they have been made.
    """
    engine, inputs = engine or engine_for(case.geometry, H200.arch, warps=warps), inputs or make_inputs(case)
    out, lse = emulate(plan=case.plan(grid, engine), engine=engine, warps=warps, lse=True, **inputs.arguments())
    assert lse is not None
    return Expected(out, lse)
