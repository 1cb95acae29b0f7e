"""`decode`: the kernel for users without a serving engine, as one call on torch tensors.

It is the custom operator `mjolnir::decode`, so `torch.compile(fullgraph=True)` takes it, and it can be captured into a
CUDA graph after one call of the same shapes outside (that call compiles; graphs captured on one stream share buffers
and must not be replayed at the same time).
Each call makes a plan. A model with many layers does better with `mjolnir.kernel.runner.Runner`, which plans once a
step, and with the settings that `mjolnir.backend` finds for its device; here the built-in rule is used unless a
setting is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from types import NoneType
from typing import Literal, overload

import torch
from torch import Tensor

from mjolnir.kernel import cache as binaries
from mjolnir.kernel.binding import Kept, form_of
from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.formats import DTYPES
from mjolnir.kernel.geometry import PAGE_SIZES, Geometry
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.layouts import LAYOUTS, layout_of, views
from mjolnir.kernel.rule import answers
from mjolnir.kernel.runner import MAX_BATCH
from mjolnir.kernel.runners import Key, Runners
from mjolnir.kernel.variant import Variant

MAX_RUNNERS = 64
"""Runners kept; beyond, the one that was not used for the longest time goes, unless a graph was captured with it."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}

_TENSOR = (Tensor,), "a tensor"
_SCALE = (Tensor,), "f32 on the GPU: torch.tensor(1.0, device=...)"
_OPTIONAL = (Tensor, NoneType), "a tensor, or None"
EXPECTED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "query": _TENSOR, "block_table": _TENSOR, "seq_lens": _TENSOR, "k_scale": _SCALE, "v_scale": _SCALE,
    "out": _OPTIONAL, "q_mul": _OPTIONAL, "o_mul": _OPTIONAL,
    "kv_cache": ((Tensor, tuple, list), "a tensor, or K and V apart"),
    "q_format": ((str,), "native or fp8"),
    "layout": ((str, NoneType), f"one of {', '.join(LAYOUTS)}, or None"),
    "setting": ((Setting, NoneType), "a Setting, or None"),
}  # fmt: skip
"""The types of the arguments of `decode` that are no numbers, and what to pass, in words."""


@overload
def decode(
    query: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Tensor,
    v_scale: Tensor,
    scale: float | None = ...,
    q_len: int = ...,
    causal: bool = ...,
    q_format: str = ...,
    layout: str | None = ...,
    out: Tensor | None = ...,
    return_lse: Literal[False] = ...,
    q_mul: Tensor | None = ...,
    o_mul: Tensor | None = ...,
    setting: Setting | None = ...,
) -> Tensor: ...


@overload
def decode(
    query: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Tensor,
    v_scale: Tensor,
    scale: float | None = ...,
    q_len: int = ...,
    causal: bool = ...,
    q_format: str = ...,
    layout: str | None = ...,
    out: Tensor | None = ...,
    return_lse: Literal[True],
    q_mul: Tensor | None = ...,
    o_mul: Tensor | None = ...,
    setting: Setting | None = ...,
) -> tuple[Tensor, Tensor]: ...


