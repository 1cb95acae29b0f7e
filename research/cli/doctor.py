"""`mjolnir doctor`: what this machine can do."""

from __future__ import annotations

from mjolnir.research.answer import Answer
from mjolnir.research.cli import options
from mjolnir.research.cli.output import Json, answer


def doctor(ledger: options.Ledger = None, as_json: Json = False) -> None:
    """Say what this machine can do, and what to install for the rest."""

    def work() -> Answer:
        from mjolnir.research import doctor as twin

        return twin.doctor(ledger)

    answer(work, as_json)
