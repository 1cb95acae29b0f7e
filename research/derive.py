"""Deriving a certificate again from the records that it cites: every claim is a check with a name.

What the row says has to be what the promotion record says, digit by digit; what the promotion record says has to follow
from samples and timings, within the rounding of floating point; and the records have to be all there, unaltered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mjolnir.backend.table import Row
from mjolnir.kernel.knobs import FAULTS
from mjolnir.research.answer import Failure
from mjolnir.research.evidence import Found
from mjolnir.research.rows import checks_in, row_of
from mjolnir.tuner.bench import Status, Timing
from mjolnir.tuner.case import Case
from mjolnir.tuner.judges import judge_of
from mjolnir.tuner.statistics import Array, Weights, instance_values, noise_floor, point_ratios
from mjolnir.tuner.workload import Workload

ROUNDING = 1e-9
"""Relative difference that another processor's logarithms may make."""

GENERAL = ("method", "tag", "records", "noise_floor", "correctness", "kernel_hash", "policy", "versions")
"""Members of a certificate that are derived here; all others have to come from the judge of the method."""

REJECTED = (Status.INCORRECT, Status.NAN)
"""How a gate turns a canary down."""

Record = Mapping[str, Any]


class Wrong(Exception):
    """A check fails; the message says what does not fit."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim that was looked at.

    Attributes:
        name: what was claimed.
        problem: why it does not hold; empty when it does.
    """

    name: str
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"name": self.name, "ok": not self.problem, "problem": self.problem}


def derive(row: Row, found: Found) -> list[Check]:
    """All checks of a row; those that need what an earlier one missed are left out."""
    checks: list[Check] = []
    cited = list(row.certificate.get("records") or ())
    if not _run(checks, "records", lambda: _require_records(cited, found)):
        return checks
    if not _run(checks, "hash chain", lambda: _require_chain(cited, found)):
        return checks
    promotions = [record for record in found.records if _is_promotion(record, row)]
    if not _run(checks, "promotion record", lambda: _require_promotion(promotions, row)):
        return checks
    file = File(row, found, promotions[-1])
    for name, check in (
        ("evidence", file.evidence),
        ("environment", file.environment),
        ("noise floor", file.noise),
        ("trials", file.trials),
        ("instances", file.instances),
        ("correctness", file.correctness),
        ("decision", file.decision),
    ):
        _run(checks, name, check)
    return checks


def _run(checks: list[Check], name: str, check: Callable[[], None]) -> bool:
    """Whether the check holds; records that lack what is looked for fail it too."""
    try:
        check()
    except Wrong as problem:
        checks.append(Check(name, str(problem)))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        checks.append(Check(name, f"the records are malformed: {error!r}"))
    else:
        checks.append(Check(name))
    return not checks[-1].problem


def _require_records(cited: Sequence[str], found: Found) -> None:
    if not cited:
        raise Wrong("the certificate cites no record")
    missing = [sha256 for sha256 in cited if sha256 not in found.places]
    if missing:
        more = f" ({found.problems[0]})" if found.problems else ""
        raise Wrong(f"{len(missing)} of {len(cited)} cited records are nowhere, the first is {missing[0][:12]}{more}")


def _require_chain(cited: Sequence[str], found: Found) -> None:
    writers = {record["writer"] for record in found.records if record["hash"] in set(cited)}
    broken = [found.chains[writer] for writer in sorted(writers) if found.chains[writer]]
    if broken:
        raise Wrong(broken[0])


def _is_promotion(record: Record, row: Row) -> bool:
    body = record["body"]
    same = record["kind"] == "promotion" and body.get("certificate", {}).get("records")
    return bool(same) and list(same) == list(row.certificate["records"])


def _require_promotion(promotions: Sequence[Record], row: Row) -> None:
    """The row is what the promotion record calls for, digit by digit, its correctness condensed as promoting does."""
    if not promotions:
        raise Wrong("no promotion record rests on these records")
    body = promotions[-1]["body"]
    if body["decision"] != "promote":
        raise Wrong(f"the decision on these records was {body['decision']}: {body['reason']}")
    try:
        wanted = row_of(body).as_dict()
    except Failure as failure:
        raise Wrong(str(failure)) from failure
    for part, values in row.as_dict().items():
        for name in dict.fromkeys((*wanted[part], *values)):
            if wanted[part].get(name) != values.get(name):
                raise Wrong(f"{part}: {name} is not what the promotion record says")
    if body["setting"] != {name: value for name, value in body["value"].items() if name != "engine"}:
        raise Wrong("the promotion record's value is not its setting")


