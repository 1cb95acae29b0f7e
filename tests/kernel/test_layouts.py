"""Cache layouts: what each shape means, and what is refused."""

import pytest
import torch

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.layouts import LAYOUTS, allocate, check_views, layout_of, placement_of, to_device, views

GEOMETRY = Geometry(6, 3, page_size=32)
PAGES = 5
SHAPES = {
    "BHN2D": (5, 3, 32, 256),
    "BNH2D": (5, 32, 3, 256),
    "B2NHD": (5, 2, 32, 3, 128),
    "B2HND": (5, 2, 3, 32, 128),
    "2BNHD": (2, 5, 32, 3, 128),
    "2BHND": (2, 5, 3, 32, 128),
}


def place(layout: str, part: int, b: int, n: int, h: int, d: int) -> tuple[int, ...]:
    """Where element d of K (part 0) or V (part 1) is in a cache of `layout`, written out."""
    return {
        "BHN2D": (b, h, n, part * 128 + d),
        "BNH2D": (b, n, h, part * 128 + d),
        "B2NHD": (b, part, n, h, d),
        "B2HND": (b, part, h, n, d),
        "2BNHD": (part, b, n, h, d),
        "2BHND": (part, b, h, n, d),
    }[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_show_every_layout_without_a_copy(layout: str) -> None:
    cache = torch.arange(PAGES * 2 * 32 * 3 * 128).remainder(251).to(torch.uint8).reshape(SHAPES[layout])
    assert layout_of(cache.shape, GEOMETRY) == layout
    for part, view in enumerate(views(cache, GEOMETRY)):
        assert view.shape == (PAGES, 32, 3, 128)
        assert view.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
        for b, n, h, d in [(0, 0, 0, 0), (4, 31, 2, 127), (1, 17, 0, 3), (3, 2, 1, 64)]:
            assert view[b, n, h, d] == cache[place(layout, part, b, n, h, d)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("token_major", [None, False, True])
def test_allocated_caches_lie_as_asked(layout: str, token_major: bool | None) -> None:
    cache = allocate(layout, PAGES, GEOMETRY, token_major=token_major, block_gap=48)
    assert cache.shape == SHAPES[layout]
    k, v = views(cache, GEOMETRY)
    wanted = layout in ("BNH2D", "B2NHD", "2BNHD") if token_major is None else token_major
    together = not layout.startswith("2")
    assert placement_of(k, v) == Placement(
        "token-major" if wanted else "head-major", "together" if together else "apart"
    )
    assert k.stride(0) == (2 if together else 1) * 32 * 3 * 128 + 48
    assert (cache == 0x7F).all()


def test_allocated_elements_do_not_overlap() -> None:
    cache = allocate("B2HND", PAGES, GEOMETRY, token_major=True, block_gap=16, fill=None)
    cache.copy_(torch.arange(cache.numel()).remainder(253).to(torch.uint8).reshape(cache.shape))
    assert torch.equal(cache.flatten(), torch.arange(cache.numel()).remainder(253).to(torch.uint8))


def test_heads_equal_to_the_page_read_as_the_first_that_fits() -> None:
    geometry = Geometry(16, 16, page_size=16)
    cache = allocate("BNH2D", 3, geometry)
    assert layout_of(cache.shape, geometry) == "BHN2D"
    cache[0, 5, 1] = 9
    assert views(cache, geometry)[0][0, 1, 5, 0] == 9
    assert views(cache, geometry, "BNH2D")[0][0, 5, 1, 0] == 9


def test_two_pages_read_as_pages_first() -> None:
    assert layout_of((2, 2, 32, 3, 128), GEOMETRY) == "B2NHD"


def test_an_unknown_shape_names_itself_and_the_six_layouts() -> None:
    with pytest.raises(ValueError, match=r"\(5, 3, 16, 256\)") as caught:
        views(torch.zeros(5, 3, 16, 256, dtype=torch.uint8), GEOMETRY)
    assert all(layout in str(caught.value) for layout in LAYOUTS)


def test_a_layout_that_does_not_fit_is_refused() -> None:
    cache = allocate("BHN2D", PAGES, GEOMETRY)
    with pytest.raises(ValueError, match="is not BNH2D"):
        views(cache, GEOMETRY, "BNH2D")
    with pytest.raises(ValueError, match="'HNBD' is unknown"):
        views(cache, GEOMETRY, "HNBD")
    with pytest.raises(ValueError, match="'HNBD' is unknown"):
        allocate("HNBD", PAGES, GEOMETRY)
    with pytest.raises(ValueError, match="block_gap = 8"):
        allocate("BHN2D", PAGES, GEOMETRY, block_gap=8)


def logical(*, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(PAGES, 32, 3, 128, dtype=dtype)


def strided(page: int, token: int, head: int) -> torch.Tensor:
    return torch.zeros(PAGES * page, dtype=torch.uint8).as_strided((PAGES, 32, 3, 128), (page, token, head, 1))


def test_float8_views_are_taken_too() -> None:
    cache = allocate("BHN2D", PAGES, GEOMETRY).view(torch.float8_e4m3fn)
    k, _ = views(cache, GEOMETRY)
    assert k.dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("dtype", logical(dtype=torch.int8), "is torch.int8; pass it as torch.uint8"),
        ("shape", logical()[:, :16], r"shape \(5, 16, 3, 128\); expected \(num_pages, 32, 3, 128\)"),
        ("elements apart", logical().repeat(1, 1, 1, 2)[..., ::2], "stride 2 along head_dim"),
        ("pointer", torch.zeros(PAGES * 32 * 3 * 128 + 8, dtype=torch.uint8)[8:].view(5, 32, 3, 128), "multiple of 16"),
        ("token stride", strided(32 * 392, 392, 128), "token stride of 392"),
        ("head stride", strided(32 * 416, 416, 136), "head stride of 136"),
        ("page stride", strided(12296, 384, 128), "page stride of 12296"),
    ],
)
def test_what_cannot_be_read_in_place_is_refused_by_name(name: str, wrong: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"k_cache.*{message}"):
        check_views(wrong, logical(), GEOMETRY)
    with pytest.raises(ValueError, match=f"v_cache.*{message}"):
        check_views(logical(), wrong, GEOMETRY)


def test_k_and_v_must_be_alike() -> None:
    with pytest.raises(ValueError, match="must be alike"):
        check_views(logical(), torch.zeros(PAGES + 1, 32, 3, 128, dtype=torch.uint8), GEOMETRY)


def test_dimensions_of_size_one_may_carry_any_stride() -> None:
    geometry = Geometry(4, 1, page_size=32)
    part = torch.zeros(32 * 128, dtype=torch.uint8).as_strided((1, 32, 1, 128), (7, 128, 3, 1))
    check_views(part, part, geometry)
    assert placement_of(part, part) == Placement("head-major", "together")


def test_two_pools_are_apart() -> None:
    assert placement_of(logical(), logical()) == Placement("token-major", "apart")
    assert placement_of(logical()[:1], logical()[:1]) == Placement("token-major", "apart")


def test_moving_keeps_strides_and_gaps() -> None:
    cache = allocate("BHN2D", PAGES, GEOMETRY, token_major=True, block_gap=64)
    cache[2, 1, 3] = 5
    moved = to_device(cache[1:], "cpu")
    assert moved.stride() == cache.stride()
    assert torch.equal(moved, cache[1:])
    assert to_device(cache[:0], "cpu").shape == (0, 3, 32, 256)
