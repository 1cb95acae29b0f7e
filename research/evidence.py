"""Finding the records that a certificate cites: in the ledger (live file and refs), and in exported runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir import ledger as ledgers
from mjolnir.ledger.chain import Link, broken
from mjolnir.research.answer import Failure
from mjolnir.research.journal import as_mapping

if TYPE_CHECKING:
    from mjolnir.ledger import Ledger, Record

NAME = "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one tag.

    Attributes:
        tag: which.
        records: in order, each once, as the tuner reads them.
        places: where each record was found, by hash.
        problems: files that cannot be read, and records of one identity with two contents.
        chains: by writer, what is wrong with its hash chain; empty when it is whole.
    """

    tag: str
    records: tuple[Mapping[str, Any], ...]
    places: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]
    chains: Mapping[str, str]

    def get(self, sha256: str) -> Mapping[str, Any] | None:
        """The record with that hash."""
        return next((record for record in self.records if record["hash"] == sha256), None)

    def where(self, hashes: Iterable[str]) -> tuple[str, ...]:
        """The places that hold records with these hashes, each once."""
        return tuple(dict.fromkeys(place for sha256 in hashes for place in self.places.get(sha256, ())))


@dataclass
class Evidence:
    """The ledger, and the folders of exported runs beside it.

    Attributes:
        ledger: the ledger.
        sources: files, or folders that hold `*/ledger.jsonl`.
    """

    ledger: Ledger
    sources: Sequence[Path]
    _texts: dict[Path, bytes] = field(default_factory=dict)
    _tags: dict[str, Found] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: Ledger, more: Sequence[Path] = ()) -> Evidence:
        """The runs beside the ledger, those of the source tree that this package is installed from, and `more`."""
        tree = Path(__file__).resolve().parent / "runs"
        return cls(ledger, (ledger.folder / "runs", tree, *more))

    @classmethod
    def to_the_letter(cls, ledger: Ledger, more: Sequence[Path] = ()) -> Evidence:
        """As `of`, and the live file as it is now: the index may hold what was there before somebody altered it."""
        return cls.of(ledger, (*more, ledger.live))

    def of_tag(self, tag: str) -> Found:
        """Every record of a tag, wherever it lies."""
        if tag not in self._tags:
            self._tags[tag] = self._collect(tag)
        return self._tags[tag]

    def require(self, tag: str) -> Found:
        """As `of_tag`.

        Raises:
            Failure: there is no record of it; the message says where was looked.
        """
        found = self.of_tag(tag)
        if not found.records:
            looked = ", ".join(str(place) for place in (self.ledger.live, *(s for s in self.sources if s.exists())))
            why = "".join(f"; {problem}" for problem in found.problems)
            raise Failure(f"there is no tag {tag} in {looked}{why}")
        return found

    def _collect(self, tag: str) -> Found:
        problems: list[str] = []
        sources = list(self._all(tag, problems))
        return unite(tag, sources, problems)

    def _all(self, tag: str, problems: list[str]) -> Iterable[tuple[str, Sequence[Record]]]:
        yield f"ledger {self.ledger.folder}", self.ledger.records(tag)
        marker = f'"tag":"{tag}"'.encode()
        for path in self._files():
            try:
                if path not in self._texts:
                    self._texts[path] = path.read_bytes()
                if marker in self._texts[path]:
                    yield str(path), [record for record in ledgers.read_file(path) if record.tag == tag]
            except (OSError, ledgers.LedgerError) as error:
                problems.append(str(error))

    def _files(self) -> list[Path]:
        files: dict[Path, Path] = {}
        for source in self.sources:
            for path in [source] if source.is_file() else sorted(source.glob(f"*/{NAME}")):
                files.setdefault(path.resolve(), path)
        return list(files.values())


def unite(tag: str, sources: Iterable[tuple[str, Iterable[Record]]], problems: Iterable[str] = ()) -> Found:
    """The union of a tag's records from several places, each given by its name."""
    places: dict[str, tuple[str, ...]] = {}
    records: dict[str, Record] = {}
    for place, lines in sources:
        for record in lines:
            digest = record.sha256
            records[digest] = record
            places[digest] = (*places.get(digest, ()), place)
    ordered = sorted(records.values(), key=lambda record: record.order)
    writers = dict.fromkeys(record.writer for record in ordered)
    chains = {writer: _chain([record for record in ordered if record.writer == writer]) for writer in writers}
    return Found(tag, tuple(as_mapping(record) for record in ordered), places, tuple(problems), chains)


def _chain(records: Sequence[Record]) -> str:
    """What is wrong with one writer's records; empty when they are a whole chain."""
    before: Link | None = None
    for record in sorted(records, key=lambda record: record.seq):
        if before is not None and record.seq == before.seq:
            return f"record {record.seq} of writer {record.writer} is there with two contents: one was altered"
        if wrong := broken(before, record):
            return f"record {record.seq} of writer {record.writer} {wrong}"
        before = Link.of(record)
    return ""
