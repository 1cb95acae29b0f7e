"""What a campaign found, worked out from its records alone: the same records give the same summary anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mjolnir.research import devices, effects
from mjolnir.tuner.workload import Workload

SCHEMA = "mjolnir.summary/1"

DECISIONS = {
    "promote": "proven faster", "not-proven": "not proven", "default-is-best": "the default is best",
    "not-decided": "not decided",
}  # fmt: skip
"""The decisions of promotion records, in words."""

Record = Mapping[str, Any]


def bodies(records: Iterable[Record], kind: str) -> list[Mapping[str, Any]]:
    """The bodies of the records of `kind`, in order."""
    return [record["body"] for record in records if record["kind"] == kind]


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """The summary of one tag, schema `mjolnir.summary/1`; of source experiments it has `experiments` as well.

    Raises:
        ValueError: the records hold no campaign.
    """
    from mjolnir.research.source.story import brief

    campaigns = bodies(records, "campaign")
    if not campaigns:
        raise ValueError("these records hold no campaign: the run ended before its first record")
    campaign = campaigns[-1]
    trials = bodies(records, "trial")
    ends = bodies(records, "end")
    epochs = bodies(records, "epoch")
    epoch = epochs[-1] if epochs else {}
    evidence = current(trials, epoch)
    floor = noise_floor(bodies(records, "noise"), len(campaign["workload"]["points"]))
    return {
        "schema": SCHEMA,
        "tag": records[0]["tag"],
        "geometry": campaign["geometry"],
        "placement": campaign["placement"],
        "workload": campaign["workload"],
        "options": campaign["options"],
        "device": campaign["device"],
        "simulated": campaign["simulated"],
        "recording": campaign.get("recording"),
        "default": campaign["default"],
        "epoch": epoch,
        "epochs": len({entry["epoch"] for entry in epochs}),
        "trials": _counts(trials),
        **({"proposals": _proposals(trials)} if campaign["options"].get("proposer") == "external" else {}),
        "canaries": _canaries(bodies(records, "canary")),
        "noise_floor": floor,
        "buckets": [_bucket(bucket, campaign, evidence, records) for bucket in _buckets(campaign)],
        "effects": effects.of_campaign(campaign, evidence, floor),
        "live": devices.live(records),
        "seconds": max((float(trial.get("clock", 0.0)) for trial in trials), default=0.0),
        "records": dict(sorted(Counter(record["kind"] for record in records).items())),
        "end": ends[-1] if ends else None,
        **({"experiments": brief(trials)} if campaign.get("sources") else {}),
    }


def current(trials: Sequence[Mapping[str, Any]], epoch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trials of the epoch in force: older ones are no evidence."""
    return [trial for trial in trials if not epoch or trial.get("epoch") == epoch["epoch"]]


def noise_floor(noise: Sequence[Mapping[str, Any]], points: int) -> list[float]:
    """The noise floor of each point as a fraction, as the last measured noise record states it."""
    return next((list(body["floor"]) for body in reversed(noise) if body["floor"]), [0.0] * points)


def best_trial(trials: Sequence[Mapping[str, Any]], bucket: int) -> Mapping[str, Any] | None:
    """The trial that the search followed in `bucket`: the fastest of those that were its best when they were tried."""
    leads = [trial for trial in trials if bucket in trial["kept_buckets"]]
    return min(leads, key=lambda trial: trial["ratios"][str(bucket)], default=None)


def _found(setting: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], bucket: int) -> float | None:
    """The search's own estimate for a setting that was decided on."""
    ratios = [trial["ratios"].get(str(bucket)) for trial in trials if trial["resolved"] == setting]
    return next((ratio for ratio in ratios if ratio is not None), None)


def _buckets(campaign: Mapping[str, Any]) -> tuple[int, ...]:
    return Workload.from_dict(campaign["workload"]).buckets


def _counts(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "total": len(trials),
        "status": dict(sorted(Counter(trial["status"] for trial in trials).items())),
        "kept": sum(trial["verdict"] == "keep" for trial in trials),
        "reasons": dict(Counter(trial["reason"] for trial in trials if trial["reason"]).most_common(8)),
    }


def _proposals(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What came of the asks of an external command: those that failed were replaced, and say why in their notes."""
    asked = [trial for trial in trials if trial["proposal"]["origin"] == "sampler"]
    failed = [trial for trial in asked if trial["proposal"].get("note")]
    first = {"trial": failed[0]["trial"], "note": failed[0]["proposal"]["note"]} if failed else None
    return {"asked": len(asked), "failed": len(failed), "first": first}


def _canaries(canaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    passed = sorted({canary["fault"] for canary in canaries if not canary["rejected"]})
    return {"tried": len(canaries), "rejected": sum(bool(canary["rejected"]) for canary in canaries), "passed": passed}


def _bucket(
    bucket: int, campaign: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], records: Sequence[Record]
) -> dict[str, Any]:
    workload = Workload.from_dict(campaign["workload"])
    best = best_trial(trials, bucket)
    decisions = [body for body in bodies(records, "promotion") if body["bucket"] == bucket]
    return {
        "bucket": bucket,
        "points": [workload.points[index].name for index in workload.of_bucket(bucket)],
        "incumbent": (campaign.get("incumbents") or {}).get(str(bucket)),
        "best": best and {"trial": best["trial"], "setting": best["setting"], "ratio": best["ratios"][str(bucket)]},
        "promotion": decisions[-1] if decisions else None,
        "found": _found(decisions[-1]["setting"], trials, bucket) if decisions else None,
    }
