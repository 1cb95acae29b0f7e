"""`mjolnir serve`: the command line that it becomes, and what it warns of."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.research import serve as twin
from mjolnir.research.answer import MissingFailure, UsageFailure
from mjolnir.research.serving.config import Serving, kinds
from tests.research.test_cli import call

QWEN = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096, "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA = {
    **QWEN, "head_dim": 256, "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return tmp_path


@pytest.fixture(autouse=True)
def whole_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vLLM were installed, under its own name."""
    monkeypatch.setattr(twin, "version", lambda name: "0.31.0")


def plan(model: object, *arguments: str, **environ: str) -> twin.Plan:
    return twin.plan_of(str(model), arguments, environ)


def test_backend_kv_dtype_and_layout_are_set(model: Path) -> None:
    made = plan(model, "--port", "8001")
    assert made.command == (
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", "8001",
        "--attention-backend", "CUSTOM", "--kv-cache-dtype", "fp8",
    )  # fmt: skip
    assert made.variables == {"VLLM_KV_CACHE_LAYOUT": "HND"}
    assert (made.warnings, made.notes) == ((), ())


def test_a_build_under_another_name_is_served_by_its_module(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(twin, "version", version)
    monkeypatch.setattr(twin, "find_spec", lambda name: object())
    assert plan(model).command[1:5] == ("-m", "vllm.entrypoints.openai.api_server", "--model", str(model))
    monkeypatch.setattr(twin, "find_spec", lambda name: None)
    assert plan(model).command[2] == "vllm.entrypoints.cli.main"


def test_what_the_user_says_stays(model: Path) -> None:
    made = plan(model, "--kv_cache_dtype=fp8_e4m3", "-ac.backend", "custom", VLLM_KV_CACHE_LAYOUT="NHD")
    assert made.command[5:] == ("--kv_cache_dtype=fp8_e4m3", "-ac.backend", "custom")
    assert (made.variables, made.warnings) == ({}, ())


@pytest.mark.parametrize(
    ("config", "arguments", "environ", "words"),
    [
        (QWEN, ("--attention-backend", "FLASH_ATTN"), {}, "FLASH_ATTN is not Mjolnir's"),
        (QWEN, (), {"MJOLNIR_ATTN_DISABLE": "1"}, "MJOLNIR_ATTN_DISABLE is set"),
        (QWEN, ("--kv-cache-dtype", "auto"), {}, "its attention will run on the fallback: the KV cache is auto"),
        (QWEN, ("--block-size=24",), {}, "--block-size 24 is no multiple of 16: vLLM would find no kernel for it"),
        (QWEN, (), {"MJOLNIR_DEFAULTS": "/none.json"}, "MJOLNIR_DEFAULTS = /none.json is no file"),
        (QWEN, ("-ac", '{"backend": "FLASH_ATTN"}'), {}, "FLASH_ATTN is not Mjolnir's"),
        ({**QWEN, "model_type": "bloom"}, (), {}, "ALiBi"),
        ({**QWEN, "model_type": "mpt", "attn_config": {"alibi": True}}, (), {}, "ALiBi"),
        ({**QWEN, "model_type": "baichuan", "hidden_size": 5120, "head_dim": 128}, (), {}, "ALiBi"),
        (
            {**QWEN, "attention_chunk_size": 8192},
            (),
            {},
            "its layers of kind chunked_attention will run on the fallback",
        ),
        ({**QWEN, "layer_types": ["linear_attention"] * 2}, (), {}, "linear_attention: none has a KV cache"),
        (QWEN, ("-dcp", "2"), {}, "context parallelism"),
        (QWEN, ("-tp", "3"), {}, "cannot be divided"),
        (QWEN, ("--dtype", "float32"), {}, "float32"),
        ({**QWEN, "head_dim": 96}, (), {}, "head_dim = 96"),
        ({**QWEN, "attn_logit_softcapping": 50.0}, (), {}, "capped at 50"),
        ({**QWEN, "model_type": "gpt_oss"}, (), {}, "sinks"),
        ({**QWEN, "kv_lora_rank": 512}, (), {}, "MLA"),
        ({**QWEN, "sliding_window": 4096}, (), {}, "a sliding window of 4096"),
        (GEMMA, (), {}, "its layers of kind sliding_attention will run on the fallback: a sliding window of 512"),
        ({"is_encoder_decoder": True}, (), {}, "an encoder"),
        ({}, (), {}, "num_attention_heads is None"),
    ],
)
def test_what_will_not_run_on_mjolnir_is_told(
    tmp_path: Path, config: dict[str, Any], arguments: Sequence[str], environ: Mapping[str, str], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (warning,) = plan(tmp_path, *arguments, **environ).warnings
    assert words in warning


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sliding_window_pattern": 3}, ["sliding_attention", "full_attention"]),
        ({"model_type": "gemma3_text"}, ["sliding_attention", "full_attention"]),
        ({"model_type": "gemma3_text", "num_hidden_layers": 5}, ["sliding_attention"]),
        ({"model_type": "mistral"}, ["sliding_attention"]),
        ({"sliding_window_pattern": 3, "use_sliding_window": False}, ["full_attention"]),
        ({"sliding_window": None, "sliding_window_pattern": 3}, ["full_attention"]),
    ],
)
def test_layers_with_a_window_are_told_from_those_without(changes: dict[str, Any], names: list[str]) -> None:
    config = {**QWEN, "sliding_window": 64, "num_hidden_layers": 12, **changes}
    found = dict(kinds(config, Serving()))
    assert list(found) == names
    windows = {name: model.sliding_window for name, model in found.items()}
    assert windows == {name: 64 if name == "sliding_attention" else None for name in names}


