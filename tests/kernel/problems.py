"""Random problems for the tests of references and emulator: plain data, an identity block table, one layout."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.layouts import allocate, views

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def problem(
    geometry: Geometry,
    lengths: Sequence[int],
    seed: int = 0,
    *,
    q_gain: float = 1.0,
    k_gain: float = 1.0,
    shape_v: Callable[[torch.Tensor], torch.Tensor] = lambda v: v,
    q_mul: bool = False,
    o_mul: bool = False,
) -> dict[str, Any]:
    """Arguments of the references and, with a plan, of the emulator."""
    draw = torch.Generator().manual_seed(seed)
    counts = [-(-length // geometry.page_size) for length in lengths]
    k, v = views(allocate("BHN2D", max(1, sum(counts)), geometry), geometry)
    quantise = FORMATS[geometry.kv_format].quantise
    k.copy_(quantise(k_gain * torch.randn(k.shape, generator=draw)))
    v.copy_(quantise(shape_v(torch.randn(v.shape, generator=draw))))
    table = torch.full((len(lengths), max(1, *counts)), -1, dtype=torch.int32)
    first = 0
    for row, count in zip(table, counts, strict=True):
        row[:count] = torch.arange(first, first + count)
        first += count
    q = q_gain * torch.randn(len(lengths) * geometry.q_len, geometry.heads_q, geometry.head_dim, generator=draw)
    factors = torch.randn(2, geometry.heads_q, geometry.head_dim, generator=draw).exp2()
    return {
        "q": q.to(DTYPES[geometry.dtype]),
        "k": k,
        "v": v,
        "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "geometry": geometry,
        "scale": geometry.head_dim**-0.5,
        "k_scale": torch.tensor(1.0),
        "v_scale": torch.tensor(1.0),
        "q_mul": factors[0] if q_mul else None,
        "o_mul": factors[1] if o_mul else None,
    }
