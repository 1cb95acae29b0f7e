"""How commands print: one answer to stdout, as JSON or for a person; failures to stderr with their exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mjolnir.research.answer import Answer, Exit, Failure

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

PLAIN_WIDTH = 120
"""Columns when stdout is no terminal, so that logs and pipes do not depend on a window."""


def answer(work: Callable[[], Answer], as_json: bool) -> None:
    """Do `work`, print its answer and leave with its exit code."""
    try:
        result = _with_ledger_errors(work)
    except Failure as failure:
        _print_failure(failure, as_json)
        raise typer.Exit(int(failure.code)) from None
    except KeyboardInterrupt:
        raise typer.Exit(int(Exit.INTERRUPTED)) from None
    _print_answer(result, as_json)
    if result.code:
        raise typer.Exit(int(result.code))


def _with_ledger_errors(work: Callable[[], Answer]) -> Answer:
    """A ledger that cannot be read or written is a failure with words, whatever the command was about."""
    try:
        return work()
    except Exception as error:
        from mjolnir.ledger import LedgerError

        if isinstance(error, LedgerError):
            raise Failure(str(error)) from error
        raise


def console(*, stderr: bool = False) -> Any:
    """A rich console of the terminal's width, or of `PLAIN_WIDTH` where there is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, soft_wrap=not stream.isatty())


def _print_answer(result: Answer, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.data, ensure_ascii=False, sort_keys=True))
    elif isinstance(result.view, str):
        typer.echo(result.view)
    else:
        console().print(result.view)


def _print_failure(failure: Failure, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"error": str(failure), "exit_code": int(failure.code)}, ensure_ascii=False))
    typer.echo(f"mjolnir: {failure}", err=True)
