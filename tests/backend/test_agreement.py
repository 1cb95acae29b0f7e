"""The defaults of a tensor-parallel group: read once, and the same rows on every rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mjolnir.backend import agreement
from mjolnir.backend.agreement import agree, digest
from mjolnir.backend.lookup import Defaults
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.table import Table
from tests.backend.rows import row


@pytest.fixture
def anew() -> Iterator[None]:
    agreement.forget()
    yield
    agreement.forget()


def test_ranks_with_the_same_rows_use_them() -> None:
    mine = Defaults((Table("user table"), Table("packaged table", (row(8),))))
    assert agree(mine, lambda value: [value, value]) is mine


def test_ranks_that_differ_all_use_the_built_in_default(caplog: pytest.LogCaptureFixture) -> None:
    overrides = Overrides.read({"MJOLNIR_ATTN_CTAS": "1"})
    mine = Defaults((Table("packaged table", (row(8),)),), overrides, "hash")
    with caplog.at_level(logging.WARNING, "mjolnir.backend.agreement"):
        agreed = agree(mine, lambda value: [value, "f" * 64])
    assert agreed.tables == ()
    assert agreed.overrides is overrides
    (line,) = caplog.messages
    assert "rank 1: ffffffffffff" in line
    assert f"rank 0: {digest(mine)[:12]}" in line


def test_the_digest_is_of_rows_and_of_nothing_else() -> None:
    first = Defaults((Table("one", (row(8), row(1))),))
    assert digest(first) == digest(Defaults((Table("other name", (row(1), row(8))),)))
    assert digest(first) != digest(Defaults((Table("one", (row(8),)),)))


@pytest.mark.usefixtures("anew")
def test_ranks_are_asked_once() -> None:
    asked: list[str] = []

    def gather(value: str) -> list[str]:
        asked.append(value)
        return [value]

    assert agreement.defaults(gather) is agreement.defaults(gather)
    assert len(asked) == 1
