"""Steps of an engine, counted where they are made: in its scheduler, whatever the backend says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Steps:
    """Counts of what was scheduled.

    Attributes:
        most: query tokens of a request up to which a step counts as decoding: one more than are speculated.
        decode: steps in which every request has the same number of query tokens, at most `most`.
        speculative: those of them with more than one.
        mixed: steps in which some requests decode and others do not, or with different numbers of query tokens.
        prefill: all others.
        preempted: requests that were put back for want of room.
        cached: prompt tokens that were found in the prefix cache.
        last_is_decode: whether the step made last was one of `decode`.
    """

    most: int = 1
    decode: int = 0
    speculative: int = 0
    mixed: int = 0
    prefill: int = 0
    preempted: int = 0
    cached: int = 0
    last_is_decode: bool = False

    def add(self, tokens: Sequence[int]) -> None:
        """Count a step whose requests have so many query tokens each; one without any is no step."""
        if not tokens:
            return
        self.last_is_decode = min(tokens) == max(tokens) <= self.most
        if self.last_is_decode:
            self.decode += 1
            self.speculative += tokens[0] > 1
        elif min(tokens) <= self.most:
            self.mixed += 1
        else:
            self.prefill += 1

    def counts(self) -> Mapping[str, int]:
        """By kind."""
        return {name: value for name, value in asdict(self).items() if name not in ("most", "last_is_decode")}

    def reset(self) -> None:
        """Begin anew."""
        for name in self.counts():
            setattr(self, name, 0)


def watch(scheduler: type[Any], steps: Steps) -> None:
    """Have every scheduler of this class, vLLM's, tell `steps` what it schedules."""
    original = scheduler.schedule

    def schedule(self: Any, *given: Any, **named: Any) -> Any:
        made = original(self, *given, **named)
        steps.add([*made.num_scheduled_tokens.values()])
        steps.preempted += len(made.preempted_req_ids or ())
        steps.cached += sum(request.num_computed_tokens for request in made.scheduled_new_reqs)
        return made

    scheduler.schedule = schedule