@pytest.mark.parametrize(("block", "page"), [(0, 64), (16, 16), (48, 16), (96, 32), (128, 128), (192, 64), (256, 128)])
def test_a_block_that_no_kernel_has_is_cut_as_vllm_does(block: int, page: int) -> None:
    ((_, found),) = kinds(QWEN, Serving(block_size=block))
    assert found.block_size == page


@pytest.mark.parametrize("name", ["n_head_kv", "num_kv_heads", "multi_query_group_num"])
def test_kv_heads_have_several_names(name: str) -> None:
    config = {key: value for key, value in QWEN.items() if key != "num_key_value_heads"}
    ((_, found),) = kinds({**config, name: 2}, Serving())
    assert found.heads_kv == 2
    ((_, found),) = kinds(config, Serving())
    assert found.heads_kv == found.heads_q


def test_what_an_option_says_in_json_or_in_a_file_counts(model: Path, tmp_path: Path) -> None:
    made = plan(model, "--attention-config", '{"backend": "CUSTOM", "other": 1}')
    assert "--attention-backend" not in made.command, "vLLM takes one of the two"
    assert made.warnings == ()
    pytest.importorskip("yaml")
    file = tmp_path / "options.yaml"
    file.write_text("kv_cache_dtype: fp8_e4m3\nattention-backend: FLASH_ATTN\nblock-size: 24\n")
    made = plan(model, "--config", str(file), "--block-size", "32")
    assert made.command[-2:] == ("--block-size", "32"), "the file has the rest"
    assert [warning.split(";")[0] for warning in made.warnings] == [
        "--attention-backend FLASH_ATTN is not Mjolnir's"
    ]  # fmt: skip
    file.write_text("attention_config:\n  backend: TRITON_ATTN\n")
    made = plan(model, "--config", str(file))
    assert "--attention-backend" not in made.command, "the file names one"
    assert "TRITON_ATTN is not Mjolnir's" in made.warnings[0]
    for text, words in (("[1, 2]", "holds no options"), ("a: [", "cannot be read")):
        file.write_text(text)
        with pytest.raises(UsageFailure, match=words):
            plan(model, "--config", str(file))


def test_the_model_comes_first(model: Path) -> None:
    with pytest.raises(UsageFailure, match="--port is no model; it comes first"):
        twin.plan_of("--port", ["8000", str(model)], {})


def test_a_model_that_is_not_here_is_said_to_be_unknown(tmp_path: Path) -> None:
    made = plan(tmp_path / "none")
    assert made.warnings == ()
    assert "only known at its start" in made.notes[0]


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        ((), {"MJOLNIR_ATTN_MAX_QLEN": "many"}, "MJOLNIR_ATTN_MAX_QLEN"),
        (("-tp", "two"), {}, "--tensor-parallel-size 'two' is not a whole number"),
        (("--speculative-config", "{"), {}, "no JSON object"),
        (("--speculative-config", "[]"), {}, "is a JSON list"),
        (("--speculative-config", '{"num_speculative_tokens": "3"}'), {}, "is '3', not a whole number"),
        (("--attention-config", "{"), {}, "no JSON object"),
    ],
)
def test_what_does_not_parse_is_refused_before_anything_loads(
    model: Path, arguments: Sequence[str], environ: Mapping[str, str], words: str
) -> None:
    with pytest.raises(UsageFailure, match=words):
        plan(model, *arguments, **environ)


