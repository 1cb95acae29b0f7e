"""Writing a campaign out: its records, tables, plots and a page, from the records alone.

The data and the page have the same bytes wherever they are written: no current time, no folder, no host goes into them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.research import places, t4_results
from mjolnir.research.answer import Answer, Failure, understood
from mjolnir.research.hints import command
from mjolnir.research.journal import as_mapping
from mjolnir.research.removal import removal, removal_lines, require_records
from mjolnir.research.rows import proven
from mjolnir.research.summary import bodies, current, summarize

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger

FILES = (
    "ledger.jsonl", "ledger.tsv", "environment.json", "summary.json", "rows.json", "t4-results.json", "report.html",
)  # fmt: skip
"""What an export holds, the plots apart."""

DRAFT = ".export-"
"""How the name of an unfinished export begins."""


def export(ledger: Ledger, tag: str, out: Path | None = None) -> Answer:
    """Write `tag` to `out`, or to `runs/<tag>` beside the ledger.

    Raises:
        Failure: there is no such campaign, or the folder cannot be written.
    """
    folder = export_records(ledger, tag, out or places.export_folder(ledger.folder, tag))
    names = sorted(path.name for path in folder.iterdir())
    gone = removal(ledger, tag)
    text = "\n".join([f"{tag} is in {folder}: {', '.join(names)}", *removal_lines(ledger, tag, gone)])
    return Answer({"tag": tag, "folder": str(folder), "files": names, "removed": gone}, text)


def require_own(folder: Path, tag: str, beside: Path | None = None) -> None:
    """Refuse a folder that holds what is not an earlier export of `tag`: files of an export would replace it.

    Args:
        folder: where the export is to go; need not be there.
        tag: what is to be exported.
        beside: a file that may lie there all the same, such as the scratch table of the run.

    Raises:
        Failure: the folder holds something else.
    """
    mine = beside and beside.parent.resolve() / beside.name
    try:
        there = [path for path in folder.resolve().iterdir() if path != mine and not path.name.startswith(DRAFT)]
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failure(f"{folder} cannot hold an export: {error.strerror}; name another folder") from error
    if there and (found := _tag_of(folder)) != tag:
        what = f"an export of {found}" if found else f"files that are no export, such as {min(there).name}"
        raise Failure(f"{folder} holds {what}, which is not overwritten; name a new or an empty folder for {tag}")


def _tag_of(folder: Path) -> str | None:
    """The tag that `folder` is an export of; None where it is none."""
    try:
        summary = json.loads((folder / "summary.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    tag = summary.get("tag") if isinstance(summary, dict) else None
    return tag if isinstance(tag, str) else None


def export_records(ledger: Ledger, tag: str, folder: Path, beside: Path | None = None) -> Path:
    """Write `tag` to `folder` and return it.

    Raises:
        Failure: there is no such campaign, or its records were collected; or the folder cannot be written or holds
            something else (see `require_own`).
    """
    from mjolnir import ledger as ledgers

    lines = ledger.records(tag)
    if not lines:
        shown = command(ledger, "autoresearch", "list")
        raise Failure(f"there is no tag {tag} in {ledger.live}; `{shown}` shows the tags")
    require_records(ledger, tag)
    require_own(folder, tag, beside)
    with understood(tag):
        records = [as_mapping(record) for record in lines]
        summary = _summary(records)
        files = {
            "ledger.jsonl": b"".join(record.line + b"\n" for record in lines),
            "ledger.tsv": ledgers.tsv_text((record, ledger.commit(record)) for record in lines).encode(),
            **documents(records, summary),
        }
        try:
            _place(folder, files, lambda draft: _draw(draft, records, summary))
        except OSError as error:
            raise Failure(f"the export could not be written to {folder}: {error.strerror or error}") from error
    return folder


def _summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    try:
        return summarize(records)
    except ValueError as error:
        raise Failure(str(error)) from error


def documents(records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The JSON files and the page, by name.

    Args:
        records: of one tag.
        summary: of the records, where it is known already.

    Raises:
        Failure: the records hold no campaign, or a promotion that is no valid row.
    """
    from mjolnir.research.report.page import render

    summary = summary or _summary(records)
    rows = [row.as_dict() for row in proven(records).rows]
    environments = {record["writer"]: record["environment"] for record in records if record.get("environment")}
    return {
        "environment.json": pretty({"writers": environments}),
        "summary.json": pretty(summary),
        "rows.json": pretty({"tag": summary["tag"], "rows": rows}),
        "t4-results.json": compact(t4_results.results(records)),
        "report.html": render(summary, records, rows, environments).encode(),
    }


def pretty(values: Mapping[str, Any]) -> bytes:
    """JSON for people and diffs: sorted, indented, one line feed at the end."""
    return (json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def compact(values: Mapping[str, Any]) -> bytes:
    """JSON for programs: the top members in order, one result a line."""
    lines = (json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in values["results"])
    version = json.dumps(values["schema_version"])
    return ('{"schema_version": ' + version + ', "results": [\n' + ",\n".join(lines) + "\n]}\n").encode()


def _draw(folder: Path, records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    from mjolnir.research.report import plots

    plots.write(folder, summary, current(bodies(records, "trial"), summary["epoch"]))


def _place(folder: Path, files: Mapping[str, bytes], draw: Callable[[Path], None]) -> None:
    """Write all files beside their place and move them there once they are whole: no partial export is left.

    A file that is there is replaced; never through a symbolic link, which could lead out of the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    there = folder.exists()
    with tempfile.TemporaryDirectory(dir=folder if there else folder.parent, prefix=DRAFT) as name:
        draft = Path(name, "export")
        draft.mkdir()
        for name, data in files.items():
            (draft / name).write_bytes(data)
        draw(draft)
        if not there:
            draft.rename(folder)
            return
        # The summary goes first: by it the folder is known as an export of this tag, should this be killed.
        for path in sorted(draft.iterdir(), key=lambda path: (path.name != "summary.json", path.name)):
            if (folder / path.name).is_symlink():
                raise OSError(f"{folder / path.name} is a symbolic link")
            path.replace(folder / path.name)
