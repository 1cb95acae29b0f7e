"""`mjolnir verify vllm` with engines that are made up: what is asked of them, and how their answers are judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from mjolnir.research import verify_vllm as twin
from mjolnir.research.answer import Exit, MissingFailure, UsageFailure
from mjolnir.research.serving.job import Completion, Job, Run
from mjolnir.research.serving.model import Shape
from mjolnir.research.serving.process import EngineFailed
from tests.research.serving.answers import completion, run

SMALL = twin.Options(
    shape=Shape(2, 1, 128, 64, 64, 1, 64), modes=("eager",), batches=(1, 3), longest=40, tokens=4
)  # fmt: skip


class Engines:
    """Answers every job; `change` has the last word.

    A sound engine gives the same answers whatever it runs on, and other ones where its attention is zero.
    """

    def __init__(self, change: Callable[[Job, Run], Run] = lambda job, made: made) -> None:
        self.asked: list[Job] = []
        self._change = change

    def __call__(self, job: Job) -> Run:
        self.asked.append(job)
        first = 30 if job.zeroed else 10
        completions = [completion((10, first, 12, 13), [-1.0] * 4, len(one)) for batch in job.batches for one in batch]
        ours = job.backend == twin.OURS
        counts = {"mixed": 2, "speculative": 2, "cached": 64, "preempted": 1}
        return self._change(job, run(completions, mjolnir=10 if ours else 0, **counts))


def verify(options: twin.Options, engines: Engines) -> Any:
    return twin.verify(options, engines)


def test_every_combination_is_one_engine_of_each_and_all_are_right(tmp_path: Path) -> None:
    engines, out = Engines(), tmp_path / "results.json"
    asked = replace(
        SMALL, modes=("ngram", "tight"), runners=("v1", "v2"), layouts=("HND",), block_sizes=(16, 64),
        against=("TRITON_ATTN", "FLASH_ATTN"), out=out,
    )  # fmt: skip
    answer = verify(asked, engines)
    assert answer.code is Exit.DONE
    assert [job.backend for job in engines.asked] == ["TRITON_ATTN", "FLASH_ATTN"] + ["CUSTOM"] * 7
    assert [job.zeroed for job in engines.asked] == [False, False, True] + [False] * 6
    figures = answer.data["figures"]
    assert (figures["comparisons"], figures["wrong"], figures["controls_found_wrong"]) == (12, 0, 2)
    assert (figures["mjolnir_steps"], figures["mjolnir_step_share"], figures["steps_compared"]) == (60, 1.0, 192)
    assert json.loads(out.read_text()) == json.loads(json.dumps(answer.data))
    assert "found wrong, as it has to be" in str(answer.view)
    last = engines.asked[-1]
    assert last.environment == {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_KV_CACHE_LAYOUT": "HND"}
    assert (last.engine["block_size"], last.engine["kv_cache_dtype"], last.engine["max_num_seqs"]) == (64, "fp8", 3)
    assert [len(batch) for batch in last.batches] == [1, 3]
    stock = engines.asked[0]
    assert (stock.engine["block_size"], stock.engine["enforce_eager"], stock.environment) == (64, True, {})
    control = engines.asked[2]
    assert (control.engine["async_scheduling"], len(control.batches)) == (False, 1)


def test_one_batch_alone_is_asked_behind_a_batch_of_one_and_tight_is_tight() -> None:
    engines = Engines()
    verify(replace(SMALL, modes=("tight",), batches=(3,), block_sizes=(16,)), engines)
    last = engines.asked[-1]
    assert [len(batch) for batch in last.batches] == [1, 3]
    assert last.engine["num_gpu_blocks_override"] == 4 + 3  # 40 + 4 + 8 tokens


def test_engines_beside_one_another_give_the_same_rows_and_what_is_slow_begins_early() -> None:
    asked = replace(SMALL, modes=("eager", "FULL_AND_PIECEWISE"), against=("A", "B"))
    together, running, most = Barrier(3), [0], [0]

    def slow(job: Job, made: Run) -> Run:
        running[0] += 1
        most[0] = max(most[0], running[0])
        if job.backend != twin.OURS or job.zeroed:
            together.wait(30)  # the stock engines and the control are only done together
        running[0] -= 1
        return made

    engines = Engines(slow)
    answer = verify(replace(asked, jobs=3), engines)
    assert answer.code is Exit.DONE
    assert most[0] == 3
    alone = Engines()
    assert answer.data["rows"] == verify(replace(asked, jobs=1), alone).data["rows"]
    assert [job.name for job in alone.asked] == ["A", "B", "control", "FULL_AND_PIECEWISE 64", "eager 64"]


def test_how_many_run_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert twin.how_many(replace(SMALL, jobs=0)) == 1
    assert twin.how_many(replace(SMALL, jobs=5)) == 5
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (100 << 30, 141 << 30))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    card = twin.settled(twin.Options(), twin.GPU)
    assert twin.kv_bytes(card) == 2 * 64 * 66 * 128 * 8 * 128 * 4  # 8192 + 32 + 8 tokens are 65 pages, and one
    assert twin.how_many(card) == 9
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert twin.how_many(card) == 2
    own = replace(card, model=tmp_path)
    assert twin.how_many(own) == 1
    with pytest.raises(UsageFailure, match="leave out --jobs or --model"):
        twin.how_many(replace(own, jobs=2))


def test_engines_at_a_time_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    assert twin.threads(1) == {}
    shared = {"OMP_NUM_THREADS": "4", "TORCHINDUCTOR_COMPILE_THREADS": "1", "VLLM_DISABLE_COMPILE_CACHE": "1"}
    assert twin.threads(8) == shared


def wrong_tokens(job: Job, made: Run) -> Run:
    """Mjolnir's second token is another one, and far from the first."""
    if job.backend != twin.OURS or job.zeroed:
        return made
    changed: list[Completion] = [completion((10, 40, 41, 42), [-1.0] * 4, item.prompt) for item in made.completions]
    return replace(made, completions=tuple(changed))


