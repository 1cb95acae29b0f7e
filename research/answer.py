"""What a command's twin gives back: the same facts for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


class Exit(IntEnum):
    """Exit codes of the `mjolnir` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    MISSING = 3
    NOT_WRITTEN = 4
    VOID = 5
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a command.

    Attributes:
        data: what `--json` prints; JSON values only.
        view: what a person sees: text, or anything that rich can render.
        code: the exit code.
    """

    data: Mapping[str, Any]
    view: RenderableType
    code: Exit = Exit.DONE


class Failure(Exception):
    """A command cannot go on; the message says what is wrong and what to do, `code` is its exit code."""

    code = Exit.FAILED


class UsageFailure(Failure):
    """What was asked makes no sense, or not here."""

    code = Exit.USAGE


@contextmanager
def asked(what: str = "") -> Iterator[None]:
    """The block reads what the user asked for: its ValueErrors are a `UsageFailure`, which `what` opens."""
    try:
        yield
    except ValueError as error:
        raise UsageFailure(f"{what}: {error}" if what else str(error)) from error


@contextmanager
def understood(tag: str) -> Iterator[None]:
    """The block reads the records of `tag`, which may be of a newer version, or of no campaign at all.

    What such bodies lack, or hold in another form than is written here, becomes a `Failure` that says so.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Failure(
            f"{tag}: records that this version does not understand ({type(error).__name__}: {error}): a newer one "
            "wrote them, or they were made by hand; `mjolnir ledger verify` tells whether they are as they were written"
        ) from error


class MissingFailure(Failure):
    """A device or a package is missing."""

    code = Exit.MISSING


class NotWrittenFailure(Failure):
    """The work is done, and its rows could not be written."""

    code = Exit.NOT_WRITTEN
