"""Geometries: text, dictionaries, and refusals that say what is supported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.geometry import Geometry, Placement

geometries = st.builds(
    lambda heads_kv, gqa, *rest: Geometry(heads_kv * gqa, heads_kv, *rest),
    st.integers(1, 128),
    st.integers(1, 128),
    st.sampled_from([128, 256]),
    st.sampled_from([16, 32, 64, 128]),
    st.integers(1, 16),
    st.booleans(),
    st.just("fp8"),
    st.sampled_from(["native", "fp8"]),
    st.sampled_from(["bf16", "f16"]),
)


@given(geometries)
def test_text_and_dictionary_come_back(geometry: Geometry) -> None:
    assert Geometry.parse(str(geometry)) == geometry
    assert Geometry.from_dict(geometry.as_dict()) == geometry


def test_the_short_form_takes_defaults() -> None:
    geometry = Geometry.parse("32/8xd128, page=64, q=1")
    assert geometry == Geometry(32, 8)
    assert (geometry.gqa, geometry.rows, geometry.kv_bytes_per_token) == (4, 4, 2048)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("32x8", "write HEADS_Q/HEADS_KV"),
        ("32/8xd128,page", "is not one of page="),
        ("32/8xd128,pages=64", "is not one of page="),
        ("32/8xd128,page=big", "must be a whole number"),
        ("32/8xd128,page=48", "page_size = 48 is not supported; there are 16, 32, 64, 128"),
        ("32/8xd96", "head_dim = 96 is not supported"),
        ("30/8xd128", "must be a multiple of KV heads"),
        ("32/8xd192", "head_dim = 192 is not supported; there are 128, 256"),
        ("258/2xd128", "GQA ratio 129 is above 128"),
        ("32/8xd128,q=17", "q_len = 17 is not supported; it is 1 to 16"),
        ("32/8xd128,q=0", "q_len = 0"),
        ("32/8xd128,causal=maybe", "must be yes or no"),
        ("32/8xd128,query=e2m3", "there are native, fp8"),
        ("32/8xd128,kv=e2m3", "there are fp8"),
        ("32/8xd128,dtype=f32", "there are bf16, f16"),
    ],
)
def test_refusals_name_the_value_and_what_there_is(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry.parse(text)


def test_one_token_is_always_causal() -> None:
    assert Geometry(32, 8, causal=False) == Geometry(32, 8)
    assert Geometry(32, 8, q_len=2, causal=False) != Geometry(32, 8, q_len=2)
    assert str(Geometry(32, 8, q_len=2, causal=False)) == (
        "32/8xd128,page=64,q=2,causal=no,kv=fp8,query=native,dtype=bf16"
    )


@given(geometries)
def test_rows_are_the_query_rows_of_one_kv_head(geometry: Geometry) -> None:
    assert geometry.rows == geometry.heads_q * geometry.q_len // geometry.heads_kv
    assert geometry.kv_bytes_per_token == 2 * geometry.heads_kv * geometry.head_dim


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown geometry field 'heads'"):
        Geometry.from_dict({"heads": 4})


def test_placements() -> None:
    assert Placement() == Placement("head-major", "together")
    with pytest.raises(ValueError, match="there are head-major, token-major"):
        Placement("heads")
    with pytest.raises(ValueError, match="there are together, apart"):
        Placement(kv="split")
