"""What exported live runs say of their devices, and the comparison of two of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir import ledger as ledgers
from mjolnir.kernel.knobs import Setting
from mjolnir.ledger.packing import pack
from mjolnir.research import devices
from mjolnir.research.answer import Failure, UsageFailure
from mjolnir.research.bench.live import compare, live
from mjolnir.research.bodies import campaign_body
from mjolnir.research.export import documents
from mjolnir.research.findings import device_lines
from mjolnir.research.request import Request
from mjolnir.research.summary import summarize
from mjolnir.tuner import coordinator
from mjolnir.tuner.bench import Bench, Instance, InstanceRequest, Outcome, Race
from mjolnir.tuner.fleet import FleetBench
from mjolnir.tuner.journal import MemoryJournal
from mjolnir.tuner.options import Options
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from tests.fakes.fleet import SlowBench
from tests.tuner.conftest import WINNER, gain, modelled  # noqa: F401

OPTIONS = Options(trials=16, minutes=60, proposer="random", noise=4, enqueued=(WINNER,), depth=8)
IDLE = {"cuda:0": 0.25, "cuda:1": 0.75}


class Device(SlowBench):
    """A card that is slower than the recorded one by a factor, and says how long it waited."""

    def __init__(self, recording: Recording, name: str, factor: float = 1.0) -> None:
        super().__init__(recording, 0.05)
        self._name, self._factor = name, factor

    def measure(self, trial: int, setting: Setting, fault: str = "none", race: Race | None = None) -> Outcome:
        outcome = super().measure(trial, setting, fault, race)
        slower = tuple(
            replace(
                timing,
                candidate=tuple(round(self._factor * ns) for ns in timing.candidate),
                baseline=tuple(round(self._factor * ns) for ns in timing.baseline),
                empty=tuple(round(self._factor * ns) for ns in timing.empty),
            )
            for timing in outcome.timings
        )
        phases = {"compile": 0.0, "gate": 0.01, "measure": 0.03}
        return replace(outcome, timings=slower, phases=phases, facts={**outcome.facts, "idle_ms": IDLE[self._name]})

    def instance(self, request: InstanceRequest) -> Instance:
        return replace(super().instance(request), phases={"open": 1.5, "measure": 0.1})


def records(bench: Bench, options: Options = OPTIONS, simulated: bool = False) -> list[Any]:
    journal = MemoryJournal("live")
    journal.append("campaign", {**campaign_body(Request(), bench, options), "simulated": simulated})
    journal.append("epoch", {"epoch": "e1"})
    coordinator.run(bench, journal, options)
    bench.close()
    return journal.records


@pytest.fixture(scope="module")
def both(gain: Recording) -> list[Any]:  # noqa: F811
    return records(FleetBench({"cuda:0": Device(gain, "cuda:0"), "cuda:1": Device(gain, "cuda:1", 1.02)}))


@pytest.fixture(scope="module")
def one(gain: Recording) -> list[Any]:  # noqa: F811
    return records(FleetBench({"cuda:0": Device(gain, "cuda:0")}))


def save(folder: Path, made: list[Any]) -> Path:
    folder.mkdir()
    (folder / "ledger.jsonl").write_text("".join(json.dumps(record) + "\n" for record in made))
    return folder


def test_the_devices_are_told_apart(both: list[Any]) -> None:
    found = devices.live(both)
    assert found is not None
    assert found == summarize(both)["live"]
    assert found["trials"] == 16
    assert sum(device["trials"] for device in found["devices"].values()) == 16
    assert {name: device["idle_ms"] for name, device in found["devices"].items()} == IDLE
    second = found["devices"]["cuda:1"]
    assert list(second["offset"].values()) == pytest.approx([0.02] * 3, abs=0.01)
    assert set(found["devices"]["cuda:0"]["offset"].values()) == {0.0}
    assert set(second["noise"]) == {"1x4096", "1x16384", "32x4096"}
    assert found["trials_per_minute"] == pytest.approx(60 * 16 / found["seconds"], rel=0.01)
    busy = {name: device["trials"] * 0.04 / found["seconds"] for name, device in found["devices"].items()}
    assert found["busy_share"] == pytest.approx(sum(busy.values()) / 2, rel=0.01)
    assert found["minutes_300"] is None
    assert found["process_seconds"] == {"open": 1.5, "measure": 0.1}
    assert found["processes"] == len({r["body"]["process"] for r in both if "process" in r["body"]})


def test_the_first_300_trials_are_timed_by_the_campaigns_clock(one: list[Any], tmp_path: Path) -> None:
    trials = [record for record in one if record["kind"] == "trial"]
    first = trials[0]["body"]["clock"]
    many = [
        {**trials[n % 16], "body": {**trials[n % 16]["body"], "trial": n + 1, "clock": first + 0.5 * n}}
        for n in range(310)
    ]
    told = live([save(tmp_path / "many", [record for record in one if record["kind"] != "trial"] + many)], None)
    assert told.data["figures"]["live_minutes_300"] == round((0.5 * 299 + 0.04) / 60, 3)


def test_the_findings_say_how_busy_the_devices_were(both: list[Any], one: list[Any]) -> None:
    first, *others = device_lines(summarize(both))
    assert re.fullmatch(r"Search: \d+ trials/min; device busy \d+% of it, idle for 0\.\d+ ms between trials\.", first)
    assert [line.split(": ")[0] for line in others] == ["  cuda:0", "  cuda:1"]
    apart = re.search(r"by \+([\d.]+)% at most", others[1])
    assert apart
    assert 1.0 <= float(apart[1]) <= 3.0
    assert len(device_lines(summarize(one))) == 1
    page = documents(both)["report.html"].decode()
    assert all(line.strip().replace("'", "&#39;") in page for line in device_lines(summarize(both)))


def test_a_second_device_is_compared_with_one(both: list[Any], one: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    before = {"figures": {"live_minutes_300": 3}, "runs": {"earlier": {}}, "table": "kept"}
    out.write_text(json.dumps(before))
    told = live([save(tmp_path / "both", both)], save(tmp_path / "one", one), out)
    figures = told.data["figures"]
    assert figures["speed_up"] > 1.3
    assert (figures["same_winners"], figures["buckets"]) == (2, 2)
    assert 0.25 <= figures["device_idle_ms"] <= 0.75
    kept = json.loads(out.read_text())
    assert kept["figures"] == {**figures, "live_minutes_300": 3}
    assert list(kept["runs"]) == ["both", "earlier", "one"]
    assert kept["table"] == "kept"
    assert kept["winners"]["1"]["winners"][0]["setting"] == WINNER.as_dict()


def test_other_winners_are_the_same_only_within_the_noise(both: list[Any]) -> None:
    def changed(ratio: float) -> dict[str, Any]:
        certificate = {"ratio_default": {"value": ratio, "low": ratio, "high": ratio}}
        body = {
            "bucket": 1,
            "setting": Setting(kv_stages=2).as_dict(),
            "decision": "promote",
            "certificate": certificate,
        }
        last = [{"kind": "promotion", "tag": "live", "body": body}]
        return compare(both, [*both, *last])["1"]

    first = compare(both, both)["1"]
    assert first["same"]
    low, high = first["winners"][0]["ratio"]["low"], first["winners"][0]["ratio"]["high"]
    assert changed((low + high) / 2)["same"]
    assert changed(high * (1 + first["floor"]))["same"]
    assert not changed(high * (1 + 3 * first["floor"]))["same"]


def test_who_found_nothing_faster_is_not_the_same_for_leaving_what_is_in_force(both: list[Any]) -> None:
    def leaves(made: list[Any]) -> list[Any]:
        settled = [record for record in made if record["kind"] != "promotion"]
        for bucket in (1, 32):
            body = {"bucket": bucket, "setting": WINNER.as_dict(), "decision": "not-proven"}
            settled.append(
                {"kind": "promotion", "tag": "live", "body": {**body, "certificate": {"ratio_default": None}}}
            )
        return settled

    def blind(made: list[Any]) -> list[Any]:
        """As if the search had seen the default alone."""
        trials = [record for record in made if record["kind"] == "trial"]
        default = next(r for r in trials if r["body"]["setting"] == Setting().as_dict())
        return [record for record in made if record["kind"] != "trial"] + [default]

    assert all(entry["same"] for entry in compare(leaves(both), leaves(both)).values())
    found = compare(leaves(both), leaves(blind(both)))
    assert {winner["setting"] == WINNER.as_dict() for winner in found["1"]["winners"]} == {True}
    assert found["1"]["leads"][0]["ratio"]["value"] < 0.97 < found["1"]["leads"][1]["ratio"]["value"]
    assert not found["1"]["same"]


def test_winners_that_were_not_measured_again_are_told_apart_by_the_search(both: list[Any]) -> None:
    def ending(setting: Setting, ratio: tuple[float, float, float] | None) -> dict[str, Any]:
        paper = ratio and dict(zip(("value", "low", "high"), ratio, strict=True))
        body = {"bucket": 1, "setting": setting.as_dict(), "decision": "promote" if ratio else "not-proven"}
        last = {"kind": "promotion", "tag": "live", "body": {**body, "certificate": {"ratio_default": paper}}}
        return {"kind": "promotion", **last}

    def same(*ends: dict[str, Any]) -> bool:
        return bool(compare([*both, ends[0]], [*both, ends[1]])["1"]["same"])

    proven, doubled = ending(WINNER, (0.9, 0.89, 0.91)), ending(WINNER, (0.5, 0.49, 0.51))
    assert same(proven, proven)
    assert not same(proven, doubled), "one setting, two times that are far apart"
    assert same(ending(WINNER, None), proven)
    never_tried = Setting(kv_stages=11, ctas_per_sm=1)
    assert not same(ending(never_tried, None), ending(WINNER, None)), "nothing is known of the one"


@pytest.mark.parametrize(
    "changes", [{"facts": None}, {"facts": {"lost": 3}}, {"facts": {"idle_ms": "x"}}, {"phases": {}}, {"timings": 5}]
)
def test_records_that_nothing_here_wrote_are_refused(both: list[Any], tmp_path: Path, changes: dict[str, Any]) -> None:
    made = [{**r, "body": {**r["body"], **changes}} if r["kind"] == "trial" else r for r in both]
    with pytest.raises(Failure, match="records that this version does not understand"):
        live([save(tmp_path / "odd", made)], None)


def test_lines_that_are_no_records_and_records_out_of_order_are_refused(both: list[Any], tmp_path: Path) -> None:
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "ledger.jsonl").write_text("[1]\n")
    with pytest.raises(Failure, match="a line is a JSON list, expected an object"):
        live([tmp_path / "list"], None)
    with pytest.raises(Failure, match="not in the order of their making"):
        live([save(tmp_path / "back", both[::-1])], None)


def test_a_run_is_held_against_one_on_fewer_devices(both: list[Any], tmp_path: Path) -> None:
    first, second = save(tmp_path / "a", both), save(tmp_path / "b", both)
    with pytest.raises(UsageFailure, match=r"2 devices, and .*a had 2; it goes with a run on fewer"):
        live([first], second)


def test_what_was_lost_with_a_worker_is_counted_and_told(both: list[Any]) -> None:
    lost = {"device": "cuda:1", "reason": "the process was ended by SIGKILL", "aside": ""}
    number = iter(range(1, 100))
    made = [
        {**r, "body": {**r["body"], "facts": {**r["body"]["facts"], "lost": [lost] * (next(number) <= 2)}}}
        if r["kind"] == "trial" else r
        for r in both
    ]  # fmt: skip
    found = devices.live(made)
    assert found is not None
    assert found["lost"] == 2
    assert device_lines(summarize(made))[-1] == "  Lost with a worker and asked again: 2."
    assert summarize(both)["live"]["lost"] == 0


def test_a_trial_that_is_missing_or_there_twice_is_seen(both: list[Any]) -> None:
    trials = [record for record in both if record["kind"] == "trial"]
    rest = [record for record in both if record["kind"] != "trial"]
    for made, each_once in ((trials, True), (trials[:4] + trials[5:], False), ([*trials, trials[7]], False)):
        found = devices.live(rest + made)
        assert found is not None
        assert found["each_once"] is each_once


def decided(made: list[Any], tag: str, **ratios: tuple[float, float, float] | None) -> list[Any]:
    """The run without its finals, under another tag, with a decision for each bucket that has ratios."""
    ends = ("value", "low", "high")
    kept = [{**record, "tag": tag} for record in made if record["kind"] != "promotion"]
    for name, ratio in ratios.items():
        body = {
            "bucket": int(name.removeprefix("b")),
            "decision": "promote" if ratio else "not-proven",
            "reason": "as it was found",
            "setting": WINNER.as_dict(),
            "certificate": {"ratio_default": dict(zip(ends, ratio or (0.99, 0.98, 1.0), strict=True))},
        }
        kept.append({"kind": "promotion", "tag": tag, "body": body})
    return kept


def test_the_rows_of_several_runs_are_counted_and_their_gain_has_an_interval(both: list[Any], tmp_path: Path) -> None:
    first = save(tmp_path / "a", decided(both, "a", b1=(0.8, 0.75, 0.9), b32=None))
    second = save(tmp_path / "b", decided(both, "b", b32=(0.5, 0.4, 0.625)))
    told = live([first, second], None)
    figures = told.data["figures"]
    assert (figures["rows"], figures["rows_promoted"]) == (4, 2)
    assert figures["table_gain"] == pytest.approx((1.25 * 2) ** 0.25, abs=1e-4)
    assert figures["table_gain_low"] == pytest.approx((1 / 0.9 * 1.6) ** 0.25, abs=1e-4)
    assert figures["table_gain_high"] == pytest.approx((1 / 0.75 * 2.5) ** 0.25, abs=1e-4)
    assert [(row["tag"], row["bucket"], row["decision"]) for row in told.data["rows"]] == [
        ("a", 1, "promote"), ("a", 32, "not-proven"), ("b", 1, "undecided"), ("b", 32, "promote"),
    ]  # fmt: skip
    assert told.data["rows"][1]["gain"] == {"value": 1.0101, "low": 1.0, "high": 1.02041}
    assert figures["trials_per_minute"] == pytest.approx(devices.live(both)["trials_per_minute"], rel=2e-2)  # type: ignore[index]
    with pytest.raises(UsageFailure, match="one run"):
        live([first, second], first)


def test_an_export_is_read_as_it_is_packed(both: list[Any], tmp_path: Path) -> None:
    packed = [{**record, "schema": ledgers.SCHEMA, "body": pack(record["body"])} for record in both]
    assert any(json.dumps(record["body"]) != json.dumps(was["body"]) for record, was in zip(packed, both, strict=True))
    told = [live([save(tmp_path / name, made)], None).data for name, made in (("packed", packed), ("plain", both))]
    assert told[0]["figures"] == told[1]["figures"]
    assert told[0]["rows"] == told[1]["rows"]


def test_a_run_without_decisions_says_nothing_of_rows(both: list[Any], tmp_path: Path) -> None:
    told = live([save(tmp_path / "cut", decided(both, "cut"))], None)
    assert "rows_promoted" not in told.data["figures"]
    assert "rows" not in told.data


def test_a_row_gains_on_what_was_in_force(both: list[Any], tmp_path: Path) -> None:
    held = decided(both, "held", b1=(0.8, 0.75, 0.9), b32=(0.5, 0.4, 0.625))
    for record in held:
        body = record["body"]
        if record["kind"] == "campaign":
            record["body"] = {**body, "incumbents": {"1": WINNER.as_dict()}}
        if record["kind"] == "promotion" and body["bucket"] == 1:
            paper = {**body["certificate"], "ratio_incumbent": {"value": 0.96, "low": 0.95, "high": 0.98}}
            record["body"] = {**body, "certificate": paper}
    rows = live([save(tmp_path / "held", held)], None).data["rows"]
    assert [row["in_force"] for row in rows] == [True, False]
    assert [row["gain"]["value"] for row in rows] == [round(1 / 0.96, 5), 2.0]


def test_what_is_no_live_run_is_refused(gain: Recording, both: list[Any], tmp_path: Path) -> None:  # noqa: F811
    replayed = records(ReplayBench(gain), simulated=True)
    assert devices.live(replayed) is None
    with pytest.raises(Failure, match="is no live run"):
        live([save(tmp_path / "replay", replayed)], None)
    with pytest.raises(Failure, match="holds no exported run"):
        live([tmp_path / "nothing"], None)
    other = [{**r, "body": {**r["body"], "geometry": {}}} if r["kind"] == "campaign" else r for r in both]
    with pytest.raises(Failure, match="differ in their geometry"):
        live([save(tmp_path / "a", both)], save(tmp_path / "b", other))
