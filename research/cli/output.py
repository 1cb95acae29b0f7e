"""How commands print: one answer to stdout, as JSON or for a person; failures to stderr with their exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mjolnir.research.answer import Answer, Exit, Failure, UsageFailure
from mjolnir.research.plain import plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

T = TypeVar("T")

PLAIN_WIDTH = 120
"""Columns when stdout is no terminal, so that logs and pipes do not depend on a window."""


def answer(work: Callable[[], Answer], as_json: bool) -> None:
    """Do `work`, print its answer and leave with its exit code."""
    try:
        result = _in_words(work)
        _in_words(lambda: _print_answer(result, as_json))
    except Failure as failure:
        print_failure(str(failure), int(failure.code), as_json)
        raise typer.Exit(int(failure.code)) from None
    except KeyboardInterrupt:
        raise typer.Exit(int(Exit.INTERRUPTED)) from None
    if result.code:
        raise typer.Exit(int(result.code))


def one_form(as_csv: bool, as_json: bool) -> bool:
    """`as_csv`, where it is not asked for together with `--json`.

    Raises:
        UsageFailure: it is.
    """
    if as_csv and as_json:
        raise UsageFailure("--csv and --json are two forms of one answer; give one of them")
    return as_csv


def _in_words(work: Callable[[], T]) -> T:
    """A file, a disk or a ledger that cannot be used is a failure with words, whatever the command was about."""
    try:
        return work()
    except Failure:
        raise
    except OSError as error:
        raise Failure(_told(error)) from error
    except Exception as error:
        from mjolnir.ledger import LedgerError

        if isinstance(error, LedgerError):
            raise Failure(str(error)) from error
        raise


def _told(error: OSError) -> str:
    """What an operating system's error is about, with the file where there is one."""
    reason = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, str | bytes) else reason


class Sturdy:
    """A text stream for the progress of long work, which goes on when a pipe is closed or a disk is full.

    From then on text is dropped; stderr is told so once.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lost = False

    def write(self, text: str) -> int:
        """Write `text` while the stream takes any."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush while the stream takes any text."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            action()
        except OSError as error:
            self._lost = True
            name = self._stream.name.strip("<>")
            _say(f"{name} takes no more text ({error.strerror}); the work goes on, and its records are kept")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True, slots=True)
class Harmless:
    """Something to render, of whose text no control character gets to the terminal; its styles do."""

    view: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self.view, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


def console(*, stderr: bool = False) -> Any:
    """A rich console of the terminal's width, or of `PLAIN_WIDTH` where there is no terminal; it never fails."""
    stream = sys.stderr if stderr else sys.stdout
    return _console(Sturdy(stream), stream.isatty())


def _console(file: Any, terminal: bool) -> Any:
    from rich.console import Console

    width = None if terminal else PLAIN_WIDTH
    return Console(
        file=file, force_terminal=terminal, width=width, highlight=False, markup=False, soft_wrap=not terminal
    )


def _print_answer(result: Answer, as_json: bool) -> None:
    """Print all of an answer; a reader who has had enough is no failure.

    Raises:
        Failure: the text could not be written.
    """
    try:
        print(_text(result, as_json), flush=True)
    except BrokenPipeError:
        _forget_output()
    except OSError as error:
        _forget_output()
        raise Failure(f"the answer could not be written to stdout: {error.strerror}") from error


def _text(result: Answer, as_json: bool) -> str:
    if as_json:
        return json.dumps(result.data, ensure_ascii=False, sort_keys=True)
    if isinstance(result.view, str):
        return plain(result.view)
    page = StringIO()
    _console(page, sys.stdout.isatty()).print(Harmless(result.view))
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip("\n").split("\n"))


def _forget_output() -> None:
    """What stdout still holds goes nowhere; else the interpreter would try again at its end, and complain."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_failure(message: str, code: int, as_json: bool) -> None:
    """Say on stderr what went wrong, and with `--json` on stdout as an object."""
    if as_json:
        try:
            print(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False), flush=True)
        except OSError:
            _forget_output()
    _say(message)


def _say(message: str) -> None:
    with suppress(OSError):
        print(f"mjolnir: {plain(message)}", file=sys.stderr, flush=True)
