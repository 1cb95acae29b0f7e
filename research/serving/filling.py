"""A model as it is timed: layers gone through several times, weights of the usual size, and a cache filled beforehand.

A step is what users meet where the device has as much to do as with a whole model: few layers leave it waiting for
the host, and then all backends take what vLLM's Python takes. Few layers are all that several engines have room for
beside one another, so each is gone through several times: as many bytes of weights and cache are read as by as many
layers, and none of them can still be in the device's caches, since a round reads hundreds of megabytes of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from mjolnir.research.serving.engine import attention_layers
from mjolnir.research.serving.prompts import FIRST_ID


def loop_layers(model: type[Any], times: int) -> None:
    """Have models of this class, vLLM's, go through all of their layers so many times; before one is made."""
    from torch.nn import ModuleList

    original = model.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        self.layers = ModuleList([*self.layers] * times)
        self.end_layer = len(self.layers)

    model.__init__ = init


@contextmanager
def bare(llm: Any) -> Iterator[None]:
    """Steps that only write keys and values: layers are gone through once, and attention and MLPs are left out.

    It is for steps outside of CUDA graphs, and for backends that write the cache apart from attention.
    """
    layers = [layer for layer in attention_layers(llm) if not layer.attn_backend.forward_includes_kv_cache_update]
    llm.apply_model(_once)
    for layer in layers:
        layer.impl.forward = _zeros
    try:
        yield
    finally:
        llm.apply_model(_whole)
        for layer in layers:
            del layer.impl.forward


def _zeros(*given: Any, **named: Any) -> Any:
    return named["output"].zero_()


def _once(model: Any) -> None:
    inner = model.model
    inner.end_layer = len(set(inner.layers))
    for layer in set(inner.layers):
        layer.mlp.forward = _nothing


def _whole(model: Any) -> None:
    inner = model.model
    inner.end_layer = len(inner.layers)
    for layer in set(inner.layers):
        del layer.mlp.forward


def _nothing(hidden: Any) -> Any:
    return hidden


def randomise(model: Any) -> None:
    """Give every matrix of a model random values of the usual size, on its device."""
    import torch

    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 2 and parameter.is_floating_point():
            parameter.data.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)


def make_prompts(points: Sequence[tuple[int, int]], vocabulary: int, seed: int) -> list[list[int]]:
    """As many prompts as the largest batch takes, each as long as any point needs it; no two begin alike.

    Args:
        points: (batch, context).
        vocabulary: tokens that the model knows.
        seed: of the prompts.
    """
    random = Random(seed)
    most = max(batch for batch, _ in points)
    lengths = [max(context for batch, context in points if batch > number) for number in range(most)]
    return [random.choices(range(FIRST_ID, vocabulary), k=length) for length in lengths]


def fill(llm: Any, prompts: Sequence[Sequence[int]]) -> None:
    """Have the engine compute all prompts and keep them in its prefix cache."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    once = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts], once, use_tqdm=False)
