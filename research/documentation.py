"""The parts of README.md that are made from the code: `python -m mjolnir.research.documentation README.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from mjolnir.backend.overrides import variable
from mjolnir.kernel.knobs import KNOBS, Knob

BEGIN, END = "<!-- knobs: made from kernel/knobs.py -->", "<!-- end of knobs -->"


def knobs_table() -> str:
    """The knobs as a Markdown table."""
    head = "| knob | values | default | environment variable | effect |\n|---|---|---|---|---|\n"
    return head + "".join(_row(knob) for knob in KNOBS)


def _row(knob: Knob) -> str:
    default = ("off", "on")[knob.default] if knob.is_switch else knob.default
    return f"| `{knob.name}` | {knob.domain()} | {default} | `{variable(knob)}` | {knob.help} |\n"


def updated(readme: str) -> str:
    """`readme` with the knobs table made anew between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the text lacks {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n{knobs_table()}{END}{after}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text("utf-8")), "utf-8")
