from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.backend.key import Key, bucket_of
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry, Placement

from .rows import GEOMETRY, PLACEMENT, key


@given(st.integers(1, 1 << 20))
def test_bucket_serves_from_above_its_half(batch: int) -> None:
    bucket = bucket_of(batch)
    assert bucket & (bucket - 1) == 0
    assert bucket / 2 < batch <= bucket


@pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (128, 128), (129, 256)])
def test_bucket(batch: int, bucket: int) -> None:
    assert bucket_of(batch) == bucket


def test_batch_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="batch = 0"):
        bucket_of(0)


def test_key_has_the_fields_of_the_design_in_its_order() -> None:
    device = Device("sm_90a", "NVIDIA H200", 16, "1g.18gb")
    found = Key.of(device, Geometry(32, 8, page_size=16, causal=False), Placement("token-major", "apart"), 6).as_dict()
    expected = {
        "arch": "sm_90a", "device": "NVIDIA H200", "sm_count": 16, "mig": "1g.18gb", "heads_q": 32, "heads_kv": 8,
        "head_dim": 128, "page_size": 16, "q_len": 1, "causal": True, "kv_format": "fp8", "q_format": "native",
        "layout": "token-major", "kv": "apart", "batch": 8,
    }  # fmt: skip
    assert list(found.items()) == list(expected.items())


def test_both_dtypes_have_one_key() -> None:
    assert Key.of(H200, Geometry(32, 8, dtype="f16"), PLACEMENT, 8) == Key.of(H200, GEOMETRY, PLACEMENT, 8)


def test_key_gives_its_parts_back() -> None:
    assert (key().hardware, key().geometry, key().placement) == (H200, GEOMETRY, PLACEMENT)
    assert Key.from_dict(key().as_dict()) == key()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 6}, "batch = 6 is not a bucket"),
        ({"batch": 0}, "batch = 0 is not a bucket"),
        ({"batch": True}, "batch = True is not of type int"),
        ({"batch": 8.0}, "batch = 8.0 is not of type int"),
        ({"sm_count": "132"}, "sm_count = '132' is not of type int"),
        ({"sm_count": 0}, "sm_count = 0"),
        ({"causal": 1}, "causal = 1 is not of type bool"),
        ({"causal": False}, "causal = false with q_len = 1"),
        ({"arch": "sm_80"}, "architecture 'sm_80'"),
        ({"device": None}, "device = None is not of type str"),
        ({"page_size": 48}, "page_size = 48"),
        ({"heads_q": 33}, "heads 33/8"),
        ({"kv_format": "int8"}, "kv_format = 'int8'"),
        ({"layout": "NHD"}, "layout = 'NHD'"),
        ({"kv": "beside"}, "kv = 'beside'"),
        ({"colour": 1}, "'colour' is unknown"),
    ],
)
def test_fields_out_of_type_or_domain_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Key.from_dict(key().as_dict() | change)


def test_missing_field_is_named() -> None:
    values = key().as_dict()
    del values["mig"]
    with pytest.raises(ValueError, match="key: mig is missing"):
        Key.from_dict(values)


def test_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="key: 5 is not an object"):
        Key.from_dict(5)
