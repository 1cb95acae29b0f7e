"""Real engines on the CPU: `mjolnir verify vllm` as it is called, and the process that is timed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from mjolnir.research import verify_vllm as twin
from mjolnir.research.serving import model as models
from mjolnir.research.serving.dialogue import Dialogue
from mjolnir.research.serving.timing import Question

pytestmark = [pytest.mark.vllm, pytest.mark.engine, pytest.mark.timeout(600)]


def test_mjolnir_answers_as_vllm_does_and_a_control_without_attention_does_not() -> None:
    options = twin.Options(modes=("eager", "chunked+ngram+prefix"), batches=(1, 8), longest=192, tokens=10, jobs=2)
    answer = twin.verify(options)
    assert answer.code == 0, answer.view
    figures = answer.data["figures"]
    assert (figures["comparisons"], figures["controls_found_wrong"], figures["mjolnir_step_share"]) == (2, 1, 1.0)
    plain, mixed = (next(row for row in answer.data["rows"] if row["mode"] == mode) for mode in options.modes)
    assert plain["mjolnir_steps"] == plain["scheduled"]["decode"] >= 2 * 9
    assert mixed["scheduled"]["speculative"] > 0
    assert mixed["engine"]["backends"] == ["CUSTOM"]


def test_the_timed_process_answers(tmp_path: Path) -> None:
    shape = models.Shape()
    engine = {
        "load_format": "dummy", "dtype": "bfloat16", "kv_cache_dtype": "fp8", "block_size": 64, "max_num_seqs": 4,
        "max_model_len": 512, "enforce_eager": True, "enable_prefix_caching": True,
    }  # fmt: skip
    folder = models.write_config(tmp_path, shape)
    core = max(os.sched_getaffinity(0))
    points = ((3, 100), (1, 100))
    asked = Question("x", str(folder), "CUSTOM", points, shape.vocabulary, 3, 2, 4, engine, (core,))
    timed = Dialogue("mjolnir.research.serving.timing", "x", asked.as_dict(), {})
    try:
        assert timed.hear(300)["backends"] == ["CUSTOM"]
        for point in (*points, points[0]):
            assert timed.ask({"begin": point}, 60)["step_us"] > 0
            for steps in (4, 2):
                window = timed.ask({"window": steps}, 60)
                assert window["decode_steps"] == window["mjolnir_steps"] == steps
                assert window["step_us"] > window["host_us"] > 0
            assert timed.ask({"end": True}, 60)["trouble"] == "there is no GPU"
    finally:
        timed.end()
