"""Writing a campaign out: its records, tables, plots and a page, from the records alone.

The data and the page have the same bytes wherever they are written: no current time, no folder, no host goes into them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import places
from mjolnir.research.answer import Answer, Failure
from mjolnir.research.hints import command
from mjolnir.research.journal import as_mapping
from mjolnir.research.rows import proven
from mjolnir.research.summary import current, summarize

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

FILES = ("ledger.jsonl", "ledger.tsv", "environment.json", "summary.json", "rows.json", "report.html")
"""What an export holds, the plots apart."""


def export(ledger: Ledger, tag: str, out: Path | None = None) -> Answer:
    """Write `tag` to `out`, or to `runs/<tag>` beside the ledger.

    Raises:
        Failure: there is no such campaign, or the folder cannot be written.
    """
    folder = export_records(ledger, tag, out or places.export_folder(ledger.folder, tag))
    names = sorted(path.name for path in folder.iterdir())
    return Answer({"tag": tag, "folder": str(folder), "files": names}, f"{tag} is in {folder}: {', '.join(names)}")


def export_records(ledger: Ledger, tag: str, folder: Path) -> Path:
    """Write `tag` to `folder` and return it.

    Raises:
        Failure: there is no such campaign, or the folder cannot be written.
    """
    from mjolnir import ledger as ledgers

    lines = ledger.records(tag)
    if not lines:
        shown = command(ledger, "autoresearch", "list")
        raise Failure(f"there is no tag {tag} in {ledger.live}; `{shown}` shows the tags")
    records = [as_mapping(record) for record in lines]
    files = {
        "ledger.jsonl": b"".join(record.line + b"\n" for record in lines),
        "ledger.tsv": ledgers.tsv_text((record, ledger.commit(record)) for record in lines).encode(),
        **documents(records),
    }
    try:
        _place(folder, files, records)
    except OSError as error:
        raise Failure(f"the export could not be written to {folder}: {error.strerror or error}") from error
    return folder


def documents(records: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """The JSON files and the page, by name.

    Raises:
        Failure: the records hold no campaign, or a promotion that is no valid row.
    """
    from mjolnir.research.report.page import render

    try:
        summary = summarize(records)
    except ValueError as error:
        raise Failure(str(error)) from error
    rows = [row.as_dict() for row in proven(records).rows]
    environments = {record["writer"]: record["environment"] for record in records if record.get("environment")}
    return {
        "environment.json": pretty({"writers": environments}),
        "summary.json": pretty(summary),
        "rows.json": pretty({"tag": summary["tag"], "rows": rows}),
        "report.html": render(summary, records, rows, environments).encode(),
    }


def pretty(values: Mapping[str, Any]) -> bytes:
    """JSON for people and diffs: sorted, indented, one line feed at the end."""
    return (json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _write_plots(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    from mjolnir.research.report import plots

    summary = summarize(records)
    trials = [record["body"] for record in records if record["kind"] == "trial"]
    plots.write(folder, current(trials, summary["epoch"]), [bucket["bucket"] for bucket in summary["buckets"]])


def _place(folder: Path, files: Mapping[str, bytes], records: Sequence[Mapping[str, Any]]) -> None:
    """Write all files beside their place and move them there once they are whole: no partial export is left.

    A file that is there is replaced; never through a symbolic link, which could lead out of the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    there = folder.exists()
    with tempfile.TemporaryDirectory(dir=folder if there else folder.parent, prefix=".export-") as name:
        draft = Path(name, "export")
        draft.mkdir()
        for name, data in files.items():
            (draft / name).write_bytes(data)
        _write_plots(draft, records)
        if not there:
            draft.rename(folder)
            return
        for path in sorted(draft.iterdir()):
            if (folder / path.name).is_symlink():
                raise OSError(f"{folder / path.name} is a symbolic link")
            path.replace(folder / path.name)
