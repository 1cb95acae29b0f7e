"""The campaigns' rows as the README shows them."""

from __future__ import annotations

from typing import Any

from mjolnir.research.bench.live_markdown import page


def row(tag: str, bucket: int, decision: str, reason: str = "", gain: float | None = None) -> dict[str, Any]:
    facts = {"value": gain, "low": gain - 0.01, "high": gain + 0.02} if gain else None
    return {"tag": tag, "bucket": bucket, "decision": decision, "reason": reason, "gain": facts}


def test_each_bucket_has_a_cell_and_what_is_not_proven_a_reason() -> None:
    rows = [
        row("one", 1, "promote", gain=1.5),
        row("one", 8, "not-proven", "in the shoot-out 0.7% faster than the default, the margin is 1.0%"),
        row("two", 8, "not-proven", "in 2 of 2 processes slower than the default at 8x2048 by its noise of 1.1%"),
        row("two", 64, "default-is-best", "the default is as fast as the fastest, within the noise"),
        row("three", 64, "not-proven", "what is in force is as fast as the fastest, within the noise"),
        row("three", 1, "undecided", "the run ended before its decision"),
    ]  # fmt: skip
    figures = {"rows": 6, "rows_promoted": 1, "table_gain": 1.07, "table_gain_low": 1.06, "table_gain_high": 1.08}
    lines = page({"rows": rows, "figures": figures}).splitlines()
    assert lines[0] == "| campaign | <= 1 | <= 8 | <= 64 |"
    assert lines[2:-2] == ["| one | 50.0% [49.0, 52.0] | - |  |"], "what proved nothing has no line"
    assert "than every knob's default" in lines[-1]
    assert "1 of 6 buckets of 3 campaigns, in the geometric mean over all of them 7.0% [6.0, 8.0]" in lines[-1]
    for reason in (
        "1 gain less than the margin", "1 are slower at a point", "1 have the default as the best",
        "1 have what is in force as fast as the fastest", "1 have another reason",
    ):  # fmt: skip
        assert reason in lines[-1]


def test_what_was_held_against_the_rule_says_so() -> None:
    figures = {"rows": 1, "rows_promoted": 1, "table_gain": 1.07, "table_gain_low": 1.06, "table_gain_high": 1.08}
    assert "than what the built-in rule says" in page(
        {"rows": [row("one", 1, "promote", gain=1.07) | {"in_force": True}], "figures": figures}
    )


def test_a_search_alone_has_no_table() -> None:
    assert page({"figures": {}}) == ""
