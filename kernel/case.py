"""A case: the recipe of one small problem, hashable and a few bytes, from which tensors are made anywhere the same."""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.kernel.device import H200
from mjolnir.kernel.engine import Engine, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.plan import Plan, make_plan

SCALE_SHAPES = ("one", "head", "sequence")
QUERY_PLACES = ("plain", "fused", "odd")


@dataclass(frozen=True, slots=True)
class Case:
    """The recipe of one case.

    Attributes:
        name: what it is about.
        geometry: the problem.
        lengths: tokens of each sequence as the kernel sees them; those above the table's capacity are clamped.
        max_splits: the knob with which it is planned.
        margin: tokens by which lengths may have grown since the plan; some of the lengths did.
        table_pages: columns of the block table; 0 = two more than the longest sequence needs.
        layout: cache layout.
        token_major: memory order where it is not the layout's own.
        block_gap: bytes between the cache's blocks.
        scales: shape of k_scale and v_scale: "one", "head" (heads_kv,) or "sequence" (batch, heads_kv).
        query: "plain", "fused" (a view of a wider QKV buffer) or "odd" (a token stride that TMA does not take).
        query_gain: factor of all queries, taken off k_scale again: above 2^15 they do not fit f16 as they are.
        scale_gain: softmax scale over `head_dim ** -0.5`.
        q_mul, o_mul: whether there are factors of Q and O.
        seed: of all random numbers.
    """

    name: str
    geometry: Geometry
    lengths: tuple[int, ...]
    max_splits: int
    margin: int = 0
    table_pages: int = 0
    layout: str = "BHN2D"
    token_major: bool | None = None
    block_gap: int = 0
    scales: str = "one"
    query: str = "plain"
    query_gain: float = 1.0
    scale_gain: float = 1.0
    q_mul: bool = False
    o_mul: bool = False
    seed: int = 0

    @property
    def width(self) -> int:
        """Columns of the block table."""
        return self.table_pages or -(-max(self.lengths) // self.geometry.page_size) + 2

    @property
    def capacity(self) -> int:
        """Tokens that a row of the block table can hold."""
        return self.width * self.geometry.page_size

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return self.scale_gain * float(self.geometry.head_dim**-0.5)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of each sequence that there are, after clamping."""
        return tuple(min(length, self.capacity) for length in self.lengths)

    @property
    def planned(self) -> tuple[int, ...]:
        """Lengths to plan with: up to `margin` below those that the kernel sees, and never zero where those are not."""
        growth = (7 * b % (self.margin + 1) for b in range(len(self.lengths)))
        return tuple(max(n - grown, min(n, 1)) for n, grown in zip(self.lengths, growth, strict=True))

    def plan(self, grid: int, engine: Engine | None = None) -> Plan:
        """The plan for a grid of `grid` CTAs; without an engine, for the H200's."""
        engine = engine or engine_for(self.geometry, H200.arch)
        heads = self.geometry.heads_kv * engine.blocks
        return make_plan(self.planned, heads, grid, self.max_splits, capacity=self.capacity, margin=self.margin)
