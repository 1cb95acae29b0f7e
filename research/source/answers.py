"""What a source experiment leaves: the body of its trial record, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Answer, Exit
from mjolnir.research.hints import command
from mjolnir.research.naming import interval
from mjolnir.tuner.source_proof import KEEP
from mjolnir.tuner.sources import Pair

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger
    from mjolnir.research.source.change import Change
    from mjolnir.research.source.proving import Proof, Proving
    from mjolnir.tuner.bench import Outcome
    from mjolnir.tuner.sources import SourceBench


@dataclass(frozen=True, slots=True)
class Taken:
    """What the bench said of a change.

    Attributes:
        gate: how building and checking it ended.
        proof: what its instances came to.
        arms: the builds with their knobs; None where it did not come to that.
        void: whether a canary passed.
    """

    gate: Outcome
    proof: Proof
    arms: Pair | None
    void: bool = False


def trial_body(
    number: int, message: str, change: Change, taken: Taken, proving: Proving, bench: SourceBench
) -> dict[str, Any]:
    """The body of the trial record: as any other's, the ratios being over the base; with `source`, what was tried."""
    gate, proof, ruling = taken.gate, taken.proof, taken.proof.ruling
    measured = proof.status == "measured"
    kept = ruling.decision == KEEP
    setting = Setting().as_dict()
    phases = {name: float(gate.phases.get(name, 0.0)) for name in ("compile", "gate")}
    phases |= {"propose": 0.0, "measure": max(0.0, proving.clock() - sum(phases.values())), "record": 0.0}
    return {
        "trial": number,
        "epoch": proving.epoch,
        "clock": proving.clock(),
        "bucket": None,
        "setting": setting,
        "resolved": setting,
        "changed": {},
        "status": str(proof.status),
        "reason": "" if kept else ruling.reason,
        "verdict": "keep" if kept else "discard",
        "kept_buckets": list(bench.workload.buckets) if kept else [],
        "ratio": ruling.ratio if measured else None,
        "ratios": {str(bucket): value for bucket, value in (ruling.ratios or {}).items()} if measured else {},
        "point_ratios": list(ruling.points) if measured else [],
        "timings": [],
        "correctness": dict(gate.correctness),
        "binary": gate.binary,
        "plans": [],
        "facts": dict(gate.facts),
        "phases": phases,
        "log": gate.log,
        "proposal": {"origin": "source", "sampler": "", "replaced": "", "number": number},
        "source": {
            "message": message.strip(),
            "base": change.base,
            "commit": change.commit,
            "files": list(change.files),
            "diff": change.diff,
            "arms": [arm.as_dict(bench.workload) for arm in taken.arms] if taken.arms else [],
            "attempt": proving.attempt,
            "proof": {**ruling.as_dict(), "reason": ruling.reason},
            "records": list(proof.records),
        },
    }


def answer(ledger: Ledger, record: Mapping[str, Any], change: Change, moved: str, code: Exit) -> Answer:
    """The outcome in words; `moved` is the branch that has the change now, or why it has it not."""
    body, tag = record["body"], record["tag"]
    number, source = body["trial"], body["source"]
    proof = source["proof"]
    lines = [f"Experiment {number} of {tag}: {word(body)}"]
    if body["ratio"] is not None:
        shown = interval(proof["interval"])
        lines.append(f"{shown} of the base's time over the workload, in {proof['processes']} pairs of processes")
        lines.append(f"slowest point: {proof['worst_point']['point']}, {proof['worst_point']['ratio']:.4f}")
    lines.append(proof["reason"])
    if code is Exit.NOT_WRITTEN:
        lines.append(f"NOT on its branch: {moved}")
    elif moved:
        lines.append(f"{moved} is at {change.commit[:12]}, the base of the next change")
    lines.append(f"Record: {command(ledger, 'autoresearch', 'show', tag, number)}")
    data = {"tag": tag, "trial": number, "outcome": word(body), "branch": moved, "record": record}
    return Answer(data, "\n".join(lines), code)


def word(body: Mapping[str, Any]) -> str:
    """keep, discard or crash, as the autoresearch convention has it, and how it ended where it was not measured."""
    if body["status"] == "measured":
        return str(body["verdict"])
    crashes = ("compile-failed", "compile-timeout", "crashed", "hung", "infrastructure")
    return f"crash ({body['status']})" if body["status"] in crashes else f"discard ({body['status']})"
