"""The report page in a browser: nothing loaded, nothing complained of, nothing cut off; and what it says, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.research.export import documents
from mjolnir.research.journal import as_mapping
from mjolnir.research.report import times, winners
from mjolnir.research.report.windows import lines, windows
from mjolnir.research.summary import summarize
from tests.research import browser
from tests.research.test_cli import replay

RUN = Path(__file__).parents[2] / "research" / "runs" / "h200-decode8" / "ledger.jsonl"
RECORDS = [as_mapping(record) for record in ledgers.read_file(RUN)]

CUT_OFF = """[...document.querySelectorAll('body *')].filter(element => {
  const around = (element.parentElement.closest('section') || document.documentElement).getBoundingClientRect();
  return !element.closest('.wide') && element.getBoundingClientRect().right > around.right + 0.5;
}).map(element => element.tagName + ' ' + element.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def pages(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The page of the committed campaign, and that of a replay with a row in force and trials that failed."""
    folder = tmp_path_factory.mktemp("pages")
    assert replay(recording, folder / "ledger", trials=30)[0] == 0
    with ledgers.open(folder / "ledger") as opened:
        replayed = [as_mapping(record) for record in opened.records("a")]
    made = [folder / "live.html", folder / "failed.html"]
    made[0].write_bytes(documents(RECORDS)["report.html"])
    made[1].write_bytes(documents(with_failures(replayed))["report.html"])
    return made


def with_failures(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with some trials that were not measured."""
    kinds = {5: ("crashed", "<script>alert(1)</script> an illegal address"), 7: ("hung", "no answer for 30 s")}
    kinds |= dict.fromkeys(range(10, 25), ("infeasible", "a_very_long_word_that_no_line_has_room_for_" * 4))
    found = []
    for record in records:
        body = record["body"]
        if record["kind"] == "trial" and body["trial"] in kinds:
            status, reason = kinds[body["trial"]]
            lost: dict[str, Any] = {
                "ratio": None,
                "ratios": {},
                "timings": [],
                "kept_buckets": [],
                "verdict": "discard",
            }
            found.append({**record, "body": {**body, **lost, "status": status, "reason": reason}})
        else:
            found.append(record)
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("there is no Chromium to look at the page with")
    with browser.Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize(("width", "dark"), [(320, False), (390, False), (390, True), (820, False), (1280, True)])
def test_it_fits_loads_nothing_and_raises_nothing(page, pages, width, dark):
    for path in pages:
        page.open(path, width, 844, dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
        assert [request["request"]["url"] for request in page.told("Network.requestWillBeSent")] == [path.as_uri()]
        assert page.told("Log.entryAdded") + page.told("Runtime.consoleAPICalled") == []
        assert page.told("Runtime.exceptionThrown") == []


def test_the_look_finds_what_is_wrong(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<!doctype html><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<p style="width: 600px">wide</p><img src="http://127.0.0.1:9/x.png"><script>console.error("no")</script>'
    )
    page.open(bad, 390, 844)
    assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert page.evaluate(CUT_OFF) == ["P wide"]
    assert len(page.told("Network.requestWillBeSent")) == 2
    assert page.told("Runtime.consoleAPICalled")


def test_on_paper_all_is_unfolded_but_the_raw_data(page, pages):
    page.open(pages[0], 688, 970)
    hidden = """[...document.querySelectorAll('details')].filter(one =>
      one.offsetHeight < one.firstElementChild.offsetHeight + 20).map(one => one.className)"""
    assert len(page.evaluate(hidden)) > 7, "on a screen they are folded"
    page.call("Emulation.setEmulatedMedia", media="print")
    assert set(page.evaluate(hidden)) == {"data"}
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    assert page.evaluate(CUT_OFF) == []
    page.call("Emulation.setEmulatedMedia", media="")


def test_failures_are_counted_by_kind_and_said_as_text(page, pages):
    page.open(pages[1], 820, 844)
    rows = page.evaluate(
        "[...document.querySelectorAll('h2')].find(one => one.textContent.startsWith('Trials that were not'))"
        ".nextElementSibling.innerText"
    ).splitlines()
    assert rows[1].split("\t")[:2] == ["infeasible", "15"]
    assert [row.split("\t")[:2] for row in rows[2:]] == [["crashed", "1"], ["hung", "1"]]
    assert "<script>alert(1)</script> an illegal address (1)" in rows[2]


def test_remarks_are_told_as_text():
    note = {"kind": "note", "body": {"text": "a < b\nand c", "about": "trial 7"}}
    told = documents([*RECORDS, {**RECORDS[-1], **note}])["report.html"].decode()
    assert '<dt>trial 7</dt><dd class="remark">a &lt; b\nand c</dd>' in told
    assert "<h2>Remarks</h2>" not in documents(RECORDS)["report.html"].decode()


def test_times_shares_and_price_of_the_committed_campaign():
    summary = summarize(RECORDS)
    first, *_ = summary["buckets"]
    found = times.of_bucket(summary, RECORDS, first)
    assert [time.name for time in found] == ["1x4096", "1x16384", "1x65536"]
    assert [time.read for time in found] == [8 << 20, 32 << 20, 128 << 20], "2 x 8 heads x 128 bytes a token"
    assert found[0].ceiling == pytest.approx(2.4 + 8 * 2**20 / 4.68e6)
    assert found[0].share == pytest.approx(4.19 / 10.4, abs=0.01)
    assert found[0].incumbent is None
    gains = [1 - time.setting / time.default for time in found if time.setting and time.default]
    assert sum(gains) / 3 == pytest.approx(0.06, abs=0.005), "the certificate says 0.940"
    assert all(time.price is not None and time.price >= 0 for time in found)
    last = times.of_bucket(summary, RECORDS, summary["buckets"][-1])
    assert [time.price for time in last] == [pytest.approx(0, abs=0.03)]
    assert winners.headline(summary) == "Proven faster in 6 of 6 batch buckets: by 3.0% to 14.2%, against the default."
    assert [span.label for span in winners.spans(summary)] == [f"batch {batch}" for batch in (1, 4, 8, 32, 64, 128)]


def instance(kind: str, samples: list[list[list[int]]], **more: Any) -> dict[str, Any]:
    arms = [{"pdl": 1}, {"pdl": 0}, {"pdl": 0, "kv_stages": 3}]
    body = {"bucket": 8, "epoch": "e", "status": "measured", "arms": arms, "default": 1, "incumbent": 2, "points": [1]}
    return {"kind": kind, "body": {**body, "samples": samples, **more}}


def test_times_are_those_that_the_decision_rests_on():
    geometry = {"heads_q": 32, "heads_kv": 8}
    workload = {
        "schema": "mjolnir.workload/1", "name": "two",
        "points": [{"batch": batch, "contexts": 1000, "weight": 1.0} for batch in (1, 8)],
    }  # fmt: skip
    summary = {"geometry": geometry, "workload": workload, "device": {"name": "NVIDIA H200"}}
    promotion = {"bucket": 8, "epoch": "e", "setting": {"pdl": 1}}
    bucket = {"bucket": 8, "promotion": promotion}
    shot = instance("shootout", [[[8_000], [9_000], [5_000]]])
    records = [
        shot,
        instance("confirmation", [[[10_000, 12_000, 11_000], [20_000], [15_000]]]),
        instance("confirmation", [[[13_000], [22_000], [15_000]]]),
        instance("confirmation", [[[1], [1], [1]]], epoch="older"),
        instance("confirmation", [[[1], [1], [1]]], bucket=1),
        instance("confirmation", [], status="dirty"),
    ]
    (found,) = times.of_bucket(summary, records, bucket)
    assert (found.name, found.read) == ("8x1000", 8 * 1000 * 2048)
    assert (found.setting, found.default, found.incumbent) == (12.0, 21.0, 15.0)
    assert found.price == pytest.approx(8 / 5 - 1)
    assert found.share == pytest.approx((2.4 + 8 * 1000 * 2048 / 4.68e6) / 12)
    (found,) = times.of_bucket({**summary, "device": {"name": "another"}}, [shot], bucket)
    assert (found.setting, found.ceiling, found.share) == (8.0, None, None)
    told = {**bucket, "promotion": {**promotion, "price": {"weighted": 0.1, "points": {"8x1000": 0.2}}}}
    assert times.of_bucket(summary, records, told)[0].price == 0.2
    assert times.of_bucket(summary, records, {"bucket": 8, "promotion": None}) == []


def test_the_headline_says_what_came_of_it():
    def bucket(decision: str, value: float) -> dict[str, Any]:
        ratio = {"value": value, "low": value - 0.01, "high": value + 0.01}
        return {"bucket": 8, "promotion": {"decision": decision, "certificate": {"ratio_default": ratio}}}

    said = winners.headline({"buckets": [bucket("promote", 0.8), bucket("not-proven", 0.5)]})
    assert said == "Proven faster in 1 of 2 batch buckets: by 25.0%, against the default."
    assert winners.headline({"buckets": [bucket("not-proven", 0.5)]}).startswith("No setting was proven")
    assert winners.headline({"buckets": [{"bucket": 8, "promotion": None}]}) == "No batch bucket was decided."


def test_windows_are_told_by_their_extremes():
    side = {"sm_mhz": 1980, "celsius": 40, "throttle": [], "strangers": 0, "newcomers": 0}
    hot = {**side, "celsius": 80, "throttle": ["thermal"], "strangers": 1}
    trial = {"epoch": "e", "timings": [{"window": {"before": side, "after": hot, "dirty": "hot"}}, {"window": {}}]}
    noise = {"epoch": "e", "timings": [{"window": {"before": side, "after": side, "dirty": ""}}]}
    proof = {"epoch": "e", "window": {"replayed": True}}
    records = [
        {"kind": "trial", "body": trial},
        {"kind": "noise", "body": noise},
        {"kind": "confirmation", "body": proof},
    ]
    told = dict(lines(windows(records, {"epoch": "e"})))
    assert told == {
        "windows": "2", "SM clock": "1980 MHz", "temperature": "40 to 80 °C", "throttled": "thermal (1)",
        "readings that saw other processes": "1", "dirty windows, their times not used": "hot (1)",
    }  # fmt: skip
    assert lines(windows(records, {"epoch": "another"})) == []
