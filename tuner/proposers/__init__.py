"""Proposers: what to try next. They speak coordinates of the space and know nothing of devices or records."""

from __future__ import annotations

from typing import Protocol

from mjolnir.tuner.space import Coordinates, Space


class Proposer(Protocol):
    """A source of settings, with one study per bucket.

    A proposer is deterministic: the answer to `ask` depends on the seed, on `number` and on what was told before, not
    on how many asks there were. So a campaign that was killed can be told its records and go on as if it had not been.
    """

    @property
    def name(self) -> str:
        """As `Options.proposer` and the records have it."""

    def ask(self, bucket: int, number: int) -> Coordinates:
        """Propose for `bucket`; `number` is the trial it becomes. It may repeat what was asked before."""

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """Report a finished trial to one bucket's study: its ratio there (smaller is better), None if it failed."""


def make(name: str, space: Space, seed: int) -> Proposer:
    """The proposer of that name.

    Raises:
        ValueError: no such proposer.
    """
    if name == "random":
        from mjolnir.tuner.proposers.random import RandomProposer

        return RandomProposer(space, seed)
    if name == "tpe":
        from mjolnir.tuner.proposers.tpe import TpeProposer

        return TpeProposer(space, seed)
    raise ValueError(f"proposer {name!r} is unknown; there are tpe, random")
