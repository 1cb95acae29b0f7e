"""Gate and timing on a fake card, in this process: what passes, what is refused, and that what failed is not timed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel.cases import Case, Inputs
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import Status, Timing
from mjolnir.tuner.gpu.canaries import StaleBinary, baked, stand_in
from mjolnir.tuner.gpu.card import Graph
from mjolnir.tuner.gpu.chain import Chains, LaunchError
from mjolnir.tuner.gpu.expected import load_inputs
from mjolnir.tuner.gpu.inputs import KVSet
from mjolnir.tuner.gpu.session import Session
from mjolnir.tuner.gpu.worker import create, hold, instance, measure, noise
from tests.fakes.gpu import CHAIN_NS, DEVICE, EMPTY_NS, STICKY, FakeBinary
from tests.tuner.gpu.conftest import GEOMETRY, POLICY

Sessions = Callable[..., Session]
Expected = dict[str, str]
CANDIDATE = Setting(kv_stages=3)
TROUBLE = {"1": "nan", "2": "wrong", "3": "wrong when timed", "4": "scribbles", "5": "silent when timed"}


def request(expected: Expected, setting: Setting = CANDIDATE, **values: Any) -> dict[str, Any]:
    made = binaries(setting, Setting(), fault=values.get("fault", "none"))
    return {
        "op": "measure", "trial": 1, "setting": setting.as_dict(), "fault": "none", "points": [0, 1, 2],
        "rounds": None, "expected": expected, "binaries": made, **values,
    }  # fmt: skip


def binaries(*settings: Setting, fault: str = "none") -> list[dict[str, Any]]:
    """What was built, as the bench tells it."""
    pairs = dict.fromkeys([(setting, each) for setting in settings for each in ("none", fault)])
    return [
        {"setting": setting.as_dict(), "fault": each, **asdict(FakeBinary.of(setting, GEOMETRY, baked(each)))}
        for setting, each in pairs
    ]


def timed(tmp_path: Path) -> list[Setting | None]:
    """What has been timed so far; None is the empty chain."""
    path = tmp_path / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Setting(**json.loads(line)) if line != "null" else None for line in lines]


def ignore(phase: str) -> None:
    """No phase is of interest."""


def test_a_right_setting_is_timed_against_the_default(session: Sessions, expected: Expected, tmp_path: Path) -> None:
    phases: list[str] = []
    answer = measure(session(), request(expected), phases.append)
    assert answer["status"] == Status.MEASURED
    assert phases == ["inputs", "gate", "baseline", "measure"]
    timings = [Timing.from_dict(values) for values in answer["timings"]]
    assert [timing.point for timing in timings] == [0, 1, 2]
    for timing in timings:
        assert len(timing.candidate) == len(timing.baseline) == len(timing.empty) == POLICY.rounds
        assert all(EMPTY_NS + CHAIN_NS + 300 <= ns < EMPTY_NS + CHAIN_NS + 310 for ns in timing.candidate)
        assert all(EMPTY_NS + CHAIN_NS <= ns < EMPTY_NS + CHAIN_NS + 10 for ns in timing.baseline)
        assert set(timing.empty) == {EMPTY_NS}
    assert answer["correctness"]["points"]["checked"] == 3
    assert answer["correctness"]["cases"]["checked"] >= 5
    assert answer["correctness"]["points"]["worst"]["excess"] <= 1
    assert answer["correctness"]["fresh"]["checked"] == 1
    assert len(set(answer["plans"])) == 3
    assert set(answer["phases"]) == set(phases)
    assert len(answer["facts"]["plan_ns"]) == 3
    assert {setting for setting in timed(tmp_path) if setting} == {CANDIDATE, Setting()}
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize(
    ("l2_prefetch", "status", "words"),
    [
        (1, Status.NAN, "case edges: the output holds NaN"),
        (2, Status.INCORRECT, "case edges: an output is off by 0.5"),
        (3, Status.INCORRECT, "point 1x200: an output is off by"),
        (4, Status.INCORRECT, "point 1x200: inputs were written to: KV cache"),
        (5, Status.NAN, "point 1x200: the output holds NaN or infinity, or was not written"),
    ],
)
def test_a_wrong_setting_is_refused_and_never_timed(
    session: Sessions, expected: Expected, tmp_path: Path, l2_prefetch: int, status: Status, words: str
) -> None:
    made = session(trouble=TROUBLE)
    answer = measure(made, request(expected, Setting(l2_prefetch=l2_prefetch)), ignore)
    assert answer["status"] == status
    assert words in answer["reason"]
    assert "timings" not in answer
    kind = "cases" if words.startswith("case") else "points"
    assert answer["correctness"][kind]["worst"]["status"] == status
    assert timed(tmp_path) == []
    json.dumps(answer, allow_nan=False)
    assert answer["spoiled"] is (l2_prefetch == 4)
    if not answer["spoiled"]:
        assert measure(made, request(expected), ignore)["status"] == Status.MEASURED


def test_a_process_reads_the_inputs_of_small_cases_once_and_anew_after_a_wrong_kernel(
    session: Sessions, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(case: Case, path: Path) -> Inputs:
        read.append(path)
        return load_inputs(case, path)

    monkeypatch.setattr("mjolnir.tuner.gpu.gate.load_inputs", counted)
    made = session(trouble=TROUBLE)
    for max_splits in (0, 1):
        assert all(check.passed for check in made.gate_binary(Setting(max_splits=max_splits), expected))
    once = sorted(set(read))
    assert sorted(read) == once
    assert measure(made, request(expected, Setting(l2_prefetch=2)), ignore)["status"] == Status.INCORRECT
    assert measure(made, request(expected), ignore)["status"] == Status.MEASURED
    assert sorted(read) == sorted(once * 2)


def test_a_damaged_file_of_inputs_costs_time_alone(session: Sessions, expected: Expected, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(Path(next(iter(expected.values()))).parent, tmp_path / "kept"))
    for path in folder.glob("case-*"):
        path.write_bytes(path.read_bytes()[:-5000])
    moved = {name: str(folder / Path(path).name) for name, path in expected.items()}
    assert all(check.passed for check in session().gate_binary(Setting(), moved))
    for path in folder.glob("expected-*"):
        path.unlink()
    with pytest.raises(ValueError, match="missing or damaged"):
        session().gate_binary(Setting(), moved)


def test_a_device_worker_takes_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    create()
    assert taken == [1]


@pytest.mark.parametrize("fault", ["mask", "skip", "silent"])
@pytest.mark.parametrize("max_splits", [0, 1])
def test_canaries_are_refused_by_the_small_cases(
    session: Sessions, expected: Expected, tmp_path: Path, fault: str, max_splits: int
) -> None:
    answer = measure(session(), request(expected, Setting(max_splits=max_splits), fault=fault), ignore)
    assert answer["status"] == (Status.NAN if fault == "silent" else Status.INCORRECT)
    assert answer["reason"].startswith("case ")
    assert timed(tmp_path) == []


def test_a_canary_that_passes_is_not_timed_either(
    session: Sessions, expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session()
    monkeypatch.setattr(made.card, "decoder", blind(made.card.decoder))
    monkeypatch.setattr("mjolnir.tuner.gpu.session.require_binary", lambda *_: None)
    answer = measure(made, request(expected, fault="mask"), ignore)
    assert answer["status"] == Status.MEASURED
    assert "let a 'mask' fault pass" in answer["reason"]
    assert "timings" not in answer
    assert timed(tmp_path) == []


def test_a_stale_binary_is_seen_by_its_name_and_code_alone(
    session: Sessions, expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = stand_in(Setting(), GEOMETRY, DEVICE)
    assert other.kv_stages == resolve(Setting(), GEOMETRY, DEVICE).kv_stages - 1
    stale = request(expected, Setting(), fault="stale", serve=other.as_dict())
    answer = measure(session(), stale, ignore)
    assert answer["status"] == Status.INCORRECT
    assert f"would run for {Setting()}; built was" in answer["reason"]
    assert answer["correctness"]["cases"]["checked"] >= 5
    assert timed(tmp_path) == []
    # Its outputs are right: without the comparison nothing would be seen.
    monkeypatch.setattr("mjolnir.tuner.gpu.session.require_binary", lambda *_: None)
    assert measure(session(), stale, ignore)["status"] == Status.MEASURED


def test_a_stale_binary_that_is_no_canary_is_the_benchs_own_failure(session: Sessions, expected: Expected) -> None:
    told = binaries(CANDIDATE, Setting())
    told[0]["binary"] = "0" * 64
    with pytest.raises(StaleBinary, match=r"built was .* \(code 000000000000\)"):
        measure(session(), request(expected, binaries=told), ignore)
    with pytest.raises(StaleBinary, match="no binary was built"):
        measure(session(), request(expected, binaries=binaries(Setting())), ignore)


def test_a_replayed_output_is_seen_on_new_queries_alone(
    session: Sessions, expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session()
    answer = measure(made, request(expected, Setting(), fault="replayed"), ignore)
    assert answer["status"] == Status.INCORRECT
    assert answer["reason"].startswith("other queries at 3x195t-729cef: an output is off by")
    assert answer["correctness"]["points"]["checked"] == 3
    assert "status" not in answer["correctness"]["points"]["worst"]
    assert timed(tmp_path) == []
    assert answer["spoiled"] is False
    assert measure(made, request(expected), ignore)["status"] == Status.MEASURED
    monkeypatch.setattr(Session, "gate_fresh", lambda *_: [])
    assert "let a 'replayed' fault pass" in measure(made, request(expected, fault="replayed"), ignore)["reason"]


def test_other_queries_leave_the_inputs_as_they_were(session: Sessions) -> None:
    inputs = session().inputs(0)
    before = inputs.q_source.clone()
    with inputs.other_queries(7) as (reference, allowed):
        assert reference.shape == allowed.shape == inputs.out[-1].shape
        assert not torch.equal(inputs.q_source[-1], before[-1])
        assert torch.equal(inputs.q_source[0], before[0])
    assert torch.equal(inputs.q_source, before)
    assert inputs.changed() == ""


def test_a_time_that_is_no_number_ends_as_nan(session: Sessions, expected: Expected) -> None:
    made = session(trouble={"3": "no clock"})
    answer = measure(made, request(expected, Setting(l2_prefetch=3)), ignore)
    assert (answer["status"], "timings" in answer) == (Status.NAN, False)
    assert "took nan ns by the device's clock" in answer["reason"]
    arms = [Setting(l2_prefetch=3), Setting()]
    ask = {
        "op": "instance", "number": 1, "points": [0], "rounds": 4, "expected": expected,
        "arms": [setting.as_dict() for setting in arms], "binaries": binaries(*arms),
    }  # fmt: skip
    assert instance(made, ask, ignore)["status"] == Status.NAN
    assert measure(made, request(expected), ignore)["status"] == Status.MEASURED


def test_a_clock_that_collapses_makes_the_trial_dirty(session: Sessions, expected: Expected) -> None:
    fallen = {"sm_mhz": 900}
    answer = measure(session(looks=[{}, *[fallen] * 9]), request(expected), ignore)
    assert answer["status"] == Status.DIRTY
    assert answer["reason"] == "the window was dirty: the SM clock fell to 900 MHz, of late it was 1980"
    once = measure(session(looks=[{}, fallen]), request(expected), ignore)
    assert once["status"] == Status.MEASURED
    (discarded,) = once["timings"][0]["window"]["discarded"]
    assert discarded["after"]["sm_mhz"] == 900
    assert [len(arm) for arm in discarded["samples"]] == [POLICY.rounds] * 2


def test_equal_inputs_give_equal_bits_or_it_is_said(session: Sessions, expected: Expected) -> None:
    made = session(trouble={"3": "wavers"})
    arms = [Setting(l2_prefetch=3), Setting()]
    ask = {
        "op": "instance", "number": 1, "points": [0, 2], "rounds": 4, "expected": expected,
        "arms": [setting.as_dict() for setting in arms], "binaries": binaries(*arms),
    }  # fmt: skip
    answer = instance(made, ask, ignore)
    assert answer["status"] == Status.MEASURED, answer["reason"]
    assert [made["bitwise"] for made in answer["correctness"]["arms"]] == [
        {"launches": 2, "points": 2, "equal": False}, {"launches": 2, "points": 2, "equal": True},
    ]  # fmt: skip


def blind(decoder: Callable[..., Any]) -> Callable[..., Any]:
    return lambda setting, **values: decoder(setting, **{**values, "fault": "none"})


def test_a_default_that_fails_is_not_the_candidates_fault(
    session: Sessions, expected: Expected, tmp_path: Path
) -> None:
    made = session(trouble={"0": "wrong when timed"})
    answer = measure(made, request(expected, Setting(l2_prefetch=1)), ignore)
    assert answer["status"] == Status.INFRASTRUCTURE
    assert "the built-in default" in answer["reason"]
    assert answer["spoiled"] is True
    assert timed(tmp_path) == []
    assert measure(made, request(expected, Setting()), ignore)["status"] == Status.INCORRECT


def test_device_errors_are_laid_on_the_kernel(session: Sessions, expected: Expected, tmp_path: Path) -> None:
    made = session(trouble={"1": "sticky", "2": "refuses"})
    phases: list[str] = []
    with pytest.raises(LaunchError, match="this argument is wrong"):
        measure(made, request(expected, Setting(l2_prefetch=2)), phases.append)
    with pytest.raises(LaunchError, match=STICKY):
        measure(made, request(expected, Setting(l2_prefetch=1)), phases.append)
    assert phases[-1] == "gate"
    assert timed(tmp_path) == []


def test_a_trial_renews_one_point_in_turn(session: Sessions, expected: Expected) -> None:
    made = session()
    measure(made, request(expected, trial=3), ignore)
    seeds = [made.inputs(point).seed for point in range(3)]
    for trial, renewed in ((4, 2), (7, 0), (8, 1)):  # in turn, whichever trials come here
        answer = measure(made, request(expected, trial=trial), ignore)
        assert answer["status"] == Status.MEASURED
        now = [made.inputs(point).seed for point in range(3)]
        assert [a != b for a, b in zip(now, seeds, strict=True)] == [point == renewed for point in range(3)]
        assert now[renewed] in answer["correctness"]["points"]["seeds"]
        seeds = now
    measure(made, request(expected, trial=None), ignore)
    assert [made.inputs(point).seed for point in range(3)] == seeds


def test_splits_share_a_graph_and_other_knobs_do_not(
    session: Sessions, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session()
    captures: list[int] = []
    capture = Chains.capture

    def counted(self: Chains, point: int, launch: Callable[[KVSet], None]) -> Graph:
        captures.append(point)
        return capture(self, point, launch)

    monkeypatch.setattr(Chains, "capture", counted)
    measure(made, request(expected, Setting(kv_stages=3, max_splits=2)), ignore)
    assert len(captures) == 9  # candidate, default and empty chain at three points
    measure(made, request(expected, Setting(kv_stages=3, max_splits=8)), ignore)
    assert len(captures) == 9
    measure(made, request(expected, Setting(kv_stages=3, max_splits=1)), ignore)
    assert len(captures) == 12


def test_the_binaries_that_were_used_last_keep_their_graphs(session: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjolnir.tuner.gpu.session.KEPT_ARMS", 3)
    made = session()
    settings = [Setting(kv_stages=stages) for stages in (2, 3, 4, 5)]
    made.expect(binaries(*settings))
    arms = [made.arm(setting) for setting in settings[:3]]
    assert made.arm(replace(settings[0], max_splits=4)) is arms[0]  # used again, so the second is now the oldest
    last = made.arm(settings[3])
    assert [made.arm(settings[number]) for number in (0, 2, 3)] == [arms[0], arms[2], last]
    assert made.arm(settings[1]) is not arms[1]


def test_the_default_as_candidate_has_a_plan_of_its_own(session: Sessions, expected: Expected) -> None:
    made = session()
    answer = measure(made, request(expected, Setting(max_splits=4)), ignore)
    assert answer["status"] == Status.MEASURED
    baseline, failed = made.baseline([0], expected)
    assert failed is None
    assert baseline.setting == Setting()
    assert baseline is not made.arm(Setting(max_splits=4))


def test_some_points_for_some_rounds(session: Sessions, expected: Expected) -> None:
    answer = measure(session(), request(expected, trial=None, points=[2], rounds=4), ignore)
    timing = Timing.from_dict(answer["timings"][0])
    assert (timing.point, len(timing.candidate), len(answer["timings"])) == (2, 4, 1)
    assert len(answer["plans"]) == 3


def test_what_a_dirty_window_holds_is_kept_as_dirty(session: Sessions, expected: Expected) -> None:
    answer = measure(session(dirty_looks=99), request(expected), ignore)
    assert answer["status"] == Status.DIRTY
    assert "hw_thermal" in answer["reason"]
    assert [len(timing["window"]["discarded"]) for timing in answer["timings"]] == [POLICY.attempts - 1] * 3
    assert all(timing["window"]["dirty"] for timing in answer["timings"])
    assert measure(session(dirty_looks=1), request(expected), ignore)["status"] == Status.MEASURED


def test_noise_is_the_default_twice_on_a_fresh_instance(session: Sessions, expected: Expected, tmp_path: Path) -> None:
    made = session()
    told = {"expected": expected, "binaries": binaries(Setting())}
    ask = {"op": "noise", "number": 1, "points": [0, 1, 2], "rounds": None, **told}
    first = noise(made, ask, ignore)
    assert first["status"] == Status.MEASURED
    versions = [made.inputs(point).version for point in range(3)]
    assert len(noise(made, {**ask, "number": 2}, ignore)["timings"]) == 3
    assert [made.inputs(point).version for point in range(3)] != versions
    seeds = [made.inputs(point).seed for point in range(3)]
    kept = noise(made, {**ask, "number": None, "rounds": 20}, ignore)
    assert [made.inputs(point).seed for point in range(3)] == seeds
    assert len(Timing.from_dict(kept["timings"][0]).candidate) == 20
    assert {setting for setting in timed(tmp_path) if setting} == {Setting()}
    assert measure(made, request(expected), ignore)["status"] == Status.MEASURED


def test_an_instance_times_all_arms_net_of_the_chain(session: Sessions, expected: Expected) -> None:
    made = session()
    arms = [Setting(kv_stages=3), Setting(kv_stages=3, max_splits=2), Setting(max_splits=1), Setting()]
    ask = {
        "op": "instance", "number": 4, "points": [2, 0], "rounds": 8, "expected": expected,
        "arms": [setting.as_dict() for setting in arms], "binaries": binaries(*arms),
    }  # fmt: skip
    answer = instance(made, ask, ignore)
    assert answer["status"] == Status.MEASURED
    assert [len(point) for point in answer["samples"]] == [4, 4]
    for point in answer["samples"]:
        for arm, setting in zip(point, arms, strict=True):
            assert len(arm) == 8
            assert all(0 <= ns - CHAIN_NS - 100 * setting.kv_stages < 10 for ns in arm)
    assert len(answer["correctness"]["arms"]) == 4
    assert answer["window"]["dirty"] == ""
    assert len(answer["window"]["points"]) == 2
    assert answer["window"]["after"] == answer["window"]["points"][-1]["after"]
    seeds = [made.inputs(point).seed for point in (2, 0)]
    instance(made, {**ask, "number": 5}, ignore)
    assert all(made.inputs(point).seed != seed for point, seed in zip((2, 0), seeds, strict=True))


def test_an_instance_with_a_wrong_arm_times_none(session: Sessions, expected: Expected, tmp_path: Path) -> None:
    ask = {
        "op": "instance", "number": 4, "points": [1], "rounds": 8, "expected": expected,
        "arms": [Setting().as_dict(), Setting(l2_prefetch=3).as_dict()],
        "binaries": binaries(Setting(), Setting(l2_prefetch=3)),
    }  # fmt: skip
    answer = instance(session(trouble=TROUBLE), ask, ignore)
    assert answer["status"] == Status.INCORRECT
    assert answer["reason"].startswith("arm 1 (")
    assert timed(tmp_path) == []


def test_a_card_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    lock = hold("GPU-1", 0.1)
    with pytest.raises(RuntimeError, match="GPU-1 is in use by another mjolnir run"):
        hold("GPU-1", 0.1)
    hold("GPU-2", 0.1).release()
    lock.release()
    hold("GPU-1", 0.1).release()