def test_options_are_read_in_every_spelling() -> None:
    given = twin.options(["-tp", "4", "--block_size=16", "--flag", "--max-num-seqs", "8", "x", "--port", "-1"])
    assert given == {
        "--tensor-parallel-size": "4", "--block-size": "16", "--flag": "", "--max-num-seqs": "8", "--port": "-1",
    }  # fmt: skip
    assert twin.serving_of(given) == Serving(tensor_parallel=4, block_size=16, max_num_seqs=8)


def test_layers_that_are_no_attention_are_left_out() -> None:
    config = {**GEMMA, "layer_types": ["linear_attention", "full_attention", "mamba"]}
    ((name, found),) = kinds({"text_config": config}, Serving(tensor_parallel=8))
    assert name == "full_attention"
    assert Geometry(found.heads_q, found.heads_kv, found.head_dim) == Geometry(4, 1, 256)


def test_it_becomes_the_server(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEPT", "1")
    started: list[tuple[Sequence[str], Mapping[str, str]]] = []
    twin.serve(str(model), ["--kv-cache-dtype", "auto"], start=lambda *given: started.append(given))
    ((command, environment),) = started
    assert command[3:5] == ("serve", str(model))
    assert (environment["KEPT"], environment["VLLM_KV_CACHE_LAYOUT"]) == ("1", "HND")
    assert "warning: its attention will run on the fallback" in capsys.readouterr().err
    monkeypatch.setattr(twin, "find_spec", lambda name: None)
    with pytest.raises(MissingFailure, match="not installed"):
        twin.serve(str(model), [])


def test_the_command_passes_on_what_it_does_not_know(model: Path) -> None:
    code, out, _ = call("serve", model, "--dry-run", "-tp", 2, "--port=1", "--no-enable-log-requests", "--json")
    passed = json.loads(out)["command"][5:]
    assert (code, passed[:4]) == (0, ["-tp", "2", "--port=1", "--no-enable-log-requests"])
    assert call("serve", model, "--dry-run", "--speculative-config", "[]")[0] == 2


@pytest.mark.usefixtures("six_rows")
def test_explain_tells_what_every_batch_size_gets(model: Path) -> None:
    code, out, _ = call(
        "defaults", "explain", "--model", model, "--device", "h200", "--max-num-seqs", 9, "--speculative-tokens", 1,
        "--json",
    )  # fmt: skip
    rows = json.loads(out)["layers"]["full_attention"]["rows"]
    assert code == 0
    assert [(row["batch"], row["q_len"]) for row in rows] == [(b, q) for q in (1, 2) for b in (1, 2, 4, 8, 16)]
    assert rows[3]["row"]["key"]["batch"] == rows[3]["key"]["batch"] == 8
    text = call("defaults", "explain", "--model", model / "config.json", "--device", "h200")[1]
    assert "run on Mjolnir on NVIDIA H200" in text
    assert "packaged table" in text


def test_explain_tells_what_is_refused(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(GEMMA))
    code, text, _ = call("defaults", "explain", "--model", model, "--device", "h200")
    assert code == 0
    assert "Layers of kind sliding_attention run on the fallback: a sliding window of 512" in text
    assert "Layers of kind full_attention run on Mjolnir" in text
    for arguments in ((), ("--model", model, "--geometry", "32/8xd128"), ("--model", model / "none")):
        assert call("defaults", "explain", "--device", "h200", *arguments)[0] == 2


def test_a_knob_that_no_server_would_start_with_is_refused_before(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="MJOLNIR_ATTN_CTAS = '9' is not allowed: 1 to 4"):
        twin.plan_of(str(tmp_path), [], {"MJOLNIR_ATTN_CTAS": "9"})


def test_settings_that_nobody_knows_are_told(tmp_path: Path) -> None:
    environ = {"MJOLNIR_ATTN_NOSUCH": "1", "MJOLNIR_ATTN_FALLBACK": "nope"}
    warnings = " ".join(twin.plan_of(str(tmp_path), [], environ).warnings)
    assert "MJOLNIR_ATTN_NOSUCH is no setting of this version" in warnings
    assert "is none of FLASHINFER, FLASH_ATTN, TRITON_ATTN" in warnings
