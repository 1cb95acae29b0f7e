"""What the timed launches read: rotating KV sets with fresh block tables and queries, and what must come out.

A point has so many sets that a set has left the L2 cache before it is read again. All sets of a point lie in one pool
of random fp8 values. KV contents are drawn once per process; renewing a point draws new page permutations, queries and
written rows, and, where it moves, a new offset of each set within its room. Addresses change only with a move: graphs
captured before hold until then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mjolnir.kernel.formats import DTYPES
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.layouts import views
from mjolnir.tuner.gpu.plans import kv_bytes_of
from mjolnir.tuner.workload import Point

OFFSET_STEP = 256
"""Bytes of which a set's offset is a multiple, as the addresses of an allocator are."""

OFFSETS = 1024
"""How many offsets a set can have."""

WORD = 8
"""Bytes that the writer writes at a time."""

HOSTILE_PAGE = 2**31 - 1
"""Fills block-table entries past a sequence's end, which may be any number and are never followed."""

LAYOUT = {
    ("head-major", "together"): "BHN2D",
    ("token-major", "together"): "BNH2D",
    ("head-major", "apart"): "2BHND",
    ("token-major", "apart"): "2BNHD",
}
FILL_ELEMENTS = 1 << 26
FILL_TURN = 9973
"""Bytes by which each chunk of a pool is turned against the one before: odd, so that no two pages are ever alike."""

READ_ONLY = ("KV cache", "block table", "lengths", "queries")
"""What a launch reads and must not write to; its writer leaves there what lay there before."""

_VERSIONS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class KVSet:
    """The tensors of one launch; views of its point's buffers; tokens = batch * q_len.

    Attributes:
        q, out: (tokens, heads_q, head_dim).
        q_source: what the writer copies to `q`.
        k, v: (num_pages, page_size, heads_kv, head_dim), uint8.
        block_table: (batch, width) int32.
        words, word_source: which 8-byte words of the pool the writer writes, and what: the last q_len tokens of each
            sequence.
    """

    q: Tensor
    out: Tensor
    q_source: Tensor
    k: Tensor
    v: Tensor
    block_table: Tensor
    words: Tensor
    word_source: Tensor


