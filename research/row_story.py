"""The story of a bucket's decision, and of the row that came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from mjolnir.backend.table import Row
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research import story
from mjolnir.research.derive import derive
from mjolnir.research.evidence import Evidence, Found
from mjolnir.research.hints import command
from mjolnir.research.naming import Names, interval
from mjolnir.research.plain import plain
from mjolnir.research.rows import unevenness
from mjolnir.research.story import NoStory, Part
from mjolnir.research.summary import DECISIONS, bodies
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

Body = Mapping[str, Any]

SHOWN = ("method", "instances", "processes", "margin", "alpha", "attempt", "evidence", "threshold", "worst_point")
"""Members of a certificate that a person is shown, where it has them."""


LEADS_SHOWN = 4
"""Settings of the search that a person is shown: the candidates, and the first that was none."""


def of_bucket(found: Found, bucket: int, resume: str) -> list[Part]:
    """What was asked, found, shot out, confirmed and decided for a bucket, and what would have to change.

    Args:
        found: the records of the campaign.
        bucket: the batch.
        resume: the command that goes on with it.

    Raises:
        NoStory: the campaign has no such bucket.
    """
    campaigns = bodies(found.records, "campaign")
    if not campaigns:
        raise NoStory("these records hold no campaign")
    campaign, names = campaigns[-1], Names.of(campaigns[-1])
    workload = Workload.from_dict(campaign["workload"])
    if bucket not in workload.buckets:
        raise NoStory(f"there is no bucket {bucket}; there are {', '.join(map(str, workload.buckets))}")
    promotions = [r for r in found.records if r["kind"] == "promotion" and r["body"]["bucket"] == bucket]
    decided = promotions[-1] if promotions else None
    parts = [
        Part(f"Batch up to {bucket} of {found.tag}", tuple(_asked(campaign, bucket, workload))),
        Part("Search", tuple(_search(found.records, bucket, decided, names))),
        *_final_parts(found, bucket, decided, names, resume),
    ]
    return [part for part in parts if part.lines]


def of_row(table: str, row: Row, evidence: Evidence) -> list[Part]:
    """The story of the row's bucket in its campaign, whether the certificate follows, and what would demote it."""
    paper, key = row.certificate, row.key
    head = [
        f"{key}",
        f"in the {table}: {Names(key.geometry, key.hardware)(row.setting)} (engine {row.engine})",
        f"time over the default's: {interval(paper.get('ratio_default'))}",
        f"time over the row's before it: {interval(paper.get('ratio_incumbent'))}",
        f"kernel {row.kernel_hash[:12] or 'not told'}: {_staleness(row)}",
    ]
    parts, tag = [Part("Row", tuple(head))], str(paper.get("tag"))
    found, cited = evidence.of_tag(tag), paper.get("records") or ()
    demoting = Part("What would demote it", tuple(_demotion(row, evidence.ledger)))
    if (lost := lost_records(row, evidence)) and not bodies(found.records, "campaign"):
        looked = f"{evidence.ledger.folder} and in the exported runs that are known; others are given with --records"
        lines = (f"{len(lost)} of {len(cited)} cited records of {tag} are nowhere", f"looked for in {looked}")
        return [*parts, Part("Records", lines), demoting]
    checks = derive(row, found)
    wrong = [f"{check.name}: {check.problem}" for check in checks if check.problem]
    try:
        parts += of_bucket(found, key.batch, command(evidence.ledger, "autoresearch", "run", "--tag", tag, "--resume"))
    except NoStory as error:
        parts.append(Part("Campaign", (str(error.args[0]),)))
    derived = wrong or [
        f"the certificate follows from its records ({len(checks)} checks: {', '.join(c.name for c in checks)})"
    ]
    return [*parts, Part("Derived again", tuple(derived)), demoting]


def lost_records(row: Row, evidence: Evidence) -> list[str]:
    """The hashes of cited records that are nowhere."""
    known = evidence.of_tag(str(row.certificate.get("tag"))).places
    return [sha256 for sha256 in row.certificate.get("records") or () if sha256 not in known]


def _staleness(row: Row) -> str:
    from mjolnir.kernel.sources import kernel_hash

    return (
        "the one in use"
        if row.kernel_hash == kernel_hash()
        else "not the one in use; the row is stale, fits and serves"
    )


def _asked(campaign: Body, bucket: int, workload: Workload) -> list[str]:
    points = ", ".join(workload.points[point].name for point in workload.of_bucket(bucket))
    origin = f"a replay of the recording {campaign['recording']}" if campaign["simulated"] else "measured"
    incumbent = (campaign.get("incumbents") or {}).get(str(bucket))
    against = "the built-in default" + (" and what was in force" if incumbent else "; nothing else was in force")
    return [
        f"{Geometry.from_dict(campaign['geometry'])} on {campaign['device']['name']} ({origin})",
        f"asked by: {plain(' '.join(campaign['command']))}",
        f"points: {points}; compared with {against}",
    ]


def _search(records: Sequence[Body], bucket: int, decided: Body | None, names: Names) -> list[str]:
    trials = bodies(records, "trial")
    if decided is not None:
        trials = [trial for trial in trials if trial.get("epoch") == decided["body"].get("epoch")]
    measured = [trial for trial in trials if str(bucket) in (trial["ratios"] or {})]
    asked = sum(trial["bucket"] == bucket for trial in trials)
    lines = [f"{len(measured)} of {len(trials)} trials were measured here; {asked} were asked for by this bucket"]
    leads: dict[str, Body] = {}
    for trial in sorted(measured, key=lambda trial: float(trial["ratios"][str(bucket)])):
        leads.setdefault(str(trial["resolved"]), trial)
    best = list(leads.values())[:LEADS_SHOWN]
    for lead in best:
        uneven = unevenness(Setting.from_dict(lead["resolved"]), bucket, names.geometry, names.device)
        said = f"trial {lead['trial']}: {lead['ratios'][str(bucket)]:.4f} {names(lead['resolved'])}"
        lines.append(f"{said}; it can be no row: {uneven}" if uneven else said)
    return lines


