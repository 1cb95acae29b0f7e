"""What each knob does, as status, summary and page tell it: also when nothing was gained."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

from mjolnir import ledger as ledgers
from mjolnir.research import effects
from mjolnir.research.export import documents
from mjolnir.research.journal import as_mapping
from mjolnir.research.summary import summarize
from tests.research.test_cli import call, replay

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
RECORDS = [as_mapping(record) for record in ledgers.read_file(RUN)]
DEAD = {"dead": True, "pairs": 7, "binary_changed": False}


def test_the_committed_campaign_tells_what_its_knobs_do():
    found = summarize(RECORDS)["effects"]
    assert found["settings"] == 165
    knobs = found["knobs"]
    (pdl,) = knobs["pdl"]["effects"]["all"]
    assert (pdl["method"], pdl["pairs"]) == ("pairs", 33)
    assert -0.02 < pdl["low"] < pdl["high"] < 0, "dependent launch gains about half a percent"
    never_split = next(entry for entry in knobs["max_splits"]["effects"]["1"] if entry["value"] == 1)
    assert never_split["low"] > 1, "a batch of one that is never split leaves most of the card idle"
    prefetch = next(entry for entry in knobs["l2_prefetch"]["effects"]["128"] if entry["value"] == 1)
    assert (prefetch["method"], prefetch["low"] > 0.1) == ("pairs", True)
    assert not any(facts["dead"] for facts in knobs.values())
    assert max(knobs, key=lambda name: knobs[name]["importance"]["1"]) == "max_splits"
    assert max(knobs, key=lambda name: knobs[name]["importance"]["128"]) == "l2_prefetch"
    assert all(0.8 < share <= 1 for share in found["explained"].values())


def test_status_and_summary_tell_the_same(recording, tmp_path):
    assert replay(recording, tmp_path, trials=30)[0] == 0
    code, out, _ = call("autoresearch", "status", "a", "--ledger", tmp_path, "--json")
    assert code == 0
    told = json.loads(out)["effects"]
    assert told == json.loads(call("autoresearch", "show", "a", "--ledger", tmp_path, "--json")[1])["effects"]
    assert {"ctas_per_sm", "kv_stages", "max_splits", "pdl"} <= set(told["knobs"])
    for command in ("status", "show"):
        text = call("autoresearch", command, "a", "--ledger", tmp_path)[1]
        (line,) = [line for line in text.splitlines() if line.startswith("pdl ")]
        assert "on: between" in line
        assert effects.LEGEND[:40] in text


def test_the_page_has_a_cell_for_each_value_and_bucket():
    page = unescape(documents(RECORDS)["report.html"].decode())
    section = page[page.index("What each knob does") : page.index("Trials that were not measured")]
    found = summarize(RECORDS)["effects"]["knobs"]
    (pdl,) = found["pdl"]["effects"]["128"]
    assert f"{pdl['low']:+.1%} to {pdl['high']:+.1%}" in section
    assert section.count("<tr>") == len(found) + sum(
        len({entry["value"] for row in facts["effects"].values() for entry in row}) for facts in found.values()
    )
    assert '<td class="slower">' in section
    assert '<td class="faster">' in section


def test_knobs_that_do_nothing_are_named():
    assert effects.verdict("pdl", DEAD) == "dead: no change of binary, plans or times in 7 pairs"
    same = effects.verdict("pdl", {**DEAD, "dead": False})
    assert same == "the binary is the same in 7 pairs: not wired, or a stale cache"
    assert effects.verdict("max_splits", {**DEAD, "dead": False}) == "", "it is in the plan, not in the binary"
    assert effects.verdict("pdl", {**DEAD, "dead": None, "binary_changed": None}) == ""
    assert effects.between({"low": -0.003, "high": 0.004}) == "between -0.3% and +0.4%"
