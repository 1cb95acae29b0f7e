"""The online softmax of a chunk as an engine keeps it, for the emulator; the rule is in `mjolnir.kernel.emulator`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mjolnir.kernel.engine import TILE_WARPS, WGMMA


@dataclass(frozen=True, slots=True)
class Softmax:
    """How an engine keeps the softmax of a chunk.

    Attributes:
        states: softmax states; one after the other they own equal shares of a step's tokens.
        tiles: tiles of one step.
        slack: a maximum is raised when a tile's is larger by more than this, as a power of two.
    """

    states: int
    tiles: int
    slack: float

    @classmethod
    def of(cls, engine: str, warps: int = TILE_WARPS) -> Softmax:
        """That of an engine by name, with so many computing warps."""
        return cls(1, 1, 8.0) if engine == WGMMA else cls(warps, warps // TILE_WARPS, 0.0)


@dataclass(frozen=True, slots=True)
class State:
    """Softmax state of every chunk, part of a tile and query row; `c` turns raw scores into powers of two.

    Attributes:
        peak, total: m and l, (chunks, states, rows).
        out: O, (chunks, states, rows, head_dim).
        c: (chunks, 1, rows).
        slack: as in `Softmax`.
    """

    peak: Tensor
    total: Tensor
    out: Tensor
    c: Tensor
    slack: float

    @classmethod
    def fresh(cls, chunks: int, softmax: Softmax, c: Tensor, head_dim: int) -> State:
        """Nothing seen yet, with c (chunks, rows)."""
        shape = (chunks, softmax.states, c.shape[1])
        peak = torch.full(shape, -torch.inf, device=c.device)
        total, out = torch.zeros(shape, device=c.device), torch.zeros(*shape, head_dim, device=c.device)
        return cls(peak, total, out, c[:, None], softmax.slack)

    def update(self, scores: Tensor, seen: Tensor, values: Tensor) -> None:
        """One step for the first `len(scores)` chunks: scores (n, states, rows, keys), values (n, states, keys, D)."""
        old, total, out, c = (part[: len(scores)] for part in (self.peak, self.total, self.out, self.c))
        highest = scores.masked_fill(~seen, -torch.inf).amax(-1)
        peak = torch.where(old.isinf() | (highest * c > old * c + self.slack), highest, old)
        base = torch.where(peak.isinf(), 0.0, peak) * c
        p = torch.exp2(scores * c[..., None] - base[..., None]).masked_fill(~seen, 0.0)
        alpha = torch.exp2(old * c - base).masked_fill(old.isinf(), 0.0)
        total.mul_(alpha).add_(p.sum(-1))
        out.mul_(alpha[..., None]).add_(p.half().float() @ values)
        old.copy_(peak)

    def combine(self) -> tuple[Tensor, Tensor]:
        """The states of each chunk made one: output (chunks, rows, head_dim), base-2 log-sum-exp (chunks, rows)."""
        c = self.c[:, 0]
        peak = self.peak.amax(1)
        base = torch.where(peak.isinf(), 0.0, peak)
        total, out = torch.zeros_like(peak), torch.zeros_like(self.out[:, 0])
        for state in range(self.peak.shape[1]):
            own = self.peak[:, state]
            weight = torch.exp2((own - base) * c).masked_fill(own.isinf(), 0.0)
            total += self.total[:, state] * weight
            out += self.out[:, state] * weight[..., None]
        empty = total == 0
        out = (out / total[..., None]).masked_fill(empty[..., None], 0.0)
        return out, (base * c + total.log2()).masked_fill(empty, -torch.inf)
