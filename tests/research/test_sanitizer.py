"""`mjolnir verify sanitizer`, with a stand-in for the tool: what it prints is read, and what went wrong is told."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.cache import compile_only
from mjolnir.kernel.device import H200, Device
from mjolnir.research import sanitizer as twin
from mjolnir.research import sanitizer_cases as cases
from mjolnir.research import sanitizer_planted, sanitizer_report
from mjolnir.research.answer import Exit, Failure, MissingFailure, UsageFailure
from mjolnir.research.sanitizer_report import Ended, report, row_of, summary
from tests.research.test_cli import call
from tests.research.test_correctness_gpu import Emulated

CLEAN = "========= COMPUTE-SANITIZER\nmjolnir-case {}\n========= ERROR SUMMARY: 0 errors\n"
RIGHT = CLEAN.format('{"excess": 0.5}')
OVERRUN = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at kernel+0x1a0
=========     by thread (1,0,0) in block (0,0,0)
=========
mjolnir-case {"excess": 0.5}
========= ERROR SUMMARY: 130 errors
========= ERROR SUMMARY: 30 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at kernel+0xd0
=========     and Read access at kernel+0x100 [64 hazards]
mjolnir-case {"excess": 0.5}
========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)
"""
QUIET_RACE = "mjolnir-case {}\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


@pytest.mark.parametrize(
    ("tool", "text", "wanted"),
    [
        ("memcheck", RIGHT, (0, 0)),
        ("memcheck", OVERRUN, (130, 0)),
        ("initcheck", "========= ERROR SUMMARY: 1 error\n========= ERROR SUMMARY: 2 errors\n", (3, 0)),
        ("racecheck", RACE, (1, 3)),
        ("racecheck", "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)", (0, 1)),
        ("racecheck", QUIET_RACE, (0, 0)),
        ("racecheck", "========= ERROR SUMMARY: 0 errors", (None, None)),
        ("synccheck", "Segmentation fault", (None, None)),
    ],
)
def test_summaries_are_read(tool: str, text: str, wanted: tuple[int | None, int | None]) -> None:
    assert summary(tool, text) == wanted


def test_the_first_lines_of_a_report_are_kept() -> None:
    assert report(RIGHT) == []
    assert report(QUIET_RACE) == []
    assert report(OVERRUN)[:2] == ["Invalid __global__ read of size 4 bytes", "at kernel+0x1a0"]
    assert report(RACE)[-1] == "RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)"
    assert len(report("========= x\n" * 1000)) == sanitizer_report.REPORT_LINES


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(None, "=========\nslow"), "did not end within 240 s: slow"),
        (Ended(0, 'mjolnir-case {"excess": 0.5}'), "gave no summary"),
        (Ended(7, "Traceback\n========= ERROR SUMMARY: 0 errors"), r"no output \(exit code 7\): Traceback"),
        (Ended(1, CLEAN.format('{"excess": 0.5, "lse_excess": 3.25}')), "lse_excess is 3.25 times"),
        (Ended(1, CLEAN.format('{"excess": Infinity}')), "excess is inf times"),
        (Ended(6, RIGHT), "was right, and its process ended with 6"),
    ],
)
def test_runs_that_are_not_as_they_should_be_have_problems(ended: Ended, words: str) -> None:
    row = row_of("memcheck", "f16", ended)
    assert any(re.search(words, problem) for problem in row["problems"])
    json.dumps(row, allow_nan=False)


def test_a_clean_run_has_none_and_reports_are_no_problem_but_counted() -> None:
    rows = [row_of("memcheck", "f16", Ended(0, RIGHT)), row_of("memcheck", "margin", Ended(0, OVERRUN))]
    rows += [row_of("racecheck", "margin", Ended(0, RACE)), row_of("racecheck", "planted-race", Ended(0, RACE))]
    assert [row["problems"] for row in rows] == [[], [], [], []]
    assert [row["planted"] for row in rows] == [False, False, False, True]
    assert sanitizer_report.figures(rows) == {"sanitizer_errors": 133, "sanitizer_problems": 0}
    lines = list(sanitizer_report.table(rows, "title"))
    assert lines[1].split() == ["class", "racecheck", "memcheck"]
    assert [line.split() for line in lines[2:5]] == [
        ["f16", "-", "0"],
        ["margin", "3", "130"],
        ["planted-race", "3", "-"],
    ]
    assert [line.split(":")[0] for line in lines[5:]] == ["REPORTED", "REPORTED"]
    assert "Invalid __global__ read" in lines[5]


