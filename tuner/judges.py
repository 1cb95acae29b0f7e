"""The methods of proof by the name that certificates give them, so that an old certificate is judged as it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mjolnir.tuner import promotion, promotion_v1, proof
from mjolnir.tuner.case import Case, Verdict

Judge = Callable[[Case], Verdict]
"""Decides a case again; a pure function. Raises ValueError where the records make no evidence."""

JUDGES: Mapping[str, Judge] = {promotion.METHOD: proof.rejudge, promotion_v1.METHOD: promotion_v1.judge}


def judge_of(method: str) -> Judge:
    """The judge of a certificate's method.

    Raises:
        ValueError: no such method; the message lists them.
    """
    if method not in JUDGES:
        raise ValueError(f"the method {method!r} is unknown here; there are {'; '.join(JUDGES)}")
    return JUDGES[method]
