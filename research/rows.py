"""From `promotion` records to rows of the defaults table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mjolnir.backend.table import Row
from mjolnir.research.answer import Failure

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proven:
    """What a tag's promotion records prove.

    Attributes:
        rows: one row for each key that was proven, in the order of the buckets.
        simulated: True when the campaign was replayed from a recording.
    """

    rows: tuple[Row, ...]
    simulated: bool


def proven(records: Sequence[Record]) -> Proven:
    """The rows that the last decision on each bucket calls for, unless the row was demoted after it.

    Raises:
        Failure: the records hold no campaign, or a promotion record that is no valid row.
    """
    campaigns = [record["body"] for record in records if record["kind"] == "campaign"]
    if not campaigns:
        raise Failure("there is no campaign of this tag in the ledger")
    last: dict[int, Mapping[str, Any]] = {}
    for record in records:
        if record["kind"] == "promotion":
            last[record["body"]["bucket"]] = record["body"]
        elif record["kind"] == "demotion":
            key = record["body"]["key"]
            last = {bucket: body for bucket, body in last.items() if body["key"] != key}
    rows = tuple(row_of(body) for _, body in sorted(last.items()) if body["decision"] == "promote")
    return Proven(rows, any(bool(campaign["simulated"]) for campaign in campaigns))


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
        Failure: its key, value or certificate is not that of a row, or evidence is missing.
    """
    try:
        row = Row.from_dict(
            {"key": body["key"], "value": body["value"], "certificate": _condensed(body["certificate"])}
        )
    except ValueError as error:
        raise Failure(f"the promotion of bucket {body['bucket']} is no valid row: {error}") from error
    if missing := row.missing_evidence():
        raise Failure(
            f"the certificate of bucket {body['bucket']} lacks {', '.join(missing)}; nothing is promoted without it"
        )
    return row