def test_a_planted_fault_that_is_not_found_is_a_problem() -> None:
    for tool, text in (("memcheck", RIGHT), ("racecheck", QUIET_RACE), ("initcheck", "killed")):
        row = row_of(tool, cases.PLANTED[tool], Ended(0, text))
        assert "did not find the fault that was planted" in row["problems"][0]
        assert sanitizer_report.figures([row])["sanitizer_problems"] == 1


FAKE = """\
import os, sys
at = sys.argv.index("--tool")
tool, name = sys.argv[at + 1], sys.argv[-1]
assert sys.argv[-3:-1] == ["-m", "mjolnir.research.sanitizer_cases"], sys.argv
assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
count = int(name.startswith("planted")) + 4 * (name == os.environ.get("BAD"))
print("========= COMPUTE-SANITIZER")
print("mjolnir-case {}")
if tool == os.environ.get("BLIND"):
    print("========= Error: Device not supported.")
    sys.exit(255)
word = f"RACECHECK SUMMARY: {count} hazards displayed (0 errors, {count} warnings)"
print("=========", word if tool == "racecheck" else f"ERROR SUMMARY: {count} errors")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of compute-sanitizer, on PATH, that runs nothing."""
    path = tmp_path / "bin" / twin.PROGRAM
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\n{FAKE}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setattr(twin, "current_device", lambda: H200)
    monkeypatch.setattr(twin, "compile_all", lambda device: None)
    monkeypatch.setattr(twin, "version", lambda program: "Version 1")
    few = {name: cases.CLASSES[name] for name in ("f16", "margin")}
    monkeypatch.setattr(twin, "CLASSES", few)
    return path