class PointInputs:
    """All sets of one point.

    Args:
        geometry, placement, point: the problem.
        width: columns of the block table.
        sets: how many.
        device: where.
        seed: of the KV contents; `renew` has seeds of its own.

    Attributes:
        sets: see `KVSet`; made anew by a moving `renew`.
        seq_lens: (batch,) int32.
        version: changes with each move, never used twice; addresses hold as long as it does.
        seed: of the last renewal.
        pool: all KV bytes, as 8-byte words.
        out, q, q_source: over all sets, (sets, tokens, heads_q, head_dim).
        sink: where the reader of O puts it, (tokens, heads_q, head_dim).
    """

    def __init__(
        self, geometry: Geometry, placement: Placement, point: Point, *, width: int, sets: int, device: str, seed: int
    ) -> None:
        self.geometry, self.point, self.device = geometry, point, device
        self.scale = geometry.head_dim**-0.5
        self.k_scale = torch.tensor(1.0, device=device)
        self.v_scale = torch.tensor(1.0, device=device)
        self._layout = LAYOUT[placement.layout, placement.kv]
        lengths = list(enumerate(point.contexts))
        dealt = [(row, page) for row, length in lengths for page in range(-(-length // geometry.page_size))]
        last = [(row, length - 1 - back) for row, length in lengths for back in range(min(length, geometry.q_len))]
        self._dealt, self._last = _columns(dealt, device), _columns(last, device)
        self._pages = max(1, len(self._dealt[0]))
        self._bytes = self._pages * geometry.page_size * geometry.kv_bytes_per_token
        self._room = self._bytes + OFFSET_STEP * OFFSETS
        self._offsets = [0] * sets
        self.seq_lens = torch.tensor(point.contexts, dtype=torch.int32, device=device)
        self.pool = _random_codes(sets * self._room, device, seed).view(torch.int64)
        shape = (sets, point.batch * geometry.q_len, geometry.heads_q, geometry.head_dim)
        dtype = DTYPES[geometry.dtype]
        self.q, self.q_source, self.out = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(3))
        self.sink = torch.zeros(shape[1:], dtype=dtype, device=device)
        self.tables = torch.full((sets, point.batch, width), HOSTILE_PAGE, dtype=torch.int32, device=device)
        self.sets: tuple[KVSet, ...] = ()
        self._words = self._word_source = torch.empty(0, dtype=torch.int64, device=device)
        self.version = 0
        self.seed = 0
        self._reference: tuple[Tensor, Tensor] | None = None
        self._fingerprint = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def kv_bytes(self) -> int:
        """KV bytes that one launch reads."""
        return kv_bytes_of(self.point, self.geometry)

    def renew(self, seed: int, *, move: bool) -> None:
        """Draw new page permutations, queries and written rows, and with `move` new offsets, from `seed`."""
        generator = torch.Generator(self.device).manual_seed(seed)
        if move or not self.sets:
            steps = torch.randint(OFFSETS, (len(self._offsets),), generator=generator, device=self.device)
            self._offsets = [OFFSET_STEP * step for step in steps.tolist()]
            self.version = next(_VERSIONS)
        self.q_source.copy_(_normal(self.q_source.shape, generator, self.device))
        self._deal(generator)
        words = self._last_words()
        source = _codes(_normal((len(words), words.shape[1] * WORD), generator, self.device)).view(torch.int64)
        if move or not self.sets:
            self._words, self._word_source = words, source
            self.sets = self._make_sets()
        else:  # graphs hold the old tensors' addresses
            self._words.copy_(words)
            self._word_source.copy_(source)
        self.pool.index_copy_(0, self._words.flatten(), self._word_source.flatten())
        self.q.copy_(self.q_source)
        self.seed = seed
        self._reference = None
        self._fingerprint = self._take_fingerprint()

    def _deal(self, generator: torch.Generator) -> None:
        """Deal each set's pages out in random order; as all of a renewal for all sets at once, to save launches."""
        rows, columns = self._dealt
        keys = torch.rand((len(self.tables), self._pages), generator=generator, device=self.device)
        self.tables[:, rows, columns] = keys.argsort(1)[:, : len(rows)].int()

    def _begins(self) -> list[int]:
        """The byte of the pool at which each set begins."""
        return [number * self._room + offset for number, offset in enumerate(self._offsets)]

    def _views(self) -> tuple[Tensor, Tensor]:
        """K and V of the first set."""
        begin = self._begins()[0]
        memory = self.pool.view(torch.uint8)[begin : begin + self._bytes]
        return views(memory.view(self._shape()), self.geometry, self._layout)

    def _make_sets(self) -> tuple[KVSet, ...]:
        begins, first = self._begins(), self._views()
        parts = (
            [
                part.as_strided(part.shape, part.stride(), int(part.storage_offset()) + begin - begins[0])
                for part in first
            ]
            for begin in begins
        )
        rows = (self.q, self.out, self.q_source, self.tables, self._words, self._word_source)
        return tuple(
            KVSet(q, out, source, k, v, table, words, word_source)
            for (k, v), q, out, source, table, words, word_source in zip(
                parts, *(tensor.unbind(0) for tensor in rows), strict=True
            )
        )

    def _shape(self) -> tuple[int, ...]:
        sizes = {"B": self._pages, "H": self.geometry.heads_kv, "N": self.geometry.page_size}
        if self._layout.endswith("2D"):
            return (*(sizes[name] for name in self._layout[:3]), 2 * self.geometry.head_dim)
        return (2, *(sizes[name] for name in self._layout[1:4]), self.geometry.head_dim)

    def _last_words(self) -> Tensor:
        """Indices into `pool`, (sets, words), of the K and V rows of each sequence's last q_len tokens, all heads."""
        rows, tokens = self._last
        page = self.tables[:, rows, tokens // self.geometry.page_size].long()
        slot = tokens % self.geometry.page_size
        begins = self._begins()
        later = torch.tensor(begins, device=self.device)[:, None] - begins[0]
        heads = torch.arange(self.geometry.heads_kv, device=self.device)
        within = torch.arange(0, self.geometry.head_dim, WORD, device=self.device)
        parts = [
            int(part.storage_offset())
            + (later + page * part.stride(0) + slot * part.stride(1))[..., None, None]
            + (heads * part.stride(2))[:, None]
            + within
            for part in self._views()
        ]
        return torch.stack(parts, 1).flatten(1) // WORD

    def reference(self) -> tuple[Tensor, Tensor]:
        """What a right launch gives, and by how much each element may differ: f32, as `out`; made once a renewal."""
        if self._reference is None:
            from mjolnir.kernel.reference import attention_f32
            from mjolnir.kernel.tolerance import bound

            k, v, tables = self._as_one_cache()
            constants = {**self._constants(), "seq_lens": self.seq_lens.repeat(len(self.sets))}
            out, _ = attention_f32(self.q.flatten(0, 1), k, v, tables, **constants)
            self._reference = out.view_as(self.out), bound(out, self.geometry).view_as(self.out)
        return self._reference

    def _as_one_cache(self) -> tuple[Tensor, Tensor, Tensor]:
        """All sets as one batch over one cache: K, V, and block tables (sets * batch, width).

        A page of it begins at every multiple of `OFFSET_STEP` of the pool: its pages overlap, and no launch is a set's.
        """
        begins, first = self._begins(), self._views()
        step = first[0].stride(0) // OFFSET_STEP
        places = torch.tensor(begins, device=self.device)[:, None, None] // OFFSET_STEP
        count = begins[-1] // OFFSET_STEP + (self._pages - 1) * step + 1
        k, v = (
            part.as_strided(
                (count, *part.shape[1:]), (OFFSET_STEP, *part.stride()[1:]), int(part.storage_offset()) - begins[0]
            )
            for part in first
        )
        return k, v, (places + self.tables.long() * step).flatten(0, 1)

    @contextmanager
    def other_queries(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Meanwhile the writer gives the last set other queries; what a right launch then gives, and its bound."""
        from mjolnir.kernel.reference import attention_f32
        from mjolnir.kernel.tolerance import bound

        last = self.sets[-1]
        kept = last.q_source.clone()
        generator = torch.Generator(self.device).manual_seed(seed)
        last.q_source.copy_(_normal(kept.shape, generator, self.device))
        try:
            out, _ = attention_f32(last.q_source, last.k, last.v, last.block_table, **self._constants())
            yield out, bound(out, self.geometry)
        finally:
            last.q_source.copy_(kept)
            last.q.copy_(kept)

    def _constants(self) -> dict[str, Any]:
        names = ("seq_lens", "geometry", "scale", "k_scale", "v_scale")
        return {name: getattr(self, name) for name in names}

    def changed(self) -> str:
        """What a launch has written to that it should only read; empty when nothing."""
        return ", ".join(itertools.compress(READ_ONLY, self.written().tolist()))

    def written(self) -> Tensor:
        """Whether a launch has written to each of `READ_ONLY`; bool, on the device, and nothing is waited for."""
        return self._take_fingerprint() != self._fingerprint

    def _take_fingerprint(self) -> Tensor:
        parts = (self.pool, self.tables, self.seq_lens, self.q.view(torch.int16))
        return torch.stack([part.sum(dtype=torch.int64) for part in parts])


def _columns(pairs: list[tuple[int, int]], device: str) -> tuple[Tensor, Tensor]:
    """Firsts and seconds of some pairs, int64 on the device."""
    both = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous().to(device)
    return both[0], both[1]


def _normal(shape: tuple[int, ...], generator: torch.Generator, device: str) -> Tensor:
    return torch.randn(shape, generator=generator, device=device)


def _codes(values: Tensor) -> Tensor:
    """Finite e4m3 codes of normal numbers."""
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def _random_codes(count: int, device: str, seed: int) -> Tensor:
    """`count` bytes of e4m3: a chunk of normal numbers, then the same chunk again and again, each time turned further.

    Drawing all of a large pool would take longer than to measure on it, and its f32 numbers would not fit.
    """
    generator = torch.Generator(device).manual_seed(seed)
    codes = torch.empty(count, dtype=torch.uint8, device=device)
    first = codes[:FILL_ELEMENTS]
    first.copy_(_codes(_normal(first.shape, generator, device)))
    for number in range(1, -(-count // FILL_ELEMENTS)):
        chunk = codes[number * FILL_ELEMENTS : (number + 1) * FILL_ELEMENTS]
        turned = first[number * FILL_TURN % FILL_ELEMENTS :][: len(chunk)]
        chunk[: len(turned)].copy_(turned)
        chunk[len(turned) :].copy_(first[: len(chunk) - len(turned)])
    return codes
