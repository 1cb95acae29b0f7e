"""`mjolnir verify correctness`: the emulator over a sample of the matrix, and that what is wrong is said."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel.cases import Inputs
from mjolnir.kernel.device import H200
from mjolnir.kernel.matrix import Probe, matrix_cases
from mjolnir.kernel.variant import Variant
from mjolnir.research import correctness as twin
from mjolnir.research import correctness_build
from mjolnir.research.answer import Answer, Exit, Failure, MissingFailure, UsageFailure
from mjolnir.research.correctness_truth import in_order, make_truth, packed_truth, unpacked


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    """A run of its own seed for each run of the tests would not be the same twice: this is one of them."""
    out = tmp_path_factory.mktemp("correctness") / "results" / "cpu.json"
    return twin.correctness(cases=48, seed=7, device="cpu", out=out), out


def test_the_emulator_is_right_over_a_sample_of_the_matrix(sample: tuple[Answer, Path]) -> None:
    answer, out = sample
    figures = answer.data["figures"]
    assert answer.code is Exit.DONE
    assert figures["cases"] == 48
    assert figures["wrong"] == 0
    assert 0.3 < figures["worst_excess"] < 0.9
    assert 0 < figures["worst_lse_excess"] < 0.5
    assert json.loads(out.read_text()) == json.loads(json.dumps(answer.data))
    assert "emulator on the CPU, seed 7" in str(answer.view)
    assert {row["engine"]["name"] for row in answer.data["rows"]} == {"warp", "wgmma"}


def test_other_devices_are_refused() -> None:
    with pytest.raises(UsageFailure, match="none of auto, cpu and cuda"):
        twin.correctness(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(MissingFailure, match="--device cpu"):
            twin.correctness(device="cuda")


def small() -> tuple[Probe, ...]:
    return tuple(probe for probe in matrix_cases(1, 60) if probe.case.name == "loud")[:3]


def test_a_truth_travels_whole() -> None:
    for probe in small():
        here, there = make_truth(probe, H200), unpacked(packed_truth((probe, H200)))
        for name in ("out", "lse", "exact", "exact_lse"):
            assert torch.equal(getattr(here, name), getattr(there, name))
        for name in ("q", "cache", "k", "v"):
            mine, other = (getattr(truth.inputs, name) for truth in (here, there))
            assert mine.stride() == other.stride()
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
        assert there.inputs.k.untyped_storage().data_ptr() == there.inputs.cache.untyped_storage().data_ptr()
        assert isinstance(there.inputs, Inputs)


def test_work_is_begun_ahead_and_comes_in_order() -> None:
    with ThreadPoolExecutor(4) as executor:
        assert list(in_order(executor, lambda n: n * n, range(200))) == [n * n for n in range(200)]


def built_by(outcome: dict[Variant, str]) -> Any:
    def build(job: tuple[Variant, Path | None]) -> str:
        return outcome.get(job[0], "")

    return build


def test_what_spills_runs_with_default_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = matrix_cases(0, 60)
    bad = next(probe for probe in probes if probe.setting.changed(type(probe.setting)()).keys() - {"max_splits"})
    monkeypatch.setattr(correctness_build, "build", built_by({bad.variant(H200): "spills 24 bytes"}))
    with ThreadPoolExecutor(2) as executor:
        settled = correctness_build.settle(probes, H200, executor)
    assert list(settled.refused.values()) == ["spills 24 bytes"]
    assert not settled.faults
    for before, after in zip(probes, settled.probes, strict=True):
        assert before.case == after.case
        assert (before != after) == (before.variant(H200) == bad.variant(H200))
        assert after.variant(H200) != bad.variant(H200)


def test_defaults_that_do_not_run_are_a_fault_and_the_case_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness_build, "build", lambda job: "" if job[0].ctas_per_sm == 1 else "spills 8 bytes")
    probes = matrix_cases(0, 20)
    with ThreadPoolExecutor(2) as executor:
        settled = correctness_build.settle(probes, H200, executor)
    assert {probe.variant(H200).ctas_per_sm for probe in settled.probes} == {1}
    assert set(settled.faults.values()) == {"spills 8 bytes"}
    assert len(settled.faults) == len({p.case.geometry for p in probes if p.setting.ctas_per_sm > 1})


def test_a_geometry_that_never_runs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness_build, "build", lambda job: "spills 8 bytes")
    with ThreadPoolExecutor(2) as executor, pytest.raises(Failure, match=r"does not run.*spills 8 bytes"):
        correctness_build.settle(matrix_cases(0, 5), H200, executor)


def row(**values: Any) -> dict[str, Any]:
    made = {"class": "edges", "excess": 0.5, "problems": [], **values}
    return {**made, "wrong": twin.is_wrong(made)}


@pytest.mark.parametrize(
    "wrong", [{"excess": 1.01}, {"excess_emulator": float("inf")}, {"lse_excess": float("nan")}, {"problems": ["late"]}]
)
def test_what_is_wrong_counts_and_is_shown(wrong: dict[str, Any]) -> None:
    rows = [row(), row(**wrong), row(**{"class": "tail"})]
    assert [r["wrong"] for r in rows] == [False, True, False]
    assert twin.figures(rows)["wrong"] == 1
    lines = list(twin.table(rows, "title"))
    assert [line.split()[:3] for line in lines[2:5]] == [["edges", "2", "1"], ["tail", "1", "0"], ["all", "3", "1"]]
    assert lines[5].startswith("WRONG: class=edges")
    assert len(lines) == 6


def test_figures_hold_the_worst_of_each_kind() -> None:
    rows = [row(excess=0.25, lse_excess=0.1), row(excess=0.75, excess_emulator=0.5), row(excess_emulator=float("inf"))]
    assert twin.figures(rows) == {
        "cases": 3, "wrong": 1, "worst_excess": 0.75, "worst_excess_emulator": None, "worst_lse_excess": 0.1,
        "worst_lse_excess_emulator": 0.0,
    }  # fmt: skip
