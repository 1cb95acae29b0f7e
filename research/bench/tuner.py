"""`mjolnir bench tuner`: the figures of proof and search, one after the other."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from mjolnir.research.answer import Answer


class Part(StrEnum):
    """A part of the tuner's figures."""

    PROOF = "proof"
    SEARCH = "search"
    ALL = "all"


def tuner(out: Path, part: Part) -> Answer:
    """Take the figures of a part, or of both, and write them to the folder `out`."""
    answers: list[Answer] = []
    if part in (Part.PROOF, Part.ALL):
        from mjolnir.research.bench.tuner_proof import proof

        answers.append(proof(out))
    if part in (Part.SEARCH, Part.ALL):
        from mjolnir.research.bench.tuner_search import search

        answers.append(search(out))
    data = answers[0].data if len(answers) == 1 else {answer.data["bench"]: answer.data for answer in answers}
    return Answer(data, "\n".join(str(answer.view) for answer in answers))