def test_tools_run_over_all_classes_and_the_figures_are_written(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "sanitizer.json"
    answer = twin.sanitizer((), out)
    ran = [(row["tool"], row["class"]) for row in answer.data["rows"]]
    assert answer.code is Exit.DONE, answer.view
    assert ran[:3] == [(tool, cases.PLANTED[tool]) for tool in ("racecheck", "initcheck", "memcheck")]
    assert ran[3:] == [(tool, name) for tool in sanitizer_report.TOOLS for name in ("f16", "margin")]
    assert answer.data["figures"] == {"sanitizer_errors": 0, "sanitizer_problems": 0}
    assert answer.data["taken"]["sanitizer"] == "Version 1"
    assert json.loads(out.read_text()) == json.loads(json.dumps(answer.data))


def test_the_commands_tell_their_options() -> None:
    text = call("verify", "--help")[1]
    for command, options in {"pdl": ("--replays", "--seed"), "sanitizer": ("--tool",)}.items():
        assert f"  {command} " in text
        told = call("verify", command, "--help")[1]
        assert all(option in told for option in (*options, "--out", "--json"))


def test_what_is_reported_fails_the_command(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD", "margin")
    code, text, _ = call("verify", "sanitizer", "--tool", "racecheck", "--tool", "synccheck", "--json")
    data = json.loads(text)
    assert code == 1
    assert data["figures"] == {"sanitizer_errors": 8, "sanitizer_problems": 0}
    assert {row["tool"] for row in data["rows"]} == {"racecheck", "synccheck"}


def test_a_device_that_is_not_supported_is_missing(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIND", "synccheck")
    code, _, errors = call("verify", "sanitizer", "--tool", "synccheck")
    assert code == 3
    assert "Device not supported" in errors


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="'leakcheck' is none of"):
        twin.sanitizer(("leakcheck",))
    with pytest.raises(MissingFailure, match="neither on PATH nor in a CUDA toolkit"):
        twin.find_program({"PATH": str(tmp_path)})
    inside = tmp_path / "toolkit" / twin.PROGRAM / twin.PROGRAM
    inside.parent.mkdir(parents=True)
    inside.write_text("")
    inside.chmod(0o755)
    assert twin.find_program({"PATH": "", "CUDA_HOME": str(tmp_path / "toolkit")}) == str(inside)

    def none() -> Device:
        raise RuntimeError("no CUDA device is visible to torch")

    monkeypatch.setattr(twin, "find_program", lambda: "x")
    monkeypatch.setattr(twin, "current_device", none)
    with pytest.raises(MissingFailure, match="watches kernels on one"):
        twin.sanitizer()


def test_a_process_that_hangs_is_stopped_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "SECONDS", 1)
    child = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    code = f"import subprocess, sys; print('begun', flush=True); {child}"
    begun = time.monotonic()
    assert twin.run([sys.executable, "-c", code]) == Ended(None, "begun\n")
    assert time.monotonic() - begun < 20


def test_a_class_that_does_not_compile_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from mjolnir.research import correctness_build, correctness_truth

    seen: list[Any] = []

    def build(job: Any) -> str:
        seen.append(job[0])
        return "spills 8 bytes" if job[0].geometry.head_dim == 256 else ""

    monkeypatch.setattr(correctness_build, "build", build)
    monkeypatch.setattr(correctness_truth, "processes", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr("mjolnir.kernel.cache.build_plan", seen.append)
    with pytest.raises(Failure, match="class warp-d256 does not run: spills 8 bytes"):
        twin.compile_all(H200)
    assert len(seen) == len(cases.CLASSES) + 1


def test_classes_are_those_that_the_kernel_has() -> None:
    probes = cases.CLASSES.values()
    shapes = [probe.shape(H200) for probe in probes]
    variants = [probe.variant(H200) for probe in probes]
    assert {("warp", 4), ("warp", 16), ("wgmma", 32), ("wgmma", 64)} <= {(s.name, s.rows) for s in shapes}
    assert any(shape.blocks > 1 for shape in shapes)
    assert {variant.geometry.head_dim for variant in variants} == {128, 256}
    assert {variant.geometry.dtype for variant in variants} == {"bf16", "f16"}
    assert {variant.consumer_warps for variant in variants} == {4, 8}
    assert any(v.geometry.q_format == "fp8" and v.q_mul and v.o_mul and v.lse for v in variants)
    assert any(v.l2_prefetch and v.geometry.page_size == 16 for v in variants)
    assert any(probe.case.margin and probe.case.planned != probe.case.lengths for probe in probes)
    assert any(v.pdl for v in variants)
    assert max(sum(probe.case.tokens) * probe.case.geometry.heads_kv for probe in probes) < 50_000


def test_cases_take_the_ways_that_they_are_for() -> None:
    def chunks(name: str) -> list[tuple[int, int, int]]:
        probe = cases.CLASSES[name]
        return [
            (c.cta, c.item, c.last - c.first) for c in probe.case.plan(probe.grid(H200), probe.shape(H200)).chunks()
        ]

    assert len({cta for cta, item, _ in chunks("warp-d128") if item == 0}) > 16  # merged in two levels
    for name in ("warp-unsplit", "wgmma-unsplit", "warp-eight-warps"):
        assert max(tiles for _, _, tiles in chunks(name)) > cases.CLASSES[name].variant(H200).kv_stages
    assert max(tiles for _, _, tiles in chunks("pages-16")) > 3
    items = [cta for cta, _, _ in chunks("many-items")]
    assert max(map(items.count, items)) > 1


def test_a_case_is_compared_with_the_emulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mjolnir.research import correctness_gpu

    kernel: type[Emulated] = type("StandIn", (Emulated,), {})
    monkeypatch.setattr(correctness_gpu, "Runner", kernel)
    monkeypatch.setattr(correctness_gpu, "WHERE", "cpu")
    monkeypatch.setattr(cases, "current_device", lambda: H200)
    assert cases.main("fp8-query") == 0
    assert capsys.readouterr().out == 'mjolnir-case {"excess": 0.0, "lse_excess": 0.0}\n'
    kernel.fault = staticmethod(lambda given: given["out"].view(-1)[:1].add_(1))
    assert cases.main("fp8-query") == 1
    assert sanitizer_report.row_of("memcheck", "fp8-query", Ended(1, capsys.readouterr().out))["outcome"]["excess"] > 1


def test_the_planted_race_has_no_barrier_between_its_write_and_its_read() -> None:
    made = sanitizer_planted.Racing()
    text = compile_only(made, made.arguments(), "sm_90a").artifacts.PTX
    text = text if isinstance(text, str) else text.decode()
    between = text[text.index("st.shared") : text.index("ld.shared")]
    assert "bar" not in between


def test_every_fault_is_planted_for_a_tool() -> None:
    assert set(cases.FAULTS) == set(cases.PLANTED.values())
    assert not set(cases.FAULTS) & set(cases.CLASSES)
    assert set(cases.PLANTED) < set(sanitizer_report.TOOLS)
