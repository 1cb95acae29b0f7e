from __future__ import annotations

import re

import pytest
import torch

from mjolnir.kernel import arguments
from mjolnir.kernel.binding import View
from mjolnir.kernel.geometry import Geometry

GEOMETRY = Geometry(8, 2, page_size=16)


def test_a_flat_output_is_seen_as_heads() -> None:
    flat = torch.zeros(3, 8 * 128, dtype=torch.bfloat16)
    seen = arguments.check_query("out", flat, GEOMETRY, 3).of(flat)
    assert seen.shape == (3, 8, 128)
    assert seen.stride() == (1024, 128, 1)
    assert seen.data_ptr() == flat.data_ptr()


def test_a_part_of_a_fused_buffer_is_seen_in_place_and_without_the_rows_beyond() -> None:
    fused = torch.arange(5 * 3072).to(torch.bfloat16).view(5, 3072)
    query = fused[:, 1024:2048]
    seen = arguments.check_query("query", query, GEOMETRY, 3)
    assert (seen.shape, seen.stride) == ((3, 8, 128), (3072, 128, 1))
    assert torch.equal(seen.of(query), fused[:3, 1024:2048].view(3, 8, 128))


def test_one_row_may_carry_any_stride() -> None:
    odd = torch.zeros(4096, dtype=torch.bfloat16).as_strided((1, 8, 128), (7, 128, 1))
    seen = arguments.check_query("query", odd, GEOMETRY, 1)
    assert seen.stride == (1024, 128, 1)
    assert arguments.aligned(odd, seen)


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(3, 8, 128, dtype=torch.float16), TypeError, "query is torch.float16"),
        (
            torch.zeros(2, 8, 128, dtype=torch.bfloat16),
            ValueError,
            r"query has shape \(2, 8, 128\); expected \(3, 8, 128\), more rows",
        ),
        (torch.zeros(3, 1, 8, 128, dtype=torch.bfloat16), ValueError, r"query has shape \(3, 1, 8, 128\)"),
        (torch.zeros(3, 1000, dtype=torch.bfloat16), ValueError, r"query has shape \(3, 1000\)"),
        (torch.zeros((), dtype=torch.bfloat16), ValueError, r"query has shape \(\)"),
        (torch.zeros(3, 8, 256, dtype=torch.bfloat16)[..., ::2], ValueError, "query has stride 2 in head_dim"),
    ],
)
def test_a_wrong_query_is_refused(tensor: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        arguments.check_query("query", tensor, GEOMETRY, 3)


@pytest.mark.parametrize(
    ("offset", "strides", "wanted"),
    [
        (0, (1024, 128, 1), True),
        (8, (1032, 136, 1), True),
        (4, (1024, 128, 1), False),
        (0, (1028, 128, 1), False),
        (0, (1024, 129, 1), False),
    ],
)
def test_the_kernel_works_in_place_where_all_is_a_multiple_of_16_bytes(
    offset: int, strides: tuple[int, ...], wanted: bool
) -> None:
    tensor = torch.zeros(8192, dtype=torch.bfloat16).as_strided((3, 8, 128), strides, offset)
    seen = arguments.check_query("query", tensor, GEOMETRY, 3)
    assert arguments.aligned(tensor, seen) is wanted


def test_an_output_whose_rows_share_memory_is_refused() -> None:
    out = torch.zeros(1, 8, 128, dtype=torch.bfloat16).expand(3, 8, 128)
    view = arguments.check_query("out", out, GEOMETRY, 3)
    with pytest.raises(ValueError, match=r"out has strides \(0, 128, 1\): rows that are written"):
        arguments.check_written("out", view)


@pytest.mark.parametrize(
    ("strides", "apart"),
    [
        ((1024, 128, 1), True), ((128, 3 * 128, 1), True), ((2048, 256, 1), True), ((1023, 128, 1), False),
        ((1024, 127, 1), False), ((128, 128, 1), False), ((64, 1024, 1), False),
    ],
)  # fmt: skip
def test_an_output_whose_rows_or_heads_overlap_is_refused(strides: tuple[int, int, int], apart: bool) -> None:
    view = View(torch.bfloat16, (3, 8, 128), strides)
    if apart:
        arguments.check_written("out", view)
        return
    with pytest.raises(ValueError, match=re.escape(f"out has strides {strides}: rows that are written")):
        arguments.check_written("out", view)


def test_rows_or_heads_that_are_there_once_may_carry_any_stride() -> None:
    arguments.check_written("out", View(torch.bfloat16, (1, 8, 128), (0, 128, 1)))
    arguments.check_written("out", View(torch.bfloat16, (3, 1, 128), (128, 1, 1)))


def test_dimensions_of_size_one_may_carry_any_stride() -> None:
    odd = torch.zeros(4 * 16 * 128, dtype=torch.uint8).as_strided((4, 16, 1, 128), (2048, 128, 7, 1))
    assert arguments.as_bytes(odd).stride == (2048, 128, 16, 1)
    table = torch.zeros(12, dtype=torch.int32).as_strided((3, 1), (4, 3))
    assert arguments.as_rows(table).stride == (4, 1)


def test_an_e4m3_cache_is_taken_as_bytes() -> None:
    cache = torch.rand(4, 16, 2, 128).to(torch.float8_e4m3fn)
    seen = arguments.as_bytes(cache).of(cache)
    assert seen.dtype == torch.uint8
    assert torch.equal(seen, cache.view(torch.uint8))
    assert seen.data_ptr() == cache.data_ptr()


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 2), (1, 2)])
def test_every_scale_shape_spreads(shape: tuple[int, ...]) -> None:
    scale = torch.rand(shape)
    if shape == (1, 2):
        with pytest.raises(ValueError, match=r"k_scale has shape \(1, 2\)"):
            arguments.spread_scale("k_scale", scale, 3, 2)
        return
    spread = arguments.spread_scale("k_scale", scale, 3, 2).of(scale)
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


@pytest.mark.parametrize(
    ("tensor", "more_rows", "message"),
    [
        (torch.zeros(3, 8, dtype=torch.float64), False, "lse is torch.float64"),
        (torch.zeros(2, 8), True, r"lse has shape \(2, 8\); expected \(3, 8\)"),
        (torch.zeros(4, 8), False, r"lse has shape \(4, 8\); expected \(3, 8\)"),
        (torch.zeros(3, 16)[:, ::2], False, r"lse has strides \(16, 2\)"),
    ],
)
def test_a_wrong_table_of_floats_is_refused(tensor: torch.Tensor, more_rows: bool, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        arguments.check_float32("lse", tensor, 3, 8, more_rows=more_rows)


def test_rows_beyond_are_left_out() -> None:
    lse = torch.rand(4, 8)
    assert torch.equal(arguments.check_float32("lse", lse, 3, 8, more_rows=True).of(lse), lse[:3])


def test_what_is_no_tensor_or_elsewhere_is_refused() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(TypeError, match="k_scale is float; expected a tensor on cpu"):
        arguments.check_tensor("k_scale", 1.0, cpu)
    with pytest.raises(ValueError, match="k_scale is on meta; this runner works on cpu"):
        arguments.check_tensor("k_scale", torch.ones((), device="meta"), cpu)
