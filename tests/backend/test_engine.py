"""The real engine on the CPU: decode steps run the emulator through the same builder, metadata and cache views."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from mjolnir.backend import agreement, builder
from mjolnir.backend.counters import STEPS
from mjolnir.backend.emulated import EmulatedLauncher
from mjolnir.backend.metadata import DecodeMetadata
from mjolnir.backend.routing import Refused
from mjolnir.research.serving.model import Shape, write
from tests.backend.engines import VOCABULARY, Answer, answer, engine, gaps, generate, prompt, sampling

pytestmark = [pytest.mark.vllm, pytest.mark.engine]

PLAIN = Refused("the test wants the fallback")
LENGTHS = (1, 63, 64, 65, 17, 128)
"""Prompts that end on, before and after the borders of blocks."""

CLOSE = 0.1
"""Nats between the emulator and attention spelled out in PyTorch: they round at different places."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings, no counts, no tables of another test."""
    for name in [name for name in os.environ if name.startswith(("MJOLNIR_", "THOR_T5_", "VLLM_KV_"))]:
        monkeypatch.delenv(name)
    agreement.forget()
    STEPS.reset()
    yield
    agreement.forget()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Written models by what is special about them."""
    folder = tmp_path_factory.mktemp("models")
    shapes = {
        "plain": Shape(hidden=256, intermediate=256, vocabulary=VOCABULARY, context=2048),
        "long heads": Shape(4, 2, 256, hidden=256, intermediate=256, vocabulary=VOCABULARY, context=2048),
        "one KV head": Shape(6, 1, hidden=256, intermediate=256, vocabulary=VOCABULARY, context=2048),
        "short heads": Shape(4, 2, 64, hidden=256, intermediate=256, vocabulary=VOCABULARY, context=2048),
    }
    return {name: write(folder / name.replace(" ", "-"), shape) for name, shape in shapes.items()}


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: answers and the counters after it."""

    answers: list[Answer]
    steps: dict[str, Any]


def run(model: Path, lengths: tuple[int, ...] = LENGTHS, tokens: int = 8, *, rounds: int = 1, **options: Any) -> Ran:
    """Generate with Mjolnir."""
    STEPS.reset()
    with engine(model, **options) as llm:
        for _ in range(rounds):
            answers = generate(llm, [prompt(length, kind) for kind, length in enumerate(lengths, 1)], tokens)
    return Ran(answers, STEPS.as_dict())


@pytest.fixture(scope="session")
def plain(models: dict[str, Path]) -> Callable[..., Ran]:
    """The same on the fallback alone, once for each model, dtype and number of tokens: no layout changes it."""
    known: dict[object, Ran] = {}

    def ran(model: str, lengths: tuple[int, ...] = LENGTHS, tokens: int = 8, dtype: str = "bfloat16") -> Ran:
        key = model, lengths, tokens, dtype
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(builder, "route", lambda *_: PLAIN)
                known[key] = run(models[model], lengths, tokens, block_size=64, dtype=dtype)
            assert known[key].steps["mjolnir"] == 0
        return known[key]

    return ran


def agree(ours: Ran, theirs: Ran) -> None:
    most, problems = gaps(ours.answers, theirs.answers)
    assert not problems
    assert most < CLOSE


CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "blocks of 16, tokens before heads": ("plain", {"block_size": 16}, {"VLLM_KV_CACHE_LAYOUT": "NHD"}),
    "blocks of 256, split": ("plain", {"block_size": 256}, {}),
    "layers of a block together": ("plain", {"block_size": 32}, {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}),
    "heads of 256, other knobs": ("long heads", {}, {"MJOLNIR_ATTN_CTAS": "1", "MJOLNIR_ATTN_MAX_SPLITS": "1"}),
    "one KV head in f16": ("one KV head", {"block_size": 64, "dtype": "float16"}, {}),
    "fp8 query": ("plain", {"block_size": 64}, {"MJOLNIR_ATTN_Q_DTYPE": "fp8", "MJOLNIR_ATTN_FUSED_QPACK": "0"}),
}


@pytest.mark.parametrize("case", CASES)
def test_decode_steps_agree_with_attention_spelled_out(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Path], plain: Callable[..., Ran], case: str
) -> None:
    model, options, environ = CASES[case]
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    ours = run(models[model], **options)
    assert ours.steps["mjolnir"] == 7
    assert ours.steps["missed"] == 0
    agree(ours, plain(model, dtype=options.get("dtype", "bfloat16")))


