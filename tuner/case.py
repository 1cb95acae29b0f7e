"""What a certificate is derived from again, whatever method made it: records in, its members out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mjolnir.tuner.journal import Record
from mjolnir.tuner.statistics import Array, instance_values
from mjolnir.tuner.workload import Workload

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """The evidence of one bucket's decision.

    Attributes:
        bucket: which.
        workload: the points of the campaign.
        floor: noise floor of each point, fractions, shape (points,).
        confirmations: bodies of the bucket's confirmation records in order, those that were not measured too.
        options: the `options` of the campaign record in force.
        earlier: the records of the tag before the promotion, in order.
        key: the table key that the decision is about.
        kernel_hash: of the kernel that was measured.
    """

    bucket: int
    workload: Workload
    floor: Array
    confirmations: tuple[Body, ...]
    options: Mapping[str, Any]
    earlier: tuple[Record, ...]
    key: Mapping[str, Any]
    kernel_hash: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a method makes of a case.

    Attributes:
        decision: as promotion records have it.
        reason: one sentence.
        members: the members of the certificate that follow from the case.
    """

    decision: str
    reason: str
    members: Mapping[str, Any]


def instance_table(measured: Sequence[Body], baseline: int, case: Case) -> Array:
    """Log of the candidate's time over a baseline's, shape (instances, points); 0 where an instance did not look.

    Args:
        measured: bodies of measured instances; the candidate is arm 0.
        baseline: place of the baseline's arm.
        case: for the number of points.

    Raises:
        ValueError: a time that is not above zero.
    """
    table = np.zeros((len(measured), len(case.workload.points)))
    for row, body in zip(table, measured, strict=True):
        row[list(body["points"])] = instance_values(body["samples"], 0, baseline)
    return table


def earlier_attempts(case: Case) -> int:
    """Decisions with instances on the same key and kernel before this one."""
    bodies = [record["body"] for record in case.earlier if record["kind"] == "promotion"]
    return sum(
        body["key"] == case.key
        and body["certificate"]["kernel_hash"] == case.kernel_hash
        and body["certificate"]["instances"] > 0
        for body in bodies
    )
