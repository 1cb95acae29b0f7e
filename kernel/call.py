"""Calls that were checked once, recognised when they come again, so that a call costs the host little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mjolnir.kernel import arguments
from mjolnir.kernel.binding import View, form_of
from mjolnir.kernel.layouts import check_views

if TYPE_CHECKING:
    import torch

    from mjolnir.kernel.geometry import Geometry

ARGUMENTS = (
    "query", "k_cache", "v_cache", "block_table", "seq_lens", "out", "k_scale", "v_scale", "lse", "q_mul", "o_mul",
)  # fmt: skip
"""The tensors of a call, in the order in which `Calls.recognise` takes them."""

MAX_FORMS = 4096
"""Forms that are remembered; with one more all are forgotten, and checked again as they come."""


@dataclass(frozen=True, slots=True)
class Call:
    """How arguments of one form are given to the kernel.

    Attributes:
        batch: sequences.
        tokens: rows of query and output that are used, `batch * q_len`.
        pack_query, pack_out: whether the kernel cannot work on the tensor itself, and gets a copy.
        query to lse: the view that is given for the argument; None = as it is, or absent.
    """

    batch: int
    tokens: int
    pack_query: bool
    pack_out: bool
    query: View | None = None
    k_cache: View | None = None
    v_cache: View | None = None
    block_table: View | None = None
    seq_lens: View | None = None
    out: View | None = None
    k_scale: View | None = None
    v_scale: View | None = None
    lse: View | None = None


class Calls:
    """The calls that one runner has seen.

    Args:
        geometry: the problem.
        device: where all tensors must be.
        max_batch: the largest batch.
        capacity: tokens that a block-table row must hold.
        optional: which of `lse`, `q_mul` and `o_mul` must be given; the others must not.
    """

    def __init__(
        self, geometry: Geometry, device: torch.device, max_batch: int, capacity: int, optional: Mapping[str, bool]
    ) -> None:
        self._geometry, self._device = geometry, device
        self._max_batch, self._capacity, self._optional = max_batch, capacity, optional
        self._seen: dict[object, Call] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def recognise(self, *given: torch.Tensor | None) -> Call:
        """What was found out about arguments of this form before, else what a check finds now.

        Args:
            given: in the order of `ARGUMENTS`; shapes as `Runner.run` has them.

        Raises:
            ValueError, TypeError: an argument is wrong; the message says which and why.
        """
        try:
            form = tuple([None if tensor is None else form_of(tensor) for tensor in given])
        except AttributeError:  # no tensor: the check says which
            return self._check(given)
        call = self._seen.get(form)
        if call is None:
            call = self._check(given)
            if len(self._seen) >= MAX_FORMS:
                self._seen.clear()
            self._seen[form] = call
        return call

    def _check(self, given: tuple[torch.Tensor | None, ...]) -> Call:
        tensors = self._tensors(given)
        geometry, (batch, tokens) = self._geometry, self._sizes(tensors["seq_lens"], tensors["block_table"])
        check_views(tensors["k_cache"], tensors["v_cache"], geometry)
        views = {
            "block_table": arguments.as_rows(tensors["block_table"]),
            "seq_lens": arguments.as_rows(tensors["seq_lens"]),
        }
        for name in ("query", "out"):
            views[name] = arguments.check_query(name, tensors[name], geometry, tokens)
        arguments.check_written("out", views["out"])
        for name in ("k_cache", "v_cache"):
            views[name] = arguments.as_bytes(tensors[name])
        for name in ("k_scale", "v_scale"):
            views[name] = arguments.spread_scale(name, tensors[name], batch, geometry.heads_kv)
        if "lse" in tensors:
            views["lse"] = arguments.check_float32("lse", tensors["lse"], tokens, geometry.heads_q, more_rows=True)
        for name in ("q_mul", "o_mul"):
            if name in tensors:
                arguments.check_float32(name, tensors[name], geometry.heads_q, geometry.head_dim)
                arguments.check_aligned(name, tensors[name])
        pack_query, pack_out = (not arguments.aligned(tensors[name], views[name]) for name in ("query", "out"))
        needed = {name: view.needed(tensors[name]) for name, view in views.items()}
        return Call(batch, tokens, pack_query, pack_out, **needed)

    def _tensors(self, given: tuple[torch.Tensor | None, ...]) -> dict[str, torch.Tensor]:
        """The arguments that are there, by name."""
        tensors: dict[str, torch.Tensor] = {}
        for name, value in zip(ARGUMENTS, given, strict=True):
            wanted = self._optional.get(name, True)
            if name in self._optional and (value is not None) != wanted:
                raise ValueError(f"{name} is given exactly when the runner was made with {name}=True")
            if wanted:
                tensors[name] = arguments.check_tensor(name, value, self._device)
        return tensors

    def _sizes(self, seq_lens: torch.Tensor, table: torch.Tensor) -> tuple[int, int]:
        """Sequences and tokens."""
        arguments.check_int32("seq_lens", seq_lens, (None,))
        batch, page = seq_lens.shape[0], self._geometry.page_size
        arguments.check_int32("block_table", table, (batch, None))
        if not 1 <= batch <= self._max_batch or table.shape[1] * page < self._capacity:
            raise ValueError(
                f"a batch of {batch} and a table of {table.shape[1]} pages do not fit this runner: "
                f"1 to {self._max_batch} sequences, at least {-(-self._capacity // page)} pages a row"
            )
        return batch, batch * self._geometry.q_len
