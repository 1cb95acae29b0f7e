from __future__ import annotations

import pytest
import torch

from mjolnir.kernel import arguments
from mjolnir.kernel.geometry import Geometry

GEOMETRY = Geometry(8, 2, page_size=16)


def test_a_flat_output_is_seen_as_heads() -> None:
    flat = torch.zeros(3, 8 * 128, dtype=torch.bfloat16)
    seen = arguments.check_query("out", flat, GEOMETRY, 3)
    assert seen.shape == (3, 8, 128)
    assert seen.data_ptr() == flat.data_ptr()


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(3, 8, 128, dtype=torch.float16), TypeError, "query is torch.float16"),
        (
            torch.zeros(2, 8, 128, dtype=torch.bfloat16),
            ValueError,
            r"query has shape \(2, 8, 128\); expected \(3, 8, 128\)",
        ),
        (torch.zeros(3, 8, 256, dtype=torch.bfloat16)[..., ::2], ValueError, "query has stride 2 in head_dim"),
    ],
)
def test_a_wrong_query_is_refused(tensor: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        arguments.check_query("query", tensor, GEOMETRY, 3)


def test_dimensions_of_size_one_may_carry_any_stride() -> None:
    odd = torch.zeros(4 * 16 * 128, dtype=torch.uint8).as_strided((4, 16, 1, 128), (2048, 128, 7, 1))
    seen = arguments.as_bytes(odd)
    assert seen.stride() == (2048, 128, 16, 1)


def test_an_e4m3_cache_is_taken_as_bytes() -> None:
    cache = torch.zeros(4, 16, 2, 128).to(torch.float8_e4m3fn)
    assert arguments.as_bytes(cache).dtype == torch.uint8


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 2), (1, 2)])
def test_every_scale_shape_spreads(shape: tuple[int, ...]) -> None:
    scale = torch.rand(shape)
    if shape == (1, 2):
        with pytest.raises(ValueError, match=r"k_scale has shape \(1, 2\)"):
            arguments.spread_scale("k_scale", scale, 3, 2)
        return
    spread = arguments.spread_scale("k_scale", scale, 3, 2)
    assert spread.shape == (3, 2)
    assert torch.equal(spread, scale.expand(3, 2))
    assert spread.data_ptr() == scale.data_ptr()


def test_a_scale_of_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"v_scale is torch\.float64"):
        arguments.spread_scale("v_scale", torch.ones((), dtype=torch.float64), 3, 2)


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(3, 4), TypeError, "block_table is torch.float32"),
        (torch.zeros(2, 4, dtype=torch.int32), ValueError, r"expected \(3, any\)"),
        (torch.zeros(3, 8, dtype=torch.int32)[:, ::2], ValueError, "stride 2 in its last dimension"),
    ],
)
def test_a_wrong_table_is_refused(tensor: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        arguments.check_int32("block_table", tensor, (3, None))
