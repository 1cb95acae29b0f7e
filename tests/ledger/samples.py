"""Bodies to record, and git for looking at the result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

TAG = "h200-decode8"


def trial(number: int, **values: Any) -> dict[str, Any]:
    """The body of a measured trial."""
    body: dict[str, Any] = {
        "trial": number,
        "bucket": 8,
        "setting": {"ctas_per_sm": 2, "kv_stages": number % 5},
        "changed": {"kv_stages": number % 5},
        "status": "measured",
        "reason": "",
        "verdict": "discard",
        "ratio": 1.0 + number / 1000,
        "ratios": {1: 1.0, 8: 1.0 + number / 1000},
        "timings": [
            {"point": 0, "baseline": [40_000 + number, 40_010], "difference": [-5, 7], "empty": [9_000, 9_001]}
        ],
    }
    return body | values


def git(folder: Path, *arguments: str) -> str:
    """What a git command prints, with an environment that does not lead it elsewhere."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    done = subprocess.run(
        ("git", "-C", str(folder), *arguments), capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def ledger_refs(folder: Path) -> dict[str, str]:
    """Ledger refs of a repository and their commits."""
    lines = git(folder, "for-each-ref", "--format=%(refname) %(objectname)", "refs/mjolnir").splitlines()
    return {name: commit for name, _, commit in (line.partition(" ") for line in lines)}
