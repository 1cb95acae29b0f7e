"""Asking a ledger."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from mjolnir.ledger.git_store import GitStore
from mjolnir.ledger.record import Record
from mjolnir.ledger.summary import TagSummary
from mjolnir.ledger.wanted import Sort, Wanted

if TYPE_CHECKING:
    from mjolnir.ledger.catalog import Catalog
    from mjolnir.ledger.index import Index

T = TypeVar("T")


class Reader(ABC):
    """The questions that a ledger answers. Whoever has one also has its live file and its repository.

    Attributes:
        live: the live file.
    """

    live: Path
    _store: GitStore | None
    _mutex: threading.RLock

    @abstractmethod
    def _refresh(self) -> Index:
        """The index as new as the truth."""

    def tags(self) -> tuple[TagSummary, ...]:
        """What there is of each tag; the one that was written last comes last."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.tags(self._refresh())

    def records(self, tag: str | None = None, kind: str | None = None) -> tuple[Record, ...]:
        """The records of a tag, or of all, in order."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.records(self._refresh(), tag, kind)

    def trials(
        self, tag: str | None = None, *, sort: Sort = "trial", limit: int | None = None, **wanted: Any
    ) -> tuple[Record, ...]:
        """The trials of a tag, or of all.

        Args:
            tag: the tag.
            sort: "trial", by number; "time"; or "ratio": the fastest first, measured ones alone, by their ratio in the
                bucket where one is wanted.
            limit: at most so many.
            wanted: the fields of `Wanted`: status, verdict, bucket, knobs, since.

        Raises:
            ValueError: no such order, a limit below zero, or a time that is none.
        """
        if sort not in get_args(Sort) or (limit is not None and limit < 0):
            raise ValueError(f"sort={sort!r}, limit={limit!r}: one of {', '.join(get_args(Sort))}, and 0 or more")
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.trials(self._refresh(), tag, Wanted(**wanted), sort, limit)

    def tally(self, wanted: Wanted) -> dict[str, int]:
        """How many trials of each tag are wanted; tags without one are left out."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.tally(self._refresh(), wanted)

    def knobs(self, tag: str | None = None) -> frozenset[str]:
        """The knobs that the settings of a tag's trials name, or those of all."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.knobs(self._refresh(), tag)

    def to_dataframe(self, tag: str | None = None, **choice: Any) -> Any:
        """Trials as a `pandas.DataFrame`: a row a trial, a column a knob, `ratio_<bucket>` by bucket.

        Args:
            tag: the tag; without it all.
            choice: as for `trials`.

        Raises:
            ImportError: pandas is not installed.
        """
        from mjolnir.ledger import frame

        return frame.dataframe(self.with_commits(self.trials(tag, **choice)))

    def with_commits(self, records: Sequence[Record]) -> list[tuple[Record, str]]:
        """Records with the ids of their commits, as `commit` gives them."""
        from mjolnir.ledger import queries

        with self._mutex:
            found = queries.commit_ids(self._catalog.as_is(), digests := [record.sha256 for record in records])
        return [(record, found.get(digest, "")) for record, digest in zip(records, digests, strict=True)]

    def trial(self, tag: str, number: int) -> Record:
        """The trial of that number.

        Raises:
            LedgerError: there is none; says what there is.
        """
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.trial(self._refresh(), tag, number)

    def record(self, sha256: str) -> Record | None:
        """The record with that hash, as certificates cite it."""
        from mjolnir.ledger import queries

        with self._mutex:
            return queries.by_hash(self._refresh(), sha256)

    def commit(self, record: Record) -> str:
        """The id of the record's commit, whether git has it or not; empty when a predecessor is missing."""
        from mjolnir.ledger import queries

        digest = record.sha256
        with self._mutex:
            # A commit follows from its record, so what the index knew before is as good as what it knows now.
            known = queries.commit_ids(self._catalog.as_is(), [digest])
            return known[digest] if digest in known else queries.commit_ids(self._refresh(), [digest]).get(digest, "")

    def derived(self, tag: str, name: str, version: str, make: Callable[[Iterable[Record]], T]) -> T:
        """What `make` works out of a tag's records, in order: remembered in the index while there are no others.

        Args:
            tag: the tag.
            name: of what is worked out.
            version: of the code that does it; what another one worked out is made anew.
            make: gives JSON values alone; they come back as JSON has them.
        """
        from mjolnir.ledger import queries

        with self._mutex:
            index = self._refresh()
            state = [version, *queries.state(index, tag)]
            found = index.recall(f"{name} {tag}", state)
            if found is None:
                found = index.remember(f"{name} {tag}", state, make(queries.stream(index, tag)))
            known: T = found
            return known

    @cached_property
    def _catalog(self) -> Catalog:
        # Here because SQLAlchemy takes a quarter of a second to import, and not every command asks.
        from mjolnir.ledger.catalog import Catalog

        return Catalog(self.live, self._store)
