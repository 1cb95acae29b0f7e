"""The model that is written: every tensor that its config means, and attention that matters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mjolnir.research.answer import UsageFailure
from mjolnir.research.model_config import load
from mjolnir.research.serving import model as models

SHAPE = models.Shape(heads_q=4, heads_kv=2, head_dim=128, hidden=64, intermediate=96, layers=2, vocabulary=300)


def test_weights_have_the_shapes_that_the_config_says(tmp_path: Path) -> None:
    models.write(tmp_path, SHAPE, seed=3)
    tensors = load_file(tmp_path / "model.safetensors")
    assert len(tensors) == 3 + 2 * 11
    layer = {name.removeprefix("model.layers.1."): tuple(t.shape) for name, t in tensors.items() if "layers.1." in name}
    assert layer["self_attn.q_proj.weight"] == (512, 64)
    assert layer["self_attn.k_proj.weight"] == layer["self_attn.v_proj.weight"] == (256, 64)
    assert layer["self_attn.o_proj.weight"] == (64, 512)
    assert layer["mlp.down_proj.weight"] == (64, 96)
    assert tensors["lm_head.weight"].shape == tensors["model.embed_tokens.weight"].shape == (300, 64)
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    geometry = load(tmp_path)
    assert (geometry.heads_q, geometry.heads_kv, geometry.head_dim) == (4, 2, 128)


def test_weights_are_the_seeds_and_large() -> None:
    one, again, other = (models.weights(SHAPE, seed) for seed in (1, 1, 2))
    name = "model.layers.0.self_attn.v_proj.weight"
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])
    assert one[name].float().std().item() == pytest.approx(models.ATTENTION_GAIN * 64**-0.5, rel=0.05)
    assert one["lm_head.weight"].float().std().item() == pytest.approx(models.HEAD_GAIN * 64**-0.5, rel=0.05)
    assert one["model.embed_tokens.weight"].float().std().item() == pytest.approx(1.0, rel=0.05)


def test_a_shape_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        models.Shape(heads_q=3, heads_kv=2)
    with pytest.raises(ValueError, match="at least 1"):
        models.Shape(layers=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not JSON"), ("[1]", "JSON list"), ("{}", "vocab_size = None"), ("[" * 200_000, "is not JSON")],
)
def test_a_config_that_says_too_little_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageFailure, match=words):
        models.vocabulary_of(models.read_config(tmp_path))


def test_a_config_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "qwen.json").write_text('{"vocab_size": 7}')
    assert models.read_config(tmp_path / "qwen.json") == {"vocab_size": 7}


def test_the_vocabulary_is_that_of_the_language_model() -> None:
    assert models.vocabulary_of(json.loads('{"vocab_size": 7}')) == 7
    assert models.vocabulary_of({"vocab_size": 7, "text_config": {"vocab_size": 9}}) == 9
