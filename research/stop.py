"""`autoresearch stop`: ask a running campaign to end cleanly, from another terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjolnir.research import places
from mjolnir.research.answer import Answer, Failure
from mjolnir.research.hints import command
from mjolnir.research.stopping import is_running, request_stop

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger


def stop(ledger: Ledger, tag: str | None = None) -> Answer:
    """Ask for a clean stop of `tag`, or of the one campaign that runs.

    Raises:
        Failure: that campaign does not run, or several do and none was named.
    """
    folder = places.state_folder(ledger.folder)
    if tag is None:
        running = [summary.tag for summary in ledger.tags() if is_running(folder, summary.tag)]
        if len(running) != 1:
            listed = f"{len(running)} campaigns run ({', '.join(running)}); name one" if running else "no campaign runs"
            raise Failure(f"{listed} in {ledger.live}")
        tag = running[0]
    if not is_running(folder, tag):
        raise Failure(f"{tag} is not running here; `{command(ledger, 'autoresearch', 'list')}` shows what is")
    request_stop(folder, tag)
    return Answer({"tag": tag, "requested": True}, f"{tag} stops after the step in hand")
