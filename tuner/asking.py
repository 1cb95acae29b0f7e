"""What is tried next: the settings that wait, then what the proposer answers for the bucket with the most to gain.

A proposal that was tried already is not wasted. Is it a contender of the bucket that asked, it becomes a further
instance of that setting and sharpens its mean (see `Standings.contends`); else an untried setting takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.allocation import Allocation
from mjolnir.tuner.proposers import Foresight, Gain, Proposer, ProposerError
from mjolnir.tuner.proposers.unseen import unseen
from mjolnir.tuner.session import PROPOSE_SECONDS, Session
from mjolnir.tuner.skips import Skips
from mjolnir.tuner.space import Coordinates
from mjolnir.tuner.standings import Standings
from mjolnir.tuner.stopping import is_flat
from mjolnir.tuner.trial import UNTOLD, Proposal

AGAIN = "again"
"""`Proposal.replaced` of a further instance of a setting."""


class Flat(Exception):
    """Nothing is left to gain that the noise would not hide."""


class Asking:
    """Makes the proposals of one epoch.

    Args:
        session: the campaign.
        proposer: is asked when nothing waits.

    Attributes:
        floors: noise floor of each bucket, a fraction; empty where it was not measured.
        skips: what did not fit.
        standings: what each setting has come to.
        likely: what the asks that come next may be answered with, as of the last one.
    """

    def __init__(self, session: Session, proposer: Proposer) -> None:
        self.floors: Mapping[int, float] = {}
        self.skips = Skips()
        self.standings = Standings(session.best)
        self._session = session
        self._proposer = proposer
        self._buckets = session.bench.workload.buckets
        self._allocation = Allocation(self._buckets)
        self._taken: set[Coordinates] = set()
        self._under_way: set[Coordinates] = set()
        self._queue = deque(self._first())
        self.likely: tuple[Setting, ...] = (*(setting for setting, _, _ in self._queue), *self._foreseen(1))

    def _first(self) -> list[tuple[Setting, str, int | None]]:
        """What is tried before the proposer is asked: the default, the rows in force, what was enqueued; each once."""
        session = self._session
        wanted: list[tuple[Setting, str, int | None]] = [(Setting(), "default", None)]
        in_force = [(setting, bucket) for bucket, setting in sorted(session.options.incumbents.items())]
        wanted += [(row, "incumbent", bucket) for row, bucket in in_force if not session.space.unrecorded(row)]
        wanted += [(setting, "enqueued", None) for setting in session.options.enqueued]
        first: dict[Setting, tuple[Setting, str, int | None]] = {}
        for entry in wanted:
            first.setdefault(resolve(entry[0], session.bench.geometry, session.bench.device), entry)
        return list(first.values())

    def wait_again(self, proposal: Proposal) -> None:
        """Try a setting again that was lost to the bench."""
        self._queue.append((proposal.setting, proposal.origin, proposal.bucket))

    def note(self, proposal: Proposal, known: bool) -> None:
        """Take note that this is proposed, and that it no longer waits where it was `known` from the records."""
        if known and self._queue and proposal.origin != "sampler":
            self._queue.popleft()
        if proposal.origin == "sampler" and proposal.bucket in self._buckets:
            self._allocation.note(proposal.bucket, proposal.number)
        coordinates = self._session.space.coordinates(proposal.setting)
        if coordinates is not None:
            self._taken.add(coordinates)
            self._under_way.add(coordinates)

    def propose(self, number: int) -> Proposal | None:
        """What trial `number` tries; None when the space is used up.

        Raises:
            Flat: the search is to end when nothing is left to gain, and nothing is.
        """
        if self._queue:
            setting, origin, bucket = self._queue.popleft()
            return Proposal(number, setting, origin, bucket=bucket)
        begin = perf_counter()
        session = self._session

        def gain(bucket: int) -> Gain | None:
            return self._proposer.gain(bucket, number, self._taken)

        if session.options.until_flat and is_flat(gain, self.floors):
            raise Flat
        bucket = self._allocation.choose(number, gain)
        found = self._ask(bucket, number)
        if found is None:
            return None
        coordinates, replaced, note = found
        seconds = PROPOSE_SECONDS if session.bench.simulated else round(perf_counter() - begin, 6)
        setting = session.space.setting(coordinates)
        self.likely = self._foreseen(number)
        return Proposal(number, setting, "sampler", self._proposer.name, replaced, bucket, seconds, note)

    def _ask(self, bucket: int, number: int) -> tuple[Coordinates, str, str] | None:
        """The coordinates, how a duplicate was dealt with, and what was wrong with the proposer's answer."""
        space = self._session.space
        rng = np.random.default_rng((self._session.options.seed, number, 1))
        try:
            proposed, note = self._proposed(bucket, number), ""
        except ProposerError as error:
            proposed, note = space.random(rng), str(error)
        else:
            if self._is_contender(bucket, proposed):
                return proposed, AGAIN, ""
        found = unseen(space, proposed, self._refuses, rng)
        if found is None:
            return None
        coordinates, replaced = found
        return coordinates, replaced or ("random" if note else ""), note

    def _proposed(self, bucket: int, number: int) -> Coordinates:
        """The proposer's answer; it is asked again while that is known not to fit, as long as it has others."""
        taken: frozenset[Coordinates] = frozenset(self._taken)
        while True:
            proposed = self._proposer.ask(bucket, number, taken)
            if proposed in taken or not self._refuses(proposed):
                return proposed
            taken |= {proposed}

    def _foreseen(self, number: int) -> tuple[Setting, ...]:
        """What the proposer may answer next, where it can tell; of no use to a bench that compiles nothing."""
        if self._session.bench.simulated or not isinstance(self._proposer, Foresight):
            return ()
        found = [each for bucket in self._buckets for each in self._proposer.likely(bucket, number, self._taken)]
        return tuple(self._session.space.setting(coordinates) for coordinates in dict.fromkeys(found))

    def _is_contender(self, bucket: int, coordinates: Coordinates) -> bool:
        if coordinates not in self._taken or coordinates in self._under_way or bucket not in self.floors:
            return False
        setting = self._session.space.setting(coordinates)
        return self.standings.contends(bucket, setting, self.floors[bucket])

    def _refuses(self, coordinates: Coordinates) -> bool:
        """Whether a setting is no proposal: it was tried, is under way, or is known not to fit."""
        if coordinates in self._taken:
            return True
        return len(self.skips) > 0 and self.skips.reason(self._session.space.setting(coordinates)) is not None

    def learn(self, body: Mapping[str, Any]) -> None:
        """Take a trial of this epoch in."""
        resolved = Setting.from_dict(body["resolved"])
        ratios = {int(bucket): ratio for bucket, ratio in body["ratios"].items()}
        self.standings.add(resolved, self._counting(resolved, ratios), body["trial"])
        self.skips.learn(body)
        coordinates = self._session.space.coordinates(Setting.from_dict(body["setting"]))
        if coordinates is not None:
            self._under_way.discard(coordinates)
            if body["status"] in UNTOLD:
                self._taken.discard(coordinates)
        self.tell(body)

    def would_lead(self, setting: Setting, ratios: Mapping[int, float]) -> list[int]:
        """The buckets that a setting with these ratios would lead; none when it is only compared with."""
        return self.standings.would_lead(setting, self._counting(setting, ratios))

    def _counting(self, setting: Setting, ratios: Mapping[int, float]) -> dict[int, float]:
        """The ratios of the buckets that a setting may win."""
        return {bucket: ratio for bucket, ratio in ratios.items() if self._session.may_win(setting, bucket)}

    def tell(self, body: Mapping[str, Any]) -> None:
        """Tell every bucket's study of a trial, of whatever epoch."""
        if body["status"] in UNTOLD:
            return
        coordinates = self._session.space.coordinates(Setting.from_dict(body["setting"]))
        if coordinates is None:
            return
        for bucket in self._buckets:
            ratio = body["ratios"].get(str(bucket))
            self._proposer.tell(bucket, coordinates, ratio)
            self._allocation.tell(bucket, None if ratio is None else float(np.log(ratio)))
