"""The steps of one source experiment: canaries, noise, gate, and instances until the change is proven or given up.

Each step is on record before the next depends on it; canaries and noise hold for all experiments on one base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mjolnir.research.summary import bodies
from mjolnir.tuner.bench import REJECTED, Instance, Outcome, Status
from mjolnir.tuner.journal import Journal
from mjolnir.tuner.options import Options
from mjolnir.tuner.shootout import SPARE
from mjolnir.tuner.source_proof import DISCARD, OPEN, Ruling, SourceCourt
from mjolnir.tuner.sources import Arm, Comparison, Source, SourceBench
from mjolnir.tuner.statistics import Array, instance_values, noise_floor
from mjolnir.tuner.trial import UNTOLD

A_PROCESS = 5
"""A/A instances that one pair of processes takes."""

CANARY_TRIES = 3
"""How often a canary is sent that the bench could not judge."""


class Stopped(Exception):
    """The experiment ends undecided; `reason` says why, `status` is that of its trial."""

    def __init__(self, reason: str, status: Status = Status.INFRASTRUCTURE) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


class CanaryPassed(Exception):
    """A wrong kernel passed the gate, or was not judged: nothing that is measured can be believed."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of a change at the bench.

    Attributes:
        status: of its trial.
        ruling: what its instances came to.
        records: hashes of the records that it rests on.
    """

    status: Status
    ruling: Ruling
    records: tuple[str, ...]


class Proving:
    """One experiment on an open bench.

    Args:
        bench: the two builds.
        journal: the tag's records, those of the epoch in force last.
        options: the rules.
        number: the trial that it becomes.
        stop: asked before each step.
        say: takes lines of progress.
    """

    def __init__(
        self,
        bench: SourceBench,
        journal: Journal,
        options: Options,
        number: int,
        stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._bench, self._journal, self._options = bench, journal, options
        self._number, self._stop, self._say = number, stop, say
        self.epoch = str(bodies(journal.history(), "epoch")[-1]["epoch"])
        self._began = bench.now()
        self._process = 0

    def clock(self) -> float:
        """Seconds since the experiment began."""
        return round(self._bench.now() - self._began, 3)

    def of_epoch(self, kind: str) -> list[Mapping[str, Any]]:
        """The bodies of a kind that were taken on this base, on this device, in this way."""
        return [body for body in bodies(self._journal.history(), kind) if body.get("epoch") == self.epoch]

    @property
    def attempt(self) -> int:
        """Which experiment on this base this one is; those that were killed or stopped had their look as well."""
        return 1 + len({body["trial"] for body in self.of_epoch("confirmation") if body["trial"] != self._number})

    def canaries(self) -> None:
        """Send each canary through the gate, unless that is on record.

        Raises:
            CanaryPassed: one was not rejected.
            Stopped: somebody asked to stop.
        """
        known = {body["fault"] for body in self.of_epoch("canary") if body["rejected"]}
        for fault in self._bench.canaries:
            for number in range(1, 1 + CANARY_TRIES):
                if fault in known:
                    break
                self._check_stop()
                outcome = self._bench.canary(fault)
                rejected = outcome.status in REJECTED
                self._append("canary", self._canary(fault, number, outcome))
                if rejected:
                    known.add(fault)
                elif outcome.status not in UNTOLD:
                    break
            if fault not in known:
                raise CanaryPassed(f"the canary {fault!r} was not rejected by the gate: {outcome.status}")

    def _canary(self, fault: str, number: int, outcome: Outcome) -> dict[str, Any]:
        return {
            "fault": fault,
            "number": number,
            "status": str(outcome.status),
            "rejected": outcome.status in REJECTED,
            "reason": outcome.reason,
            "correctness": dict(outcome.correctness),
        }

    def noise(self, base: Arm) -> Array:
        """The noise floor of each point: the base against itself, each in a process of its own.

        Raises:
            Stopped: somebody asked to stop, or too much was lost.
        """
        known = [body for body in self.of_epoch("noise") if body["status"] == Status.MEASURED]
        values = [body["values"] for body in known]
        if not values:
            self._say(f"measuring the noise: the base against itself, {self._options.noise} times")
        lost = 0
        while len(values) < self._options.noise:
            self._process += len(values) % A_PROCESS == 0
            number = 1 + len(self.of_epoch("noise"))
            instance = self._compare((Arm(Source.TWIN, base.settings), base), number)
            body = self._noise(number, instance, values)
            self._append("noise", body)
            if body["status"] == Status.MEASURED:
                values.append(body["values"])
            elif (lost := lost + 1) > SPARE:
                raise Stopped(f"the noise could not be measured: {body['reason']}")
        return noise_floor(np.array(values))

    def _noise(self, number: int, instance: Instance, before: Sequence[Sequence[float]]) -> dict[str, Any]:
        said = {"number": number, "status": str(instance.status), "reason": instance.reason, "timings": []}
        empty: dict[str, Any] = {"values": [], "floor": []}
        if instance.status is not Status.MEASURED:
            return {**said, **empty, "window": dict(instance.window)}
        try:
            values = instance_values(instance.samples, 0, 1).tolist()
        except ValueError as error:
            return {**said, **empty, "status": str(Status.NAN), "reason": str(error)}
        floor = noise_floor(np.array([*before, values])).tolist()
        samples = [[list(arm) for arm in point] for point in instance.samples]
        return {**said, "samples": samples, "values": values, "floor": floor, "window": dict(instance.window)}

    def prove(self, change: Arm, base: Arm, floor: Array) -> Proof:
        """Take instances, group by group in fresh processes, until the change is proven or given up.

        Raises:
            Stopped: somebody asked to stop, or too much was lost.
        """
        court = SourceCourt(self._bench.workload, floor, self._options, self.attempt)
        good: list[Mapping[str, Any]] = []
        hashes: list[str] = []
        taken = lost = 0
        ruling = court.judge(good)
        while ruling.decision == OPEN:
            self._process += 1
            wanted = len(good) + self._options.group
            while len(good) < wanted:
                taken += 1
                record = self._instance(taken, change, base, court.attempt)
                body = record["body"]
                hashes.append(record["hash"])
                if body["status"] == Status.MEASURED:
                    good.append(body)
                elif body["status"] not in UNTOLD:
                    return Proof(Status(body["status"]), Ruling(DISCARD, body["reason"]), tuple(hashes))
                elif (lost := lost + 1) > SPARE:
                    raise Stopped(f"{lost} instances were lost; the last: {body['reason']}", Status(body["status"]))
            ruling = court.judge(good)
            self._say(
                f"process {ruling.processes} of at most {court.rules.most}: {ruling.ratio:.4f} of the base's time, "
                f"evidence {ruling.evidence:.3g} of {ruling.threshold:.3g}"
            )
        return Proof(Status.MEASURED, ruling, tuple(hashes))

    def _instance(self, number: int, change: Arm, base: Arm, attempt: int) -> Mapping[str, Any]:
        instance = self._compare((change, base), number)
        workload = self._bench.workload
        body: dict[str, Any] = {
            "trial": self._number,
            "number": number,
            "attempt": attempt,
            "process": self._process,
            "instance": number,
            "arms": [arm.as_dict(workload) for arm in (change, base)],
            "points": list(range(len(workload.points))),
            "samples": [[list(arm) for arm in point] for point in instance.samples],
            "status": str(instance.status),
            "reason": instance.reason,
            "correctness": dict(instance.correctness),
            "window": dict(instance.window),
        }
        if instance.status is Status.MEASURED:
            try:
                instance_values(instance.samples, 0, 1)
            except ValueError as error:
                body |= {"status": str(Status.NAN), "reason": str(error)}
        return self._append("confirmation", body)

    def _compare(self, arms: tuple[Arm, Arm], number: int) -> Instance:
        self._check_stop()
        return self._bench.compare(Comparison(self._process, number, arms, self._options.rounds))

    def _check_stop(self) -> None:
        if self._stop():
            raise Stopped("stopped before it was decided")

    def _append(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        policy = {"policy": self._bench.environment.get("policy")}
        return self._journal.append(kind, {**body, **policy, "epoch": self.epoch, "clock": self.clock()})
