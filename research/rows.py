"""From `promotion` records to rows of the defaults table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mjolnir.backend.table import Row
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research.answer import Failure
from mjolnir.research.plain import plain
from mjolnir.tuner import uneven

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that was proven and is not written, and why."""

    row: Row
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Key, value and reason, as JSON holds them."""
        return {**{name: self.row.as_dict()[name] for name in ("key", "value")}, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Proven:
    """What a tag's promotion records prove.

    Attributes:
        rows: one row for each key that was proven, in the order of the buckets.
        simulated: True when the campaign was replayed from a recording.
        left_out: rows that were proven and are not written: demoted after it, or slow where lengths are uneven.
        incumbents: the rows in force that the campaign was compared with, by bucket.
    """

    rows: tuple[Row, ...]
    simulated: bool
    left_out: tuple[LeftOut, ...]
    incumbents: Mapping[int, Setting]


class RowFailure(Failure):
    """A promotion record that calls for no valid row."""


def proven(records: Sequence[Record]) -> Proven:
    """The rows that the last decision on each bucket calls for, but for those that are `left_out`.

    Raises:
        Failure: the records hold no campaign.
        RowFailure: they hold a promotion record that is no valid row.
    """
    campaigns = [record["body"] for record in records if record["kind"] == "campaign"]
    if not campaigns:
        raise Failure("there is no campaign of this tag in the ledger")
    last: dict[int, Mapping[str, Any]] = {}
    demoted: dict[int, Record] = {}
    for record in records:
        body = record["body"]
        if record["kind"] == "promotion":
            last[body["bucket"]] = body
            demoted.pop(body["bucket"], None)
        elif record["kind"] == "demotion":
            demoted |= {bucket: record for bucket, found in last.items() if found["key"] == body["key"]}
    wanted = {bucket: row_of(body) for bucket, body in sorted(last.items()) if body["decision"] == "promote"}
    reasons = {bucket: reason for bucket, row in wanted.items() if (reason := _unevenness(row))}
    reasons |= {bucket: _demotion(record) for bucket, record in demoted.items() if bucket in wanted}
    incumbents = campaigns[-1].get("incumbents") or {}
    return Proven(
        rows=tuple(row for bucket, row in wanted.items() if bucket not in reasons),
        simulated=any(bool(campaign["simulated"]) for campaign in campaigns),
        left_out=tuple(LeftOut(wanted[bucket], reason) for bucket, reason in reasons.items()),
        incumbents={int(bucket): Setting.from_dict(knobs) for bucket, knobs in incumbents.items()},
    )


def _unevenness(row: Row) -> str:
    """As `unevenness`, of a row: campaigns of old proved such."""
    return unevenness(row.setting, row.key.batch, row.key.geometry, row.key.hardware)


def unevenness(setting: Setting, batch: int, geometry: Geometry, device: Device) -> str:
    """Why a setting does not serve a batch with one long sequence; empty where it does."""
    problem = setting, batch, geometry, device
    if uneven.serves(*problem):
        return ""
    return (
        f"max_splits={setting.max_splits} would cost uneven lengths too much: with one sequence of {uneven.LONG} "
        f"tokens among others of {uneven.SHORT}, the longest run of a CTA is {uneven.worst(*problem):.1f} times as "
        "long as without the limit"
    )


def unevenness_of(trial: Mapping[str, Any], bucket: int, campaign: Mapping[str, Any]) -> str:
    """As `unevenness`, of a trial's body in a bucket of a campaign."""
    problem = Geometry.from_dict(campaign["geometry"]), Device(**campaign["device"])
    return unevenness(Setting.from_dict(trial["resolved"]), bucket, *problem)


def _demotion(record: Record) -> str:
    """Why a demoted row is passed over: a demotion is of the evidence, and so of the row in every table."""
    when = f"{record['time'][:16]}Z" if record.get("time") else "since"
    body = record["body"]
    where = f" in {body['table']}" if body.get("table") else ""
    reason = body.get("reason") or "no reason given"
    return f"demoted {when}{where} ({reason}), which holds for every table; only a new proof brings it back"


def _condensed(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate with the one check that came nearest to its bound; the records that it cites hold all of them."""
    if certificate.get("correctness") is None:
        return dict(certificate)
    checks = list(checks_in(certificate["correctness"]))
    nearest = max(checks, key=lambda check: float(check["excess"]), default=None)
    short = {"instances": certificate.get("instances"), "nearest": nearest, **_bitwise(certificate["correctness"])}
    return {**certificate, "correctness": short}


def _bitwise(evidence: Sequence[Any]) -> dict[str, Any]:
    """Whether equal inputs gave equal bits in every instance; the setting is arm 0. Empty where nobody looked."""
    arms = [instance["arms"] for instance in evidence if isinstance(instance, Mapping) and instance.get("arms")]
    looked = [made[0]["bitwise"] for made in arms if "bitwise" in made[0]]
    return {"bitwise": all(found["equal"] for found in looked)} if looked else {}


def checks_in(evidence: Any) -> Iterator[Mapping[str, Any]]:
    """Every check inside the evidence, whatever a bench wraps around them."""
    if isinstance(evidence, Mapping):
        if evidence.get("excess") is not None:
            yield evidence
        else:
            for part in evidence.values():
                yield from checks_in(part)
    elif isinstance(evidence, list | tuple):
        for part in evidence:
            yield from checks_in(part)


def row_of(body: Mapping[str, Any]) -> Row:
    """The row that one promotion body calls for.

    Raises:
        RowFailure: its key, value or certificate is not that of a row, or evidence is missing.
    """
    try:
        row = Row.from_dict(
            {"key": body["key"], "value": body["value"], "certificate": _condensed(body["certificate"])}
        )
    except ValueError as error:
        raise RowFailure(f"the promotion of bucket {body['bucket']} is no valid row: {error}") from error
    if missing := row.missing_evidence():
        raise RowFailure(
            f"the certificate of bucket {body['bucket']} lacks {', '.join(missing)}; nothing is promoted without it"
        )
    return row


def left_out_lines(data: Mapping[str, Any]) -> list[str]:
    """A line for each row that was proven and not written: why."""
    return [f"batch up to {out['key']['batch']}: not written: {plain(out['reason'])}" for out in data["left_out"]]