def test_chunked_prompts_beside_decoding_are_left_to_the_fallback(
    models: dict[str, Path], plain: Callable[..., Ran]
) -> None:
    lengths = 5, 70, 200, 130, 64, 33
    ours = run(models["plain"], lengths, block_size=64, max_num_batched_tokens=64, max_num_seqs=5)
    assert ours.steps["mjolnir"] >= 5
    assert ours.steps["fallback"] >= 5
    assert ours.steps["missed"] == 0
    agree(ours, plain("plain", lengths))


def test_cached_prefixes_are_read(models: dict[str, Path], plain: Callable[..., Ran]) -> None:
    ours = run(models["plain"], block_size=32, rounds=2)
    assert ours.steps["mjolnir"] == 14
    agree(ours, plain("plain"))


def test_preempted_requests_come_back(models: dict[str, Path], plain: Callable[..., Ran]) -> None:
    lengths = 60, 90, 33, 64, 100
    ours = run(models["plain"], lengths, 16, block_size=32, num_gpu_blocks_override=12, max_model_len=256)
    assert ours.steps["mjolnir"] > 15
    assert ours.steps["fallback"] > 1
    agree(ours, plain("plain", lengths, 16))


def test_verification_of_drafts_runs_where_it_is_uniform(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Path], plain: Callable[..., Ran]
) -> None:
    """The drafter is the model itself, so that every draft is right; it decodes on Mjolnir too."""
    drafter = {
        "method": "draft_model", "model": str(models["plain"]), "num_speculative_tokens": 2,
        "attention_backend": "CUSTOM",
    }  # fmt: skip
    seen: set[tuple[int, int]] = set()
    described = builder._described

    def watched(service: Any, decode: Any, step: Any) -> DecodeMetadata:
        seen.add((decode.q_len, service.margin))
        return described(service, decode, step)

    monkeypatch.setattr(builder, "_described", watched)
    ours = run(models["plain"], block_size=64, speculative_config=drafter)
    assert seen >= {(3, 2), (1, 2)}
    agree(ours, plain("plain"))


def test_guessed_drafts_are_verified(models: dict[str, Path], plain: Callable[..., Ran]) -> None:
    guesser = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    ours = run(models["plain"], tokens=24, block_size=64, speculative_config=guesser)
    assert ours.steps["mjolnir"] > 0
    agree(ours, plain("plain", tokens=24))


def test_aborted_requests_leave_the_others_as_they_are(models: dict[str, Path]) -> None:
    kinds = {"kept": 40, "aborted": 90, "late": 64}
    with engine(models["plain"], block_size=32) as llm:
        (alone,) = generate(llm, [prompt(kinds["kept"], 1)], 12)
        vllm = llm.llm_engine
        done: dict[str, Answer] = {}
        for kind, (name, length) in enumerate(kinds.items(), 1):
            vllm.add_request(name, {"prompt_token_ids": prompt(length, kind)}, sampling(12))
        for number in range(40):
            if number == 4:
                vllm.abort_request(["aborted"])
            done |= {item.request_id.split("-")[0]: answer(item) for item in vllm.step() if item.finished}
    assert set(done) == {"kept", "late"}
    most, problems = gaps([done["kept"]], [alone])
    assert not problems
    assert most < CLOSE


def test_what_is_not_eligible_serves_on_the_fallback(models: dict[str, Path]) -> None:
    ran = run(models["short heads"], block_size=64, tokens=4)
    assert ran.steps["mjolnir"] == 0
    assert ran.steps["missed"] == 3
    assert list(ran.steps["reasons"]) == ["head_dim = 64 is not supported; there are 128, 256"]


def test_attention_that_is_wrong_is_seen(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Path], plain: Callable[..., Ran]
) -> None:
    """Without it the comparisons above could not fail."""
    monkeypatch.setattr(EmulatedLauncher, "run", lambda self, *given: given[5].zero_())
    most, problems = gaps(run(models["plain"], block_size=64).answers, plain("plain").answers)
    assert problems or most > 1.0


def test_vllms_own_cpu_backend_says_nearly_the_same(models: dict[str, Path], plain: Callable[..., Ran]) -> None:
    """It cuts fp8 values off where others round, so that they are further apart."""
    stock = run(models["plain"], block_size=64, attention_backend=None)
    assert stock.steps["fallback"] == 0
    most, problems = gaps(plain("plain").answers, stock.answers)
    assert not problems
    assert most < 1.0


def test_a_server_whose_knobs_do_not_fit_does_not_start(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Path]
) -> None:
    monkeypatch.setenv("MJOLNIR_ATTN_KV_STAGES", "12")
    wrong = "from built-in rule and MJOLNIR_ATTN_KV_STAGES, cannot run: shared memory"
    with pytest.raises(ValueError, match=wrong), engine(models["plain"], block_size=64):
        pass
