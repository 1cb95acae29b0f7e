"""From a model's config to the heads of one GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.answer import UsageFailure
from mjolnir.research.model_config import geometry, load, split
from mjolnir.research.request import Request
from tests.research.test_cli import call, replay

LLAMA = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_heads_size_and_dtype_are_read():
    assert geometry(LLAMA) == Geometry(32, 8, 128)
    qwen = {
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "hidden_size": 4096,
        "head_dim": 128,
        "dtype": "float16",
    }
    assert geometry(qwen) == Geometry(64, 4, 128, dtype="f16")
    assert geometry({**LLAMA, "torch_dtype": None}).dtype == "bf16"


def test_the_language_model_of_several_modalities():
    config = {"text_config": {**LLAMA, "torch_dtype": None}, "vision_config": {}, "torch_dtype": "float16"}
    assert geometry(config) == Geometry(32, 8, 128, dtype="f16")


@pytest.mark.parametrize(
    ("heads", "parts", "local"),
    [((32, 8), 1, (32, 8)), ((32, 8), 4, (8, 2)), ((64, 8), 16, (4, 1)), ((64, 4), 8, (8, 1))],
)
def test_tensor_parallel_divides_heads_and_copies_kv_heads(heads, parts, local):
    assert split(heads[0], heads[1], parts) == local
    config = {**LLAMA, "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": 128}
    found = geometry(config, parts)
    assert (found.heads_q, found.heads_kv) == local


@pytest.mark.parametrize(
    ("changes", "parts", "words"),
    [
        ({"num_attention_heads": None}, 1, "num_attention_heads is missing"),
        ({"num_key_value_heads": None}, 1, "num_key_value_heads is missing"),
        ({"hidden_size": None}, 1, "head_dim is missing, and so is hidden_size"),
        ({"hidden_size": 4097}, 1, "no multiple of 32 heads"),
        ({"num_key_value_heads": [8, 4]}, 1, "is a list"),
        ({"num_attention_heads": True}, 1, "expected a whole number"),
        ({"num_key_value_heads": 5}, 1, "no multiple of num_key_value_heads"),
        ({"head_dim": 64}, 1, "head_dim = 64 is not supported"),
        ({"torch_dtype": "float32"}, 1, "dtype float32 is not supported"),
        ({"kv_lora_rank": 512}, 1, "latent attention"),
        ({"is_encoder_decoder": True}, 1, "an encoder and a decoder"),
        ({}, 3, "32 query heads cannot be divided by --tensor-parallel 3"),
        ({"num_attention_heads": 36, "num_key_value_heads": 4, "head_dim": 128}, 6, "neither divided by nor copied"),
    ],
)
def test_what_is_missing_or_not_supported_is_said(tmp_path, changes, parts, words):
    path = write(tmp_path, {**LLAMA, **changes})
    with pytest.raises(UsageFailure, match=words) as refused:
        load(path, parts)
    assert "--geometry takes the numbers themselves" in str(refused.value)


def test_what_is_no_config_is_refused(tmp_path):
    with pytest.raises(UsageFailure, match="cannot be read"):
        load(tmp_path / "none.json")
    with pytest.raises(UsageFailure, match="expected an object"):
        load(write(tmp_path, [1]))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageFailure, match="is not JSON"):
        load(tmp_path)


def test_a_request_takes_the_model_in_place_of_the_geometry(tmp_path):
    path = write(tmp_path, LLAMA)
    assert Request(model=tmp_path).problem()[0] == Geometry(32, 8, 128)
    assert Request(model=path, tensor_parallel=2, page_size=16).problem()[0] == Geometry(16, 4, 128, page_size=16)
    with pytest.raises(UsageFailure, match="give one of them"):
        Request(model=path, geometry="32/8xd128").problem()
    with pytest.raises(UsageFailure, match="go with --model"):
        Request(tensor_parallel=2).problem()
    with pytest.raises(UsageFailure, match="page_size = 17"):
        Request(model=path, page_size=17).problem()


def test_run_and_explain_take_a_model(recording, tmp_path):
    path = write(tmp_path, LLAMA)
    assert replay(recording, tmp_path / "ledger", "--model", path, trials=5)[0] == 0
    code, _, err = replay(recording, tmp_path / "ledger", "--model", path, "--tensor-parallel", 2, tag="b")
    assert code == 2
    assert "and nothing else" in err
    asked = ("defaults", "explain", "--batch", 4, "--device", "h200", "--model", path)
    code, out, _ = call(*asked, "--json")
    assert (code, json.loads(out)["key"]["heads_q"]) == (0, 32)
    code, out, _ = call(*asked, "--tensor-parallel", 4, "--page-size", 16, "--json")
    key = json.loads(out)["key"]
    assert (code, key["heads_q"], key["heads_kv"], key["page_size"]) == (0, 8, 2, 16)


def test_a_config_that_is_nested_too_deeply_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(UsageFailure, match="is not JSON that can be read"):
        load(tmp_path)
