"""The commands: one group of commands a file, each a thin layer over its twin in `mjolnir.research`.

Nothing heavy is imported here or in the groups, so that `--help` and completion come at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mjolnir.research.cli import autoresearch, bench, defaults, doctor, ledger, reading, serve, verify
from mjolnir.research.cli.output import print_failure


class Commands(TyperGroup):
    """The root of all commands; with `--json` a command line that is no command is told as JSON as well."""

    def main(self, args: Any = None, *rest: Any, **more: Any) -> Any:
        """Run a command line and leave with its exit code."""
        given = sys.argv[1:] if args is None else list(args)
        if "--json" not in given:
            return super().main(args, *rest, **more)
        try:
            code = super().main(args, *rest, **{**more, "standalone_mode": False})
        except Exception as error:  # the parser's own errors have no public type that all versions share
            if not hasattr(error, "format_message"):
                raise
            code = int(getattr(error, "exit_code", 2))
            print_failure(error.format_message(), code, as_json=True)
        return sys.exit(code or 0)


app = typer.Typer(
    name="mjolnir",
    cls=Commands,
    help="Tunes a paged decode-attention kernel, records every trial, and promotes what is proven faster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
autoresearch.app.command()(reading.why)
autoresearch.app.command()(reading.compare)
app.add_typer(autoresearch.app, name="autoresearch")
app.add_typer(ledger.app, name="ledger")
app.add_typer(defaults.app, name="defaults")
app.add_typer(bench.app, name="bench")
app.add_typer(verify.app, name="verify")
app.command(name="doctor")(doctor.doctor)
app.command(name="serve", context_settings=serve.PASSED_ON)(serve.serve)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mjolnir {version('mjolnir-autoresearch')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Tunes a paged decode-attention kernel, records every trial, and promotes what is proven faster."""
