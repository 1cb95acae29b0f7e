"""The error budget of a campaign: how it is shared between buckets, candidates and attempts.

The family is fixed when a campaign opens: its m buckets, and at most `TESTED` candidates in each. A candidate is
promoted at e >= TESTED m / alpha, so by Ville and Bonferroni a campaign promotes any false one with a probability of at
most alpha, whatever depends on what. Trying again until it works is paid for as well: the k-th attempt on the same key
and kernel gets alpha 6 / (pi^2 k^2), which adds up to alpha over all k. The epochs of a tag, and its continuations with
more trials, are attempts of one tag and share its budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from mjolnir.tuner.eprocess import Rules
from mjolnir.tuner.options import Options

TESTED = 2
"""Candidates that are tested in a bucket, at most."""

Record = Mapping[str, Any]


def share(alpha: float, attempt: int) -> float:
    """What the attempt (from 1) gets of alpha."""
    return alpha * 6 / (math.pi * attempt) ** 2


def rules_of(options: Options, buckets: int, attempt: int) -> Rules:
    """The rules of one candidate's test, in processes.

    Args:
        options: alpha, instances and how they are grouped.
        buckets: m, the buckets of the campaign.
        attempt: which attempt on the bucket's key this is, from 1.
    """
    threshold = TESTED * buckets / share(options.alpha, attempt)
    return Rules(threshold, options.processes, max(1, options.instances // options.group))


def attempts(
    mine: Iterable[Record], others: Iterable[Record], bucket: int, key: Mapping[str, Any], kernel_hash: str | None
) -> int:
    """Earlier attempts on a bucket: tests that took an instance, each counted once.

    Args:
        mine: the records of this tag that lie before the finals in question.
        others: the promotion records of other tags.
        bucket: which.
        key: its table key.
        kernel_hash: of the kernel that is measured.
    """
    own = {
        (record["body"].get("epoch", ""), record["body"]["after"])
        for record in mine
        if record["kind"] == "confirmation" and record["body"]["bucket"] == bucket
    }
    bodies = [record["body"] for record in others]
    papers = [body["certificate"] for body in bodies if body["key"] == key]
    return len(own) + sum(bool(p["kernel_hash"] == kernel_hash and p["instances"]) for p in papers)