def decode(
    query: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Tensor,
    v_scale: Tensor,
    scale: float | None = None,
    q_len: int = 1,
    causal: bool = True,
    q_format: str = "native",
    layout: str | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
    q_mul: Tensor | None = None,
    o_mul: Tensor | None = None,
    setting: Setting | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Decode attention over a paged KV cache in e4m3: `softmax(scale Q K^T) V` for each sequence and head.

    K is `k_scale` times what the cache holds, V `v_scale` times. All tensors are on one GPU; the work is enqueued on
    torch's current stream, and nothing waits for it.

    Args:
        query: (batch * q_len, heads_q, head_dim), bf16 or f16, the tokens of a sequence together; any token stride.
            Head size 128 or 256; heads_q is a multiple of the cache's heads.
        kv_cache: one tensor of one of the layouts `BHN2D`, `BNH2D`, `B2NHD`, `B2HND`, `2BNHD`, `2BHND` (B pages, N page
            size, H heads, D head size), or K and V apart, each (num_pages, page_size, heads_kv, head_dim).
            float8_e4m3fn or uint8. Page size 16, 32, 64 or 128.
        block_table: (batch, width) int32, the pages of each sequence in order; what lies beyond its last page is never
            looked at. Sequences longer than `width * page_size` are cut to it.
        seq_lens: (batch,) int32, tokens in the cache, the new ones included. A row that sees no key gives zeros.
        k_scale, v_scale: f32, one value, (heads_kv,) or (batch, heads_kv).
        scale: of the scores; None = `head_dim ** -0.5`.
        q_len: query tokens of each sequence, 1 to 16; the last is the sequence's last token.
        causal: whether query token i sees only keys up to `seq_len - q_len + i`; else every one sees all.
        q_format: "native", or "fp8" to round the query to e4m3 (a scale for each sequence and KV head), which is
            faster and less precise. A native query is multiplied in f16: rows with elements of 2^15 and more are scaled
            by a power of two, and elements below 2^-14 lose bits.
        layout: the cache's layout, where its shape fits several with different heads or page sizes.
        out: where to write, like the query or (batch * q_len, heads_q * head_dim); None = a new tensor.
        return_lse: whether to return the log-sum-exp of the scores as well: natural logarithm, f32 (batch * q_len,
            heads_q), -inf where a row sees no key. Partial results over parts of a cache can be merged with it.
        q_mul, o_mul: f32 (heads_q, head_dim): the query is multiplied before it is rounded to the kernel's format, the
            output before its only rounding.
        setting: the knobs; None = the built-in default.

    Returns:
        The output, or the output and the log-sum-exp.

    Raises:
        ValueError, TypeError: an argument is wrong; the message says which and why. No tensor was written to.
        RuntimeError: the tensors are on no GPU, or on one that no engine supports; torch's own, which names the
            argument, where `scale`, `q_len` or `causal` is no number.
        mjolnir.kernel.cache.CompileError: the kernel did not compile.
    """
    for name, value in (
        ("query", query), ("kv_cache", kv_cache), ("block_table", block_table), ("seq_lens", seq_lens),
        ("k_scale", k_scale), ("v_scale", v_scale), ("q_format", q_format), ("layout", layout), ("out", out),
        ("q_mul", q_mul), ("o_mul", o_mul), ("setting", setting),
    ):  # fmt: skip
        kinds, expected = EXPECTED[name]
        if not isinstance(value, kinds):
            raise TypeError(f"{name} is {type(value).__name__}; expected {expected}")
    if query.dim() != 3 or seq_lens.dim() != 1 or query.shape[0] != seq_lens.shape[0] * q_len:
        raise ValueError(
            f"query has shape {tuple(query.shape)} and seq_lens {tuple(seq_lens.shape)}; expected (batch * q_len, "
            f"heads_q, head_dim) and (batch,), with q_len = {q_len}"
        )
    if not 1 <= seq_lens.shape[0] <= MAX_BATCH:
        raise ValueError(f"seq_lens holds {seq_lens.shape[0]} sequences; expected 1 to {MAX_BATCH}")
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device) if return_lse else None
    parts = [kv_cache] if isinstance(kv_cache, Tensor) else list(kv_cache)
    if len(parts) != 1 + (not isinstance(kv_cache, Tensor)) or (len(parts) == 2 and layout is not None):
        raise ValueError(f"kv_cache holds {len(parts)} tensors; expected one, or K and V apart and then no layout")
    knobs = None if setting is None else [getattr(setting, knob.name) for knob in KNOBS]
    torch.ops.mjolnir.decode(
        query, parts, block_table, seq_lens, out, lse, k_scale, v_scale, q_mul, o_mul, scale, q_len, causal, q_format,
        layout, knobs,
    )  # fmt: skip
    return out if lse is None else (out, lse)


def _plan_and_run(
    query: Tensor,
    kv_cache: list[Tensor],
    block_table: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    lse: Tensor | None,
    k_scale: Tensor,
    v_scale: Tensor,
    q_mul: Tensor | None,
    o_mul: Tensor | None,
    scale: float | None,
    q_len: int,
    causal: bool,
    q_format: str,
    layout: str | None,
    knobs: list[int] | None,
) -> None:
    """Plan and run; arguments as `decode` has them, `knobs` the setting's values in the order of `KNOBS`."""
    device = _facts(query.device)
    rest = (q_len, causal, q_format)
    if len(kv_cache) == 1:
        k_cache, v_cache, geometry = _together(kv_cache[0], query, layout, rest)
    else:
        k_cache, v_cache = kv_cache
        geometry = _told_apart(k_cache, query, rest)
    bucket = 1 << max(seq_lens.shape[0] - 1, 0).bit_length()
    optional = lse is not None, q_mul is not None, o_mul is not None
    setting = _works(geometry, device, bucket, optional) if knobs is None else Setting(*knobs)
    runner = RUNNERS.get(Key(geometry, setting, query.device, _stream(query.device), bucket, *optional), device)
    width = block_table.shape[-1] if block_table.dim() else 0
    runner.plan(seq_lens, capacity=max(1, width) * geometry.page_size)
    runner.run(query, k_cache, v_cache, block_table, seq_lens, out, k_scale, v_scale, scale, lse, q_mul, o_mul)


@lru_cache(maxsize=1024)
def _works(geometry: Geometry, device: Device, bucket: int, optional: tuple[bool, bool, bool]) -> Setting:
    """The first of the rule's answers that compiles and spills nothing; where none does, the first, to be refused."""
    lse, q_mul, o_mul = optional
    said = answers(geometry, device, bucket)
    for setting in said:
        variant = Variant.of(setting, geometry, device, lse=lse, q_mul=q_mul, o_mul=o_mul)
        try:
            binaries.build_runnable(variant, setting)
        except binaries.CompileError:
            continue
        return setting
    return said[0]


RUNNERS = Runners(MAX_RUNNERS)
_caches: Kept[tuple[Tensor, Tensor, Geometry]] = Kept()


def _together(
    cache: Tensor, query: Tensor, layout: str | None, rest: tuple[int, bool, str]
) -> tuple[Tensor, Tensor, Geometry]:
    """K, V and the problem of a cache that is one tensor, kept as long as it is the same."""

    def make(cache: Tensor) -> tuple[Tensor, Tensor, Geometry]:
        geometry = _told_from(cache.shape, query, layout, rest)
        return *views(cache.detach(), geometry, layout), geometry

    return _caches.get(cache, (form_of(cache), query.shape[1:], query.dtype, layout, rest), make)


def _told_from(shape: tuple[int, ...], query: Tensor, layout: str | None, rest: tuple[int, bool, str]) -> Geometry:
    """The problem, of which a cache's shape says page size and heads.

    In all layouts these are the two dimensions before the last, in either order.

    Raises:
        ValueError: the shape fits no layout, or layouts that differ in heads or page size.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout = {layout!r} is unknown; there are {', '.join(LAYOUTS)}")
    found = []
    for tokens_first in (False, True):
        if len(shape) < 4 or (layout and tokens_first != (layout.index("N") < layout.index("H"))):
            continue
        page, heads = (shape[-3], shape[-2]) if tokens_first else (shape[-2], shape[-3])
        if page in PAGE_SIZES and heads and query.shape[1] % heads == 0:
            geometry = _geometry(query.shape[1], heads, query.shape[2], page, query.dtype, rest)
            if _fits(shape, geometry):
                found.append(geometry)
    if len(set(found)) == 1:
        return found[0]
    wrong = "fits layouts of different heads" if found else "fits no layout"
    raise ValueError(
        f"kv_cache of shape {tuple(shape)} {wrong}, for a query of {tuple(query.shape[1:])}: the layouts are "
        f"{', '.join(LAYOUTS)}, pages hold {', '.join(map(str, PAGE_SIZES))} tokens; name one with layout=, or pass "
        f"K and V apart as (num_pages, page_size, heads_kv, head_dim)"
    )


def _fits(shape: tuple[int, ...], geometry: Geometry) -> bool:
    try:
        layout_of(shape, geometry)
    except ValueError:
        return False
    return True


def _told_apart(k_cache: Tensor, query: Tensor, rest: tuple[int, bool, str]) -> Geometry:
    """The problem, of which K on its own says page size and heads."""
    if k_cache.dim() != 4:
        raise ValueError(
            f"k_cache has shape {tuple(k_cache.shape)}; expected (num_pages, page_size, heads_kv, head_dim)"
        )
    page, heads = k_cache.shape[1:3]
    return _geometry(query.shape[1], heads, query.shape[2], page, query.dtype, rest)


@lru_cache(maxsize=1024)
def _geometry(
    heads_q: int, heads_kv: int, head_dim: int, page_size: int, dtype: torch.dtype, rest: tuple[int, bool, str]
) -> Geometry:
    if dtype not in NAMES:
        raise TypeError(f"query is {dtype}; expected {' or '.join(map(str, NAMES))}")
    q_len, causal, q_format = rest
    return Geometry(heads_q, heads_kv, head_dim, page_size, q_len, causal, q_format=q_format, dtype=NAMES[dtype])


def _stream(device: torch.device) -> int:
    """Names the stream that work is enqueued on; runners of two streams share no buffers."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@cache
def _facts(device: torch.device) -> Device:
    if device.type != "cuda":
        raise RuntimeError(
            f"query is on {device}; the kernel needs a GPU. What it computes can be had elsewhere from "
            f"mjolnir.kernel.emulator, or plainly from mjolnir.kernel.reference"
        )
    return current_device(torch.cuda.current_device() if device.index is None else device.index)


def _register() -> torch.library.Library:
    """Define `mjolnir::decode`.

    `torch.library.custom_op` would define the same, and add 80 us of host time to every call.
    """
    library = torch.library.Library("mjolnir", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(  # type: ignore[no-untyped-call]
        "decode(Tensor query, Tensor[] kv_cache, Tensor block_table, Tensor seq_lens, Tensor(a!) out, Tensor(b!)? lse, "
        "Tensor k_scale, Tensor v_scale, Tensor? q_mul, Tensor? o_mul, float? scale, int q_len, bool causal, "
        "str q_format, str? layout, int[]? knobs) -> ()",
        tags=(torch.Tag.needs_exact_strides,),
    )
    library.impl("decode", _plan_and_run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    # what is written is there already, so there is nothing to make for tensors without data
    torch.library.register_fake("mjolnir::decode", lambda *_: None, lib=library)
    return library


_LIBRARY = _register()
