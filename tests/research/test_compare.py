"""Two campaigns side by side, and the honesty about what cannot be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.kernel.knobs import Setting
from mjolnir.research.compare import agreement, differing, not_comparable
from tests.research.test_cli import call

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
TAG = "h200-decode8"


def trial(ratio: float | None, **knobs: int) -> dict[str, Any]:
    ratios = {} if ratio is None else {"8": ratio}
    return {"resolved": Setting(kv_stages=6, **knobs).as_dict(), "ratios": ratios}


def rewritten(tmp_path: Path, change: Any = lambda kind, body: body) -> Path:
    """A ledger with the committed campaign again, under the tag `again`, its bodies changed."""
    with ledgers.open(tmp_path / "ledger", git="off") as ledger:
        first, *others = ledgers.read_file(RUN)
        with ledger.writer("again", first.environment) as writer:
            for record in (first, *others):
                if record.kind in ("campaign", "epoch", "trial", "noise", "promotion"):
                    writer.append(record.kind, change(record.kind, json.loads(json.dumps(record.body))))
    return tmp_path / "ledger"


def compared(ledger: Path) -> dict[str, Any]:
    code, out, err = call("autoresearch", "compare", TAG, "again", "--ledger", ledger, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def test_a_campaign_agrees_with_itself(tmp_path):
    ledger = rewritten(tmp_path)
    data = compared(ledger)
    assert (data["not_comparable"], data["environment"]) == ([], [])
    assert [bucket["bucket"] for bucket in data["buckets"]] == [1, 4, 8, 32, 64, 128]
    for bucket in data["buckets"]:
        found = bucket["agreement"]
        assert (found["settings"], found["value"], found["within"]) == (165, 1.0, 1.0)
        assert found["rank"] == pytest.approx(1.0)
        assert bucket["old"] == bucket["new"]
    assert data["buckets"][2]["old"]["ratio_default"]["value"] == pytest.approx(0.9172, abs=1e-4)
    text = call("autoresearch", "compare", TAG, "again", "--ledger", ledger)[1]
    assert "Their epochs have the same environment." in text
    assert "165 settings measured by both" in text
    assert "setting decided on" in text
    assert "The setting is the one that was decided on" in " ".join(text.split())


def test_other_versions_are_named_and_still_compared(tmp_path):
    def change(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind == "epoch":
            body["parts"]["driver"] = "600.1"
            body["parts"]["policy"]["rounds"] = 24
        return body

    data = compared(rewritten(tmp_path, change))
    assert data["environment"] == [
        {"name": "driver", "old": "580.159.04", "new": "600.1"},
        {"name": "policy.rounds", "old": 12, "new": 24},
    ]
    assert data["buckets"][0]["agreement"]["settings"] == 165


def test_another_problem_is_shown_and_not_compared(tmp_path):
    words = "other devices"

    def change(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind == "campaign":
            body["device"]["name"] = "NVIDIA B200"
        return body

    ledger = rewritten(tmp_path, change)
    data = compared(ledger)
    assert len(data["not_comparable"]) == 1
    assert words in data["not_comparable"][0]
    assert all(bucket["agreement"] is None and bucket["old"] and bucket["new"] for bucket in data["buckets"])
    assert f"Cannot be compared: {words}" in call("autoresearch", "compare", TAG, "again", "--ledger", ledger)[1]


@pytest.mark.parametrize(
    ("part", "name", "value", "words"),
    [
        ("device", "name", "NVIDIA B200", "other devices: NVIDIA H200 (sm_90a, 132 SMs) and NVIDIA B200"),
        ("geometry", "page_size", 16, "other geometries"),
        ("placement", "kv", "apart", "other placements"),
        ("default", "pdl", 1, "other built-in defaults"),
    ],
)
def test_what_makes_ratios_be_of_other_things(part, name, value, words):
    campaign = ledgers.read_file(RUN)[0].body
    other = {**campaign, part: {**campaign[part], name: value}}
    (reason,) = not_comparable(campaign, other)
    assert reason.startswith(words)
    assert not_comparable(campaign, campaign) == []


def test_a_bucket_of_other_points_is_not_compared(tmp_path):
    def change(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind == "campaign":
            body["workload"]["points"][3]["contexts"] = 4096  # batch 4
            body["workload"]["points"][0]["weight"] = 3.0  # batch 1
        return body

    data = compared(rewritten(tmp_path, change))
    assert data["not_comparable"] == []
    assert [bucket["agreement"] is None for bucket in data["buckets"]] == [True, True, False, False, False, False]
    assert "other points or weights" in data["buckets"][1]["not_comparable"]


def test_agreement_is_over_the_settings_that_both_measured():
    old = [trial(1.0), trial(0.9, pdl=1), trial(0.8, l2_prefetch=1), trial(0.5, ctas_per_sm=1), trial(None)]
    new = [trial(1.0), trial(0.945, pdl=1), trial(0.96, l2_prefetch=1), trial(0.96, l2_prefetch=1)]
    found = agreement(old, new, 8)
    assert found is not None
    assert found["settings"] == 3
    assert found["value"] == pytest.approx(1.05)
    assert (found["low"], found["high"]) == (pytest.approx(1.0), pytest.approx(1.2))
    assert found["within"] == pytest.approx(1 / 3)
    assert found["rank"] == pytest.approx(0.5)
    assert found["worst"]["setting"]["l2_prefetch"] == 1
    assert found["worst"]["ratio"] == pytest.approx(math.exp(math.log(0.96 / 0.8)))
    assert agreement(old, new[:2], 8) is None
    assert agreement(old, new, 32) is None


def test_differing_leaves_are_named():
    assert list(differing({"a": {"b": 1}, "c": 2}, {"a": {"b": 1}, "d": 3})) == [
        {"name": "c", "old": 2, "new": None},
        {"name": "d", "old": None, "new": 3},
    ]


def test_an_unknown_tag_is_refused(tmp_path):
    code, _, err = call("autoresearch", "compare", TAG, "none", "--ledger", tmp_path)
    assert code == 1
    assert "there is no tag none" in err
