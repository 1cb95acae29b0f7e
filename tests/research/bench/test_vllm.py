"""`mjolnir bench vllm` with engines that are made up: order, rows, figures, and what could not be run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Exit, MissingFailure, UsageFailure
from mjolnir.research.bench import vllm as twin
from mjolnir.research.bench import vllm_rows as files
from mjolnir.research.bench.vllm_questions import MODELS
from mjolnir.research.serving.process import EngineFailed
from mjolnir.research.serving.timing import Question
from mjolnir.tuner.statistics import median_interval

ATTENTION = {"mjolnir": 100.0, "mjolnir-default": 110.0, "TRITON_ATTN": 300.0, "FLASH_ATTN": 150.0, "FLASHINFER": 160.0}
"""Microseconds of a step in attention; the rest of a step takes 200."""


class Engines:
    """Times every point by a rule; those named in `lost` never get ready, those in `stuck` fail at the second point."""

    def __init__(self, *lost: str, stuck: str = "") -> None:
        self.asked: list[tuple[str, Question, Mapping[str, str]]] = []
        self.timed: list[tuple[str, int, int]] = []
        self.ended: list[str] = []
        self.steps: set[int] = set()
        self.place = (0, 0)
        self._lost, self._stuck = lost, stuck

    def __call__(self, asked: Question, environment: Mapping[str, str]) -> Living:
        contender = asked.name.partition(" ")[0]
        self.asked.append((contender, asked, environment))
        return Living(self, contender)

    def ready(self, contender: str) -> dict[str, Any]:
        if contender in self._lost:
            raise EngineFailed(f"{contender}: the engine failed")
        return {"device": "card", "torch": "2", "vllm": "0.31.0", "v2_runner": True, "seconds": {"start": 1.0}}

    def answer(self, contender: str, line: Mapping[str, Any]) -> Any:
        ((what, value),) = line.items()
        if what == "begin":
            self.place = value
            if contender == self._stuck and any(point[1:] != value for point in self.timed):
                raise EngineFailed(f"{contender}: ended after 9 s")
            return {"step_us": 6e4 if contender == "TRITON_ATTN" else 4e3}
        if what == "end":
            return profile(contender, self.place[1])
        self.steps.add(value)
        self.timed.append((contender, *self.place))
        return window(contender, *self.place)


def window(contender: str, batch: int, context: int, faster: float = 1.0) -> dict[str, Any]:
    step = 200 + ATTENTION[contender] * context / 32768
    return {
        "step_us": step, "tokens_per_s": faster * 1e6 * batch / step, "host_us": 20.0 + batch / 10,
        "decode_steps": 200, "mjolnir_steps": 199 if contender.startswith("mjolnir") else 0,
    }  # fmt: skip


def profile(contender: str, context: int, **values: Any) -> dict[str, Any]:
    attention = ATTENTION[contender] * context / 32768
    return {"attention_us": attention, "kernels": {"k": attention}, "others": {}, "trouble": "", **values}


@dataclass
class Living:
    """One that was begun."""

    engines: Engines
    contender: str

    def hear(self, seconds: float) -> Any:
        return self.engines.ready(self.contender)

    def ask(self, question: Any, seconds: float) -> Any:
        return self.engines.answer(self.contender, question)

    def end(self) -> None:
        self.engines.ended.append(self.contender)


def test_the_order_goes_there_and_back() -> None:
    assert twin.order("AB", 1) == list("ABBA")
    assert twin.order("AB", 2) == list("ABBAABBA")
    assert twin.order("AB", 0) == list("AB")


def test_all_is_timed_and_the_figures_follow(tmp_path: Path) -> None:
    engines, out = Engines(), tmp_path / "vllm.json"
    answer = twin.vllm(twin.Options(out=out), engines)
    assert answer.code is Exit.DONE
    assert [one[0] for one in engines.asked] == [*ATTENTION] * 2
    assert engines.timed[:50] == [(name, 64, 32768) for name in (*ATTENTION, *reversed(ATTENTION))] * 5
    assert len(engines.timed) == 2 * 6 * 50
    assert engines.steps == {8}  # at 60 ms a step the slowest would have five in its 0.3 s
    assert engines.ended == [*ATTENTION] * 2
    rows = answer.data["rows"]
    assert len(rows) == 2 * 6 * 5
    assert {row["windows"] for row in rows} == {10}
    assert {row["layers"] for row in rows} == {36}
    figures = answer.data["figures"]
    assert figures["attn_speedup_b1"] == figures["attn_speedup_b64"] == 1.5
    short = (200 + 150 / 8) / (200 + 100 / 8)
    assert figures["tokens_vs_best_min"] == pytest.approx(short, abs=1e-4)
    assert figures["tokens_vs_best_min_low"] == figures["tokens_vs_best_min_high"] == figures["tokens_vs_best_min"]
    assert figures["tokens_vs_best_large_share_min"] == pytest.approx(350 / 300, abs=1e-4)
    assert figures["host_us_per_step"] == pytest.approx(26.4)
    assert figures["mjolnir_step_share"] == 0.995
    assert json.loads(out.read_text()) == json.loads(json.dumps(answer.data))
    assert files.read(out)["figures"] == figures
    assert "met" in str(answer.view)


def test_what_the_engines_are_asked() -> None:
    engines = Engines()
    twin.vllm(twin.Options(models=("head-dim-256",), points=("1x512", "8x4096"), runner="v1", rounds=0), engines)
    asked = {contender: (question, environment) for contender, question, environment in engines.asked}
    question, environment = asked["mjolnir"]
    assert (question.backend, question.points, question.loops) == ("CUSTOM", ((8, 4096), (1, 512)), 18)
    assert environment == {
        "VLLM_KV_CACHE_LAYOUT": "HND", "MJOLNIR_ATTN_FALLBACK": "FLASH_ATTN", "VLLM_USE_V2_MODEL_RUNNER": "0",
    }  # fmt: skip
    built_in = asked["mjolnir-default"][1]
    assert built_in["MJOLNIR_ATTN_CTAS"] == str(Setting().ctas_per_sm)
    assert len(built_in) == 3 + len(Setting().as_dict())
    assert asked["FLASHINFER"][1] == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    engine = question.engine
    tokens = engine["kv_cache_memory_bytes"] / (2 * 2 * 256 * 2)
    assert tokens > 8 * (4096 + question.windows * question.steps)
    assert engine["max_model_len"] > 4096 + question.windows * question.steps
    assert engine["compilation_config"]["cudagraph_capture_sizes"] == [1, 2, 4, 8]
    assert engine["async_scheduling"] is True


def test_every_contender_has_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 6, 7, 8, 9, 11})
    assert twin.cores(3) == [(5, 6), (7, 8), (9, 11)]
    assert twin.cores(4) == [(5,), (6,), (7,), (8,)]
    assert twin.cores(7) == [()] * 7
    engines = Engines()
    twin.vllm(twin.Options(contenders=("mjolnir", "FLASH_ATTN"), models=("qwen3-8b",), points=("1x512",)), engines)
    assert [question.cores for _, question, _ in engines.asked] == [(5, 6, 7), (8, 9, 11)]


def test_windows_are_as_long_as_the_slowest_allows() -> None:
    assert twin.window_steps([4000.0, 6000.0], 60) == 50
    assert twin.window_steps([4000.0, 6000.0], 40) == 40
    assert twin.window_steps([900000.0], 40) == 8
    assert twin.window_steps([900000.0], 2) == 2


def test_what_fails_is_told_and_the_rest_stays() -> None:
    answer = twin.vllm(twin.Options(models=("qwen3-8b",), rounds=0), Engines("FLASHINFER"))
    assert answer.code is Exit.FAILED
    assert {row["contender"] for row in answer.data["rows"]} == set(ATTENTION) - {"FLASHINFER"}
    (part,) = answer.data["taken"]["parts"]
    assert part["not_run"] == {"FLASHINFER qwen3-8b": "FLASHINFER: the engine failed"}
    with pytest.raises(UsageFailure, match="the engine failed"):
        twin.vllm(twin.Options(contenders=("mjolnir",)), Engines("mjolnir"))


def test_one_that_gets_stuck_is_ended_and_what_it_had_timed_stays(tmp_path: Path) -> None:
    engines, out = Engines(stuck="TRITON_ATTN"), tmp_path / "vllm.json"
    options = twin.Options(models=("qwen3-8b",), points=("8x4096", "1x4096"), out=out)
    answer = twin.vllm(options, engines)
    assert answer.code is Exit.FAILED
    rows = {(row["contender"], row["batch"]): row["windows"] for row in answer.data["rows"]}
    assert rows[("TRITON_ATTN", 8)] == rows[("FLASH_ATTN", 1)] == 10
    assert ("TRITON_ATTN", 1) not in rows
    (part,) = json.loads(out.read_text())["taken"]["parts"]
    assert part["not_run"] == {"TRITON_ATTN qwen3-8b 1x4096": "TRITON_ATTN: ended after 9 s"}
    assert sorted(engines.ended) == sorted(ATTENTION)


def test_nothing_is_begun_when_time_is_over() -> None:
    race = twin.Race(twin.Options(minutes=1.0), Engines(), began=-1e9)
    race.run({"qwen3-8b": MODELS["qwen3-8b"]}, ("mjolnir",), ((1, 4096),))
    assert race.not_run == {"mjolnir qwen3-8b": "the 1 minutes were over"}
    assert race.runs == {}


def test_rounds_are_fewer_where_the_time_of_later_points_would_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(twin, "monotonic", lambda: clock[0])

    class Slow(Engines):
        def answer(self, contender: str, line: Mapping[str, Any]) -> Any:
            clock[0] += 3.0 if "window" in line else 0.0
            return super().answer(contender, line)

    options = twin.Options(("mjolnir", "FLASH_ATTN"), ("qwen3-8b",), ("8x4096", "1x4096"), minutes=1.0)
    answer = twin.vllm(options, Slow())
    assert answer.code is Exit.DONE
    # a round takes twelve seconds: two of them in the first half minute, and three in what is left of the minute
    assert [row["windows"] for row in answer.data["rows"]] == [6, 6, 4, 4]


def test_bounds_are_those_of_the_median() -> None:
    def interval(values: list[float]) -> tuple[float, float]:
        found = median_interval(values)
        return found.low, found.high

    assert interval([5.0]) == (5.0, 5.0)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([float(n) for n in range(8)]) == (0.0, 7.0)
    assert interval([float(n) for n in range(10)]) == (1.0, 8.0)
    assert interval([float(n) for n in range(100)]) == (39.0, 60.0)


def test_ratios_pair_windows_and_the_worst_point_has_bounds() -> None:
    def row(name: str, tokens: list[float]) -> dict[str, Any]:
        made = [{**window(name, 1, 4096), "tokens_per_s": value, "batch": 1, "context": 4096} for value in tokens]
        return files.make(name, "m", {}, made, profile(name, 4096))

    rows = [
        row("mjolnir", [90.0, 210.0, 330.0]), row("FLASH_ATTN", [100.0, 200.0, 300.0]),
        row("TRITON_ATTN", [150.0, 150.0, 150.0]),
    ]  # fmt: skip
    figures = files.figures(rows)
    names = ("tokens_vs_best_min", "tokens_vs_best_min_low", "tokens_vs_best_min_high")
    assert [figures[name] for name in names] == [1.05, 0.9, 1.1]
    assert files.ratio_lines(rows) == [
        "m 1x4096: tokens/s 1.050 times, 0.900 to 1.100; attention is 9% of the best stock backend's step"
    ]
    assert rows[0]["spread"] == 0.0


def test_rows_are_merged_and_the_newer_ones_count(tmp_path: Path) -> None:
    file = tmp_path / "vllm.json"
    options = twin.Options(models=("qwen3-8b",), points=("1x32768",), rounds=0, out=file)
    first = twin.vllm(replace(options, contenders=("mjolnir", "FLASH_ATTN")), Engines())
    assert first.data["figures"]["attn_speedup_b1"] == 1.5
    second = replace(options, contenders=("FLASHINFER", "TRITON_ATTN"), append=(file,), out=None)
    merged = twin.vllm(second, Engines()).data
    assert [row["contender"] for row in merged["rows"]] == ["FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "mjolnir"]
    assert len(merged["taken"]["parts"]) == 2
    data = json.loads(file.read_text())
    data["taken"]["parts"][0]["device"] = "another"
    file.write_text(json.dumps(data))
    with pytest.raises(UsageFailure, match="results of one device"):
        twin.vllm(second, Engines())
    file.write_text('{"schema": "x", "rows": [], "taken": {"device": "d"}}')
    with pytest.raises(UsageFailure, match="schema is 'x'"):
        twin.vllm(second, Engines())


def test_a_point_without_a_peer_or_attention_has_no_figure() -> None:
    def row(name: str, **values: Any) -> dict[str, Any]:
        made = {**window(name, 1, 32768), "batch": 1, "context": 32768}
        return files.make(name, "m", {}, [made], profile(name, 32768, **values))

    alone = row("mjolnir")
    assert set(files.figures([alone])) == {"host_us_per_step", "mjolnir_step_share"}
    lost = row("FLASH_ATTN", attention_us=None, trouble="no product was recognised")
    assert lost["trouble"] == "no product was recognised"
    ratios = {"tokens_vs_best_min", "tokens_vs_best_min_low", "tokens_vs_best_min_high"}
    assert set(files.figures([alone, lost])) == {*ratios, "host_us_per_step", "mjolnir_step_share"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contenders": ("x",)}, "--contender 'x' is none of mjolnir,"),
        ({"models": ("x",)}, "--model 'x' is none of qwen3-8b,"),
        ({"points": ("0x8",)}, "--point '0x8' is not BATCHxTOKENS"),
    ],
)
def test_what_is_unknown_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageFailure, match=words):
        twin.vllm(replace(twin.Options(), **change), Engines())


def test_without_a_gpu_it_says_what_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MissingFailure, match="verify vllm"):
        twin.vllm(twin.Options())
