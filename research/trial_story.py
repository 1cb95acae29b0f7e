"""The story of one trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.research import story
from mjolnir.research.evidence import Found
from mjolnir.research.naming import Names
from mjolnir.research.plain import plain
from mjolnir.research.rows import unevenness_of
from mjolnir.research.story import Part
from mjolnir.research.summary import DECISIONS, bodies, current, noise_floor
from mjolnir.tuner.workload import Workload

Body = Mapping[str, Any]

ORIGINS = {
    "default": "the campaign itself: the built-in default is measured first",
    "incumbent": "the campaign itself: it is in force",
    "enqueued": "a setting that was asked before the sampler's own",
}


def of_trial(found: Found, number: int) -> list[Part]:
    """Who asked, what it was compared with, gate, times, where it stood, finals, and what would have to change.

    Raises:
        NoStory: there is no such trial, or no campaign.
    """
    records = found.records
    mine = [record for record in records if record["kind"] == "trial" and record["body"]["trial"] == number]
    campaigns = bodies(records, "campaign")
    if not mine or not campaigns:
        last = max((body["trial"] for body in bodies(records, "trial")), default=0)
        raise story.NoStory(f"there is no trial {number}; the last one is {last}")
    record, campaign = mine[-1], campaigns[-1]
    body, names = record["body"], Names.of(campaigns[-1])
    if "source" in body:
        from mjolnir.research.source import story as sources

        return sources.why(found.tag, body, campaign)
    epochs = bodies(records, "epoch")
    trials = [trial for trial in bodies(records, "trial") if trial.get("epoch") == body.get("epoch")]
    parts = [
        Part(
            f"Trial {number} of {found.tag}: {body['status']}, {body['verdict']}", tuple(_asked(body, campaign, names))
        ),
        Part("Gate", (story.gate(body["correctness"]),) if body["correctness"] else ()),
        Part("Times, against the built-in default in the same windows", tuple(_times(body, campaign))),
        Part("Where it stood", tuple(_standing(body, trials))),
        Part("Finals", tuple(_finals(body, records, names))),
        Part(
            "What would have to change",
            tuple(_change(body, campaign, records, current(trials, epochs[-1] if epochs else {}))),
        ),
        Part("Record", (f"{record['hash']}, found in {', '.join(found.where([record['hash']]))}",)),
    ]
    return [part for part in parts if part.lines]


def _asked(body: Body, campaign: Body, names: Names) -> list[str]:
    proposal = body["proposal"]
    origin = ORIGINS.get(proposal["origin"])
    if origin is None:
        bucket = f" for batch {body['bucket']}" if body["bucket"] is not None else ""
        seen = max(0, int(body["trial"]) - int(campaign["options"].get("depth", 0)) - 1)
        origin = f"the {proposal['sampler']} sampler{bucket}, which had been told of the first {seen} trials"
    lines = [
        f"setting {names(body['setting'])}",
        f"resolved {Setting.from_dict(body['resolved'])}",
        f"asked by {origin}",
    ]
    if note := proposal.get("note"):
        lines.append(f"the proposer gave no setting to use; a {proposal['replaced']} one took its place: {plain(note)}")
    elif proposal["replaced"]:
        lines.append(f"the sampler's own proposal was known already; this one took its place ({proposal['replaced']})")
    if body["reason"]:
        lines.append(f"it ended {body['status']} because: {body['reason']}")
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in body["phases"].items())
    return [*lines, f"phases: {phases}"]


def _times(body: Body, campaign: Body) -> list[str]:
    points = Workload.from_dict(campaign["workload"]).points
    lines = []
    for timing, ratio in zip(body["timings"], body["point_ratios"], strict=False):
        empty = median(timing["empty"])
        base = median(timing["baseline"]) - empty
        own = median([b + d for b, d in zip(timing["baseline"], timing["difference"], strict=True)]) - empty
        lines.append(
            f"{points[timing['point']].name}: {ratio:.4f} ({own / 1000:.2f} us, default {base / 1000:.2f} us, "
            f"{len(timing['baseline'])} rounds); {story.window(timing['window'])}"
        )
    if body["ratio"] is not None:
        lines.append(f"over the whole workload: {body['ratio']:.4f}")
    return lines


def _by_bucket(body: Body) -> list[tuple[str, float]]:
    return sorted(body["ratios"].items(), key=lambda entry: int(entry[0]))


def _standing(body: Body, trials: Sequence[Body]) -> list[str]:
    """By bucket: its ratio, its rank among the trials up to it and among all of its epoch, and the best."""
    lines = []
    for bucket, ratio in _by_bucket(body):
        measured = [trial for trial in trials if bucket in trial["ratios"]]
        then = [trial for trial in measured if trial["trial"] <= body["trial"]]
        ranks = [1 + sum(trial["ratios"][bucket] < ratio for trial in group) for group in (then, measured)]
        best = min(measured, key=lambda trial: float(trial["ratios"][bucket]))
        kept = "; the best until then, and kept" if int(bucket) in body["kept_buckets"] else ""
        lines.append(
            f"batch {bucket}: {ratio:.4f}, rank {ranks[0]} of {len(then)} when it was measured, {ranks[1]} of "
            f"{len(measured)} in the end (the best was {best['ratios'][bucket]:.4f}, trial {best['trial']}){kept}"
        )
    return lines


def _finals(body: Body, records: Sequence[Mapping[str, Any]], names: Names) -> list[str]:
    """The shoot-outs, instances and decisions that its setting took part in."""
    setting, lines = body["resolved"], []
    for kind in ("shootout", "confirmation", "promotion"):
        for final in bodies(records, kind):
            if final.get("epoch") != body.get("epoch"):
                continue
            head = f"batch {final['bucket']}: "
            if kind == "shootout" and setting in final["arms"]:
                lines.append(head + _shot(final, setting))
            elif kind == "confirmation" and final["arms"][0] == setting:
                lines.append(head + story.instance(final))
            elif kind == "promotion" and final["setting"] == setting:
                lines.append(f"{head}{DECISIONS[final['decision']]}: {final['reason']}")
    return lines or ["it was among the candidates of no bucket"]


def _shot(body: Body, setting: Body) -> str:
    if body["status"] != "measured":
        return f"in the shoot-out, which ended {body['status']}: {body['reason']}"
    place = body["arms"].index(setting)
    rank = 1 + body["ranking"].index(place)
    said = f"in the shoot-out {story.against(body['values'][place], 'default')}, rank {rank} of {len(body['arms'])}"
    return said + (f", chosen: {body['why']}" if place == body["chosen"] else ", not chosen")


def _change(body: Body, campaign: Body, records: Sequence[Mapping[str, Any]], trials: Sequence[Body]) -> list[str]:
    """What kept it from a row, as far as the records tell."""
    if body["status"] != "measured":
        return [f"it has to be measured at all; it ended {body['status']}"]
    if body not in trials:
        return ["its epoch is over (kernel, policy, device or versions have changed): it has to be measured again"]
    lines = []
    floor = noise_floor(bodies(records, "noise"), len(campaign["workload"]["points"]))
    decided = {final["bucket"]: final for final in bodies(records, "promotion") if final["epoch"] == body["epoch"]}
    for bucket, ratio in _by_bucket(body):
        decision = decided.get(int(bucket))
        if uneven := unevenness_of(body, int(bucket), campaign):
            lines.append(f"batch {bucket}: it can be no row here: {uneven}")
            continue
        if decision and decision["setting"] == body["resolved"] and decision["decision"] == "promote":
            lines.append(f"batch {bucket}: nothing, it is proven; `why {records[0]['tag']} bucket={bucket}` tells more")
            continue
        lines.append(f"batch {bucket}: {_gap(body, bucket, ratio, trials, campaign, max(floor, default=0.0))}")
    return lines


def _gap(body: Body, bucket: str, ratio: float, trials: Sequence[Body], campaign: Body, noise: float) -> str:
    """How far a trial was from the candidates of a bucket, or from the margin."""
    count, margin = campaign["options"]["candidates"], campaign["options"]["margin"]
    others = {
        str(t["resolved"]): t["ratios"][bucket]
        for t in trials
        if bucket in t["ratios"]
        and t["proposal"]["origin"] != "default"
        and not unevenness_of(t, int(bucket), campaign)
    }
    ordered = sorted(others.values())
    last = ordered[min(count, len(ordered)) - 1] if ordered else math.inf
    if ratio > last:
        short = f"{1 - last / ratio:.1%}"
        return f"it would have to be {short} faster to be among the {count} candidates (noise up to {noise:.1%})"
    limit = 1 / (1 + margin)
    if ratio > limit:
        return f"it was a candidate, but only {story.against(math.log(ratio), 'default')}; the margin is {margin:.1%}"
    return "it was a candidate; another setting won, or its proof was not complete (see Finals)"