def differences(said: Any, derived: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ by more than rounding, as paths."""
    if isinstance(said, Mapping) and isinstance(derived, Mapping) and said.keys() == derived.keys():
        for name in said:
            yield from differences(said[name], derived[name], f"{path}.{name}" if path else str(name))
    elif isinstance(said, list | tuple) and isinstance(derived, list | tuple) and len(said) == len(derived):
        for number, pair in enumerate(zip(said, derived, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif _is_number(said) and _is_number(derived):
        if not math.isclose(said, derived, rel_tol=ROUNDING, abs_tol=ROUNDING):
            yield path
    elif said != derived:
        yield path


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _agree(said: Any, derived: Any, what: str) -> None:
    where = next(differences(said, derived), None)
    if where is not None:
        raise Wrong(f"{what}{f' ({where})' if where else ''} does not follow from the records")


class File:
    """The records of one certificate, sorted by kind.

    Args:
        row: the row.
        found: the records of its tag.
        promotion: the promotion record that the row comes from.
    """

    def __init__(self, row: Row, found: Found, promotion: Record) -> None:
        self._row = row
        self._body = promotion["body"]
        self._paper = self._body["certificate"]
        self._promotion = promotion
        self._records = found.records
        cited = set(row.certificate["records"])
        self._cited = [record for record in found.records if record["hash"] in cited]
        self._earlier = tuple(found.records[: found.records.index(promotion)])
        self._campaign = [r["body"] for r in self._earlier if r["kind"] == "campaign"][-1]
        self._workload = Workload.from_dict(self._campaign["workload"])

    def _kind(self, kind: str) -> list[Mapping[str, Any]]:
        return [record["body"] for record in self._cited if record["kind"] == kind]

    @property
    def _measured(self) -> list[Mapping[str, Any]]:
        """The measured instances of the row's setting; those of another candidate are cited as well."""
        mine = [body for body in self._kind("confirmation") if body["arms"][0] == self._body["setting"]]
        return [body for body in mine if body["status"] == "measured"]

    def evidence(self) -> None:
        """Nothing was picked: all canaries, noise and instances of the epoch are cited, and they are of this epoch."""
        epoch, cited = self._body["epoch"], {record["hash"] for record in self._cited}
        for record in self._cited:
            if record["body"]["epoch"] != epoch:
                raise Wrong(f"the {record['kind']} record {record['hash'][:12]} is of another epoch")
        for record in self._earlier:
            body, kind = record["body"], record["kind"]
            mine = all(body.get(name) == self._body[name] for name in ("after", "bucket"))
            if body.get("epoch") != epoch or record["hash"] in cited:
                continue
            if kind in ("canary", "noise") or (kind in ("shootout", "confirmation") and mine):
                raise Wrong(f"the {kind} record {record['hash'][:12]} of the same epoch is not cited")
        last = {body["fault"]: body["status"] for body in self._kind("canary")}
        if passed := [fault for fault in (*FAULTS[1:], *last) if last.get(fault) not in REJECTED]:
            raise Wrong(f"the canary {passed[0]} was not rejected")

    def environment(self) -> None:
        """Kernel, policy and versions are those of the process that measured, and of the epoch."""
        first = next(r for r in self._records if r["writer"] == self._promotion["writer"] and r["seq"] == 0)
        bench = first["environment"]["bench"]
        for name in ("kernel_hash", "policy", "versions"):
            _agree(self._paper[name], bench.get(name), name)
        epoch = next(
            r["body"] for r in self._earlier if r["kind"] == "epoch" and r["body"]["epoch"] == self._body["epoch"]
        )
        for name in ("kernel_hash", "policy"):
            _agree(self._paper[name], epoch["parts"][name], f"{name} of the epoch")
        key = self._body["key"]
        if any(self._campaign["device"][ours] != key[theirs] for ours, theirs in _DEVICE.items()):
            raise Wrong("the key names another device than the campaign")
        if any(self._campaign["geometry"].get(name, key[name]) != key[name] for name in key if name != "batch"):
            raise Wrong("the key names another geometry than the campaign")
        if self._campaign["placement"] != {name: key[name] for name in ("layout", "kv")}:
            raise Wrong("the key names another placement than the campaign")

    def _floor(self) -> Array:
        bodies = [body for body in self._kind("noise") if body["status"] == "measured"]
        rows = [np.log(point_ratios([Timing.from_dict(entry) for entry in body["timings"]])) for body in bodies]
        for body, row in zip(bodies, rows, strict=True):
            _agree(body["values"], row.tolist(), f"noise instance {body['number']}")
        return noise_floor(np.array(rows))

    def noise(self) -> None:
        """The noise floor follows from the timings of the default against itself."""
        names = [point.name for point in self._workload.points]
        _agree(self._paper["noise_floor"], dict(zip(names, self._floor().tolist(), strict=True)), "the noise floor")

    def trials(self) -> None:
        """The setting was a trial, and the ratios of it follow from its timings."""
        for body in self._kind("trial"):
            if body["resolved"] != self._body["setting"]:
                raise Wrong(f"trial {body['trial']} is of another setting")
            points = point_ratios([Timing.from_dict(entry) for entry in body["timings"]])
            buckets, overall = Weights(self._workload).means(points)
            ratios = {str(bucket): ratio for bucket, ratio in buckets.items()}
            _agree(body["point_ratios"], points.tolist(), f"point ratios of trial {body['trial']}")
            _agree([body["ratio"], body["ratios"]], [overall, ratios], f"ratios of trial {body['trial']}")

    def instances(self) -> None:
        """There are instances of the row's setting, and all instances are of its bucket, with all its points."""
        if not self._measured:
            raise Wrong("no measured instance is of the row's setting")
        for body in self._kind("confirmation"):
            if body["bucket"] != self._body["key"]["batch"]:
                raise Wrong(f"instance {body['number']} is of batch {body['bucket']}")
            if body["status"] == "measured":
                self._require_values(body)

    def _require_values(self, body: Mapping[str, Any]) -> None:
        """The instance looked at its bucket's points, and its values follow from its samples."""
        if body["points"] != list(self._workload.of_bucket(body["bucket"])):
            raise Wrong(f"instance {body['number']} looked at other points than its bucket's")
        weights, row = Weights(self._workload), np.zeros(len(self._workload.points))
        for name, value in body["values"].items():
            row[body["points"]] = instance_values(body["samples"], 0, body[name])
            _agree(value, weights.of_bucket(body["bucket"], row), f"the value of instance {body['number']}")

    def correctness(self) -> None:
        """The checks are those of the instances, and each error is within its bound."""
        if self._paper["correctness"] != [body["correctness"] for body in self._measured]:
            raise Wrong("the certificate holds other checks than the instances")
        checks = list(checks_in(self._paper["correctness"]))
        for check in checks:
            if not check["excess"] <= 1:
                raise Wrong(f"{check['name']} (seed {check['seed']}) is beyond its bound")
        if not checks and not self._campaign["simulated"]:
            raise Wrong("no instance had its output checked")

    def decision(self) -> None:
        """The judge of the method decides the same, and every member of the certificate follows from the records."""
        body, paper = self._body, self._paper
        case = Case(
            bucket=body["key"]["batch"],
            workload=self._workload,
            floor=self._floor(),
            confirmations=tuple(self._kind("confirmation")),
            options=self._campaign["options"],
            earlier=self._earlier,
            key=body["key"],
            kernel_hash=paper["kernel_hash"],
        )
        verdict = judge_of(paper["method"])(case)
        if (verdict.decision, verdict.reason) != (body["decision"], body["reason"]):
            raise Wrong(f"judged again it is {verdict.decision}: {verdict.reason}")
        for name, value in paper.items():
            if name in verdict.members:
                _agree(value, verdict.members[name], name)
            elif name not in GENERAL:
                raise Wrong(f"nothing says where {name} comes from")
        if paper["tag"] != self._promotion["tag"]:
            raise Wrong(f"the certificate names the tag {paper['tag']}")
        for name in ("ratio_default", "ratio_incumbent"):
            _agree(body[name], (paper[name] or {}).get("value"), name)


_DEVICE = {"arch": "arch", "name": "device", "sm_count": "sm_count", "mig": "mig"}
"""Fields of a device, and what the key calls them."""
