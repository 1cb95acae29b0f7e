"""The first method of proof, kept so that the certificates made by it can be derived again.

A candidate had to beat every baseline by the margin in every instance: the sign test at n of n, 2^-n, summed over the
buckets. New campaigns decide by `tuner.promotion`; nothing here changes any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mjolnir.tuner.case import Body, Case, Verdict, earlier_attempts, instance_table
from mjolnir.tuner.statistics import Array, Weights, median_interval

METHOD = "every instance beyond the margin (sign test)"


def judge(case: Case) -> Verdict:
    """Decide as the method did, and derive the members of the certificate that rest on instances."""
    measured = [body for body in case.confirmations if body["status"] == "measured"]
    options = case.options
    tables = {name: instance_table(measured, place, case) for name, place in _baselines(measured).items()}
    weights = Weights(case.workload)
    values = {name: [weights.of_bucket(case.bucket, row) for row in table] for name, table in tables.items()}
    worst = _worst(tables, case)
    reason = _objection(values, tables, case)
    gains = " and ".join(f"{math.expm1(-float(np.median(row))):.1%} faster than the {n}" for n, row in values.items())
    count = len(measured)
    proven = f"{gains}; beyond the margin of {options['margin']:.1%} in {count} of {count} instances"
    members = {
        "ratio_default": _ratio(values.get("default")),
        "ratio_incumbent": _ratio(values.get("incumbent")),
        "instances": count,
        "processes": len({body["process"] for body in measured}),
        "margin": options["margin"],
        "alpha": 0.5**count if measured else None,
        "worst_point": worst,
        "attempt": 1 + earlier_attempts(case),
    }
    return Verdict("not-proven" if reason else "promote", reason or proven, members)


def _baselines(measured: Sequence[Body]) -> dict[str, int]:
    """Places of the arms that the candidate, arm 0, had to beat: never itself, each once."""
    found: dict[str, int] = {}
    for name in ("default", "incumbent"):
        place = measured[0][name] if measured else None
        if place and place not in found.values():
            found[name] = place
    return found


def _worst(tables: Mapping[str, Array], case: Case) -> dict[str, Any] | None:
    medians = [
        (float(np.median(table[:, point])), point)
        for table in tables.values()
        for point in case.workload.of_bucket(case.bucket)
    ]
    if not medians:
        return None
    log_ratio, point = max(medians)
    return {"point": case.workload.points[point].name, "ratio": math.exp(log_ratio)}


def _objection(values: Mapping[str, Sequence[float]], tables: Mapping[str, Array], case: Case) -> str:
    """What spoke against a promotion; empty when nothing did."""
    options = case.options
    if not values:
        return "no instance could be measured"
    for name, row in values.items():
        for number, value in enumerate(row, 1):
            if value >= -math.log1p(options["margin"]):
                faster = math.expm1(-value)
                said = f"{faster:.1%} faster" if faster > 0 else f"{-faster:.1%} slower"
                return f"instance {number}: {said} than the {name}, the margin is {options['margin']:.1%}"
    count, buckets = min(len(row) for row in values.values()), len(case.workload.buckets)
    if count < options["instances"]:
        return f"only {count} of {options['instances']} instances could be measured"
    if 0.5**count * buckets > options["alpha"]:
        return f"{count} instances cannot prove anything at alpha {options['alpha']} over {buckets} buckets"
    for name, table in tables.items():
        for point in case.workload.of_bucket(case.bucket):
            median = float(np.median(table[:, point]))
            if median > case.floor[point]:
                return (
                    f"{case.workload.points[point].name} is {math.expm1(median):.1%} slower than the {name}, "
                    f"its noise is {case.floor[point]:.1%}"
                )
    return ""


def _ratio(values: Sequence[float] | None) -> dict[str, Any] | None:
    """Time over a baseline's with the interval of its median; None when they were not compared."""
    if not values:
        return None
    interval = median_interval([math.exp(value) for value in values])
    return interval.as_dict(math.exp(float(np.median(values))))