def _final_parts(found: Found, bucket: int, decided: Body | None, names: Names, resume: str) -> list[Part]:
    same = ("epoch", "after")
    finals = [
        record
        for record in found.records
        if record["body"].get("bucket") == bucket
        and (decided is None or all(record["body"].get(name) == decided["body"].get(name) for name in same))
    ]
    instances = bodies(finals, "confirmation")
    return [
        Part("Shoot-out", tuple(line for body in bodies(finals, "shootout") for line in story.shootout(body, names))),
        Part("Confirmation", tuple(_instances(instances, names))),
        Part("Decision", tuple(_decision(decided, names))),
        Part("Records", tuple(_records(found, decided))),
        Part("Since then", tuple(_demoted(found, decided))),
        Part("What would have to change", tuple(_change(decided, instances, resume))),
    ]


def _instances(instances: Sequence[Body], names: Names) -> list[str]:
    lines: list[str] = []
    setting = None
    for body in instances:
        if body["arms"][0] != setting:
            setting = body["arms"][0]
            lines.append(f"of {names(setting)}:")
        lines.append(f"  {story.instance(body)}")
    return lines


def _decision(decided: Body | None, names: Names) -> list[str]:
    if decided is None:
        return ["not decided: the campaign has not come to this bucket"]
    body = decided["body"]
    paper = body["certificate"]
    lines = [f"{DECISIONS[body['decision']]}: {names(body['setting'])}", body["reason"]]
    for name, against in (("ratio_default", "default"), ("ratio_incumbent", "row before it")):
        if paper[name] is not None:
            lines.append(f"time over that of the {against}: {interval(paper[name])}")
    shown = [f"{name} {_short(paper[name])}" for name in SHOWN if paper.get(name) is not None]
    return [*lines, f"certificate: {'; '.join(shown)}"]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_short(entry)}" for name, entry in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _records(found: Found, decided: Body | None) -> list[str]:
    if decided is None:
        return []
    cited = decided["body"]["certificate"]["records"]
    known = [sha256 for sha256 in cited if sha256 in found.places]
    lines = [f"{len(known)} of {len(cited)} cited records are there, in {', '.join(found.where(known)) or 'no place'}"]
    kinds = [record["kind"] for record in found.records if record["hash"] in set(cited)]
    lines.append(", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)))
    return [*lines, f"promotion record {decided['hash']}"]


def _demoted(found: Found, decided: Body | None) -> list[str]:
    return [
        f"demoted on {record['time'][:10]}: {record['body']['reason']}"
        for record in found.records
        if record["kind"] == "demotion" and decided and record["body"]["key"] == decided["body"]["key"]
    ]


def _change(decided: Body | None, instances: Sequence[Body], resume: str) -> list[str]:
    if decided is None:
        return [f"the campaign has to go on: `{resume}`"]
    body = decided["body"]
    if body["decision"] == "not-decided":
        return [f"the search has to go on, with more --minutes or --trials: `{resume}`"]
    if body["decision"] == "default-is-best":
        return ["some setting has to be faster than the default by more than the noise in the shoot-out"]
    margin = float(body["certificate"]["margin"])
    mine = [i for i in instances if i["arms"][0] == body["setting"] and i["status"] == "measured"]
    proven = body["decision"] == "promote"
    lines = [line for name in ("default", "incumbent") for line in _lacking(name, mine, margin, proven)]
    lines += _slowest(body["certificate"])
    if proven:
        return [*lines, f"another setting replaces it once it is proven more than {margin:.1%} faster than it"]
    return [*lines, f"another attempt, in which this no longer holds: {body['reason']}"]


def _slowest(paper: Body) -> list[str]:
    """The slowest point against any baseline, and what it is allowed."""
    worst = paper["worst_point"]
    if not worst:
        return []
    allowed = float(paper["noise_floor"][worst["point"]])
    said = story.gain(math.log(worst["ratio"]))
    return [f"its slowest point is {worst['point']}, {said}; its noise, {allowed:.1%}, is what it may be slower"]


def _lacking(name: str, instances: Sequence[Body], margin: float, proven: bool) -> list[str]:
    """How far the instances are from the margin, against one baseline."""
    values = sorted(float(body["values"][name]) for body in instances if name in body["values"])
    if not values:
        return []
    middle, limit = median(values), -math.log1p(margin)
    short = sum(value >= limit for value in values)
    said = f"against the {name}: median instance {story.gain(middle)}, weakest {story.gain(values[-1])}; "
    said += f"{short} of {len(values)} short of the margin of {margin:.1%}"
    if middle >= limit:
        return [f"{said}; with this median no number of instances proves it"]
    return [said + ("; more instances, in another attempt, may prove it" if short and not proven else "")]


def _demotion(row: Row, ledger: Ledger) -> list[str]:
    margin = row.certificate.get("margin")
    gain = f"more than {margin:.1%} " if isinstance(margin, float) else ""
    demote = command(ledger, "defaults", "demote", row.key.batch, "--device", row.key.device, "-m", "REASON")
    return [
        f"another setting that is proven {gain}faster than it: its campaign replaces the row",
        "a new campaign in which the default is as fast: `mjolnir autoresearch run`, then the command below",
        f"a person: `{demote}`",
        "other kernel sources make it stale, not void: it serves as long as it fits",
    ]
