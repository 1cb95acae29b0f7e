"""What an engine process is asked and what it answers, as JSON: the two sides share nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mjolnir.research.serving.prompts import Prompt

TOP = 5
"""Tokens whose log-probabilities are kept at every step."""


@dataclass(frozen=True, slots=True)
class Job:
    """One engine, and what it is asked.

    Attributes:
        name: for messages.
        model: the model's folder.
        backend: an attention backend as vLLM names it; None = the platform's own.
        batches: prompts, asked a batch at a time.
        tokens: how many each prompt is answered with.
        engine: further arguments of `vllm.LLM`.
        environment: variables of the process.
        zeroed: attention of decode steps gives zeros: the control, which has to be found wrong.
    """

    name: str
    model: str
    backend: str | None
    batches: tuple[tuple[Prompt, ...], ...]
    tokens: int
    engine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    zeroed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The inverse of `as_dict`."""
        batches = tuple(tuple(tuple(prompt) for prompt in batch) for batch in values["batches"])
        return cls(**{**values, "batches": batches})


Top = Mapping[int, float]
"""Log-probability by token, of the likeliest tokens and the chosen one."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What one prompt was answered with.

    Attributes:
        prompt: the prompt's length.
        tokens: the chosen tokens.
        tops: at every step.
    """

    prompt: int
    tokens: tuple[int, ...]
    tops: tuple[Top, ...]

    def logprob(self, step: int) -> float:
        """Of the chosen token."""
        return self.tops[step][self.tokens[step]]

    def as_dict(self) -> dict[str, Any]:
        """JSON form, which has no numbers for keys."""
        tops = [[[token, value] for token, value in top.items()] for top in self.tops]
        return {"prompt": self.prompt, "tokens": list(self.tokens), "tops": tops}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Completion:
        """The inverse of `as_dict`."""
        tops = tuple({int(token): float(value) for token, value in top} for top in values["tops"])
        return cls(values["prompt"], tuple(values["tokens"]), tops)


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine process answered.

    Attributes:
        completions: for every prompt, batch by batch.
        scheduled: steps by kind, as the scheduler made them; see `steps.Steps`.
        counted: steps by where they ran, as the backend counted them; empty for other backends.
        facts: versions, device, seconds.
    """

    completions: tuple[Completion, ...]
    scheduled: Mapping[str, int]
    counted: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def step_share(self) -> float | None:
        """Share of the scheduled decode-only steps that ran on Mjolnir; None where there was none, or no count."""
        decode = self.scheduled["decode"]
        return self.mjolnir_steps / decode if decode and self.counted else None

    @property
    def mjolnir_steps(self) -> int:
        """Steps that ran on Mjolnir, causal or not."""
        return mjolnir_steps(self.counted)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "completions": [completion.as_dict() for completion in self.completions]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """The inverse of `as_dict`."""
        completions: Sequence[Mapping[str, Any]] = values["completions"]
        return cls(**{**values, "completions": tuple(map(Completion.from_dict, completions))})


def mjolnir_steps(counted: Mapping[str, Any]) -> int:
    """Steps that ran on Mjolnir, causal or not, of the backend's counts."""
    return int(counted.get("mjolnir", 0)) + int(counted.get("non_causal", 0))
