"""What a source experiment may change, and what it may not: whoever is judged does not touch the judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MAY_CHANGE = "kernel/engines/"
"""The code that runs on the device. Nothing else of the checkout is imported by those who judge."""

EMULATION = (
    "call.py", "case.py", "case_inputs.py", "cases.py", "emulator.py", "engine.py", "formats.py", "geometry.py",
    "layouts.py", "matrix.py", "minifloat.py", "packing.py", "pairwise.py", "plan.py", "reference.py", "softmax.py",
    "tolerance.py",
)  # fmt: skip
"""Modules of the kernel's room that say what comes out, and how far from it is right."""

JUDGES: Mapping[str, str] = {
    **{f"kernel/{name}": "the emulator, or what it computes with" for name in EMULATION},
    "kernel/timing.py": "the timing",
    "kernel/": "shared by the kernel and by those who judge it",
    "tuner/": "the gate and the timing",
    "ledger/": "the ledger",
    "tests/": "the tests",
    "research/": "what runs experiments and judges them",
    "backend/": "the defaults, which are held fixed",
    "pyproject.toml": "what is installed",
}
"""Prefixes of paths that no change may touch, the longest first to be asked, and what they are."""


def sorted_out(paths: Iterable[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Changed paths as (may change, forbidden and what they are, of no consequence)."""
    mine: list[str] = []
    forbidden: dict[str, str] = {}
    others: list[str] = []
    for path in sorted(set(paths)):
        judge = max((prefix for prefix in JUDGES if path.startswith(prefix)), key=len, default=None)
        if path.startswith(MAY_CHANGE):
            mine.append(path)
        elif judge is not None:
            forbidden[path] = JUDGES[judge]
        else:
            others.append(path)
    return mine, forbidden, others


def refusal(forbidden: Mapping[str, str]) -> str:
    """Why a change is refused, naming every file."""
    named = "; ".join(f"{path} ({what})" for path, what in forbidden.items())
    return (
        f"an experiment may change {MAY_CHANGE} and nothing else: the base's gate, emulator and timing judge both. "
        f"This one changes {named}. Take these changes back, or commit them first and begin from there with a new --tag"
    )
