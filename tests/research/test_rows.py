"""The certificate of a row: what is kept of the checks behind it."""

from __future__ import annotations

from typing import Any

import pytest

from mjolnir.research.rows import row_of
from tests.research.conftest import make_row


def promotion(correctness: Any) -> dict[str, Any]:
    row = make_row(8).as_dict()
    return {"bucket": 8, **row, "certificate": {**row["certificate"], "instances": 2, "correctness": correctness}}


def arm(excess: float, **more: Any) -> dict[str, Any]:
    return {"points": {"checked": 1, "worst": {"name": "8x4096", "excess": excess, "seed": 3}}, **more}


@pytest.mark.parametrize("equal", [True, False])
def test_a_row_says_whether_equal_inputs_gave_equal_bits_in_every_instance(equal: bool) -> None:
    bits = ({"launches": 2, "points": 1, "equal": True}, {"launches": 2, "points": 1, "equal": equal})
    baseline = arm(0.9, bitwise={"launches": 2, "points": 1, "equal": False})
    evidence = [{"kv_seed": 1, "arms": [arm(0.5, bitwise=found), baseline]} for found in bits]
    assert row_of(promotion(evidence)).certificate["correctness"] == {
        "instances": 2,
        "nearest": {"name": "8x4096", "excess": 0.9, "seed": 3},
        "bitwise": equal,
    }


@pytest.mark.parametrize("evidence", [[{"replayed": True}], [{"kv_seed": 1, "arms": [arm(0.5)]}], []])
def test_where_nobody_looked_at_bits_nothing_is_said_of_them(evidence: list[Any]) -> None:
    assert "bitwise" not in row_of(promotion(evidence)).certificate["correctness"]