def blind(job: Job, made: Run) -> Run:
    """The model's answers do not depend on its attention."""
    return replace(made, completions=Engines()(replace(job, zeroed=False)).completions) if job.zeroed else made


def on_the_fallback(job: Job, made: Run) -> Run:
    """Some decode-only steps ran on the fallback."""
    return replace(made, counted={**made.counted, "mjolnir": 9, "missed": 1, "reasons": {"cascade": 1}})


def nothing_mixed(job: Job, made: Run) -> Run:
    return replace(made, scheduled={**made.scheduled, "mixed": 0})


def failing(job: Job, made: Run) -> Run:
    if job.backend == twin.OURS and not job.zeroed:
        raise EngineFailed("the engine failed (exit code 1)")
    return made


@pytest.mark.parametrize(
    ("change", "wrong", "words"),
    [
        (wrong_tokens, 1, "is not in the top"),
        (blind, 1, "this comparison says nothing of this model"),
        (on_the_fallback, 1, "90.0% of them ran on Mjolnir, 99% are needed; to the fallback went cascade (1)"),
        (nothing_mixed, 1, "no step mixed prompts with decoding"),
        (failing, 1, "the engine failed (exit code 1)"),
    ],
)
def test_what_is_wrong_is_told_and_fails(change: Callable[[Job, Run], Run], wrong: int, words: str) -> None:
    answer = verify(replace(SMALL, modes=("chunked",), against=("A",)), Engines(change))
    assert answer.code is Exit.FAILED
    assert answer.data["figures"]["wrong"] == wrong
    assert words in str(answer.view)


def test_earlier_rows_are_kept_and_their_like_replaced(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert verify(replace(SMALL, modes=("eager", "ngram"), against=("A",), out=file), Engines(wrong_tokens)).code == 1
    answer = verify(replace(SMALL, modes=("ngram",), against=("A",), append=(file,)), Engines())
    assert answer.data["figures"]["wrong"] == 1
    assert {row["mode"]: bool(row["problems"]) for row in answer.data["rows"]} == {
        "control": False, "eager": True, "ngram": False,
    }  # fmt: skip
    assert json.loads(file.read_text())["figures"] == answer.data["figures"]
    file.write_text('{"schema": "other", "rows": []}')
    with pytest.raises(UsageFailure, match="schema is 'other'"):
        verify(replace(SMALL, append=(file,)), Engines())


def test_a_named_model_is_asked_by_its_own_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 20}}')
    engines = Engines()
    answer = verify(replace(SMALL, model=tmp_path, shape=None), engines)
    assert {job.model for job in engines.asked} == {str(tmp_path)}
    assert max(token for batch in engines.asked[0].batches for one in batch for token in one) < 20
    assert answer.data["rows"][0]["model"] == tmp_path.name
    with pytest.raises(UsageFailure, match="name the folder of a local model"):
        verify(replace(SMALL, model=tmp_path / "none"), engines)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"modes": ("x",)}, "--mode"), ({"runners": ("v3",)}, "v1 or v2"), ({"layouts": ("XYZ",)}, "HND or NHD")],
)
def test_options_that_make_no_sense(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageFailure, match=words):
        verify(replace(SMALL, **change), Engines())


def test_heads_are_read_from_text() -> None:
    shape = twin.shape_of("16/2x256")
    assert shape
    assert (shape.heads_q, shape.heads_kv, shape.head_dim) == (16, 2, 256)
    assert twin.shape_of(None) is None
    for text, words in (("16-2", "is not HEADS_Q"), ("5/2x128", "no multiple")):
        with pytest.raises(UsageFailure, match=words):
            twin.shape_of(text)


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "find_spec", lambda name: None)
    with pytest.raises(MissingFailure, match="pip install"):
        twin.verify(SMALL)
