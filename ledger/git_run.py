"""Starting git: a clean environment, its input as a file, and what it says as an error in one line.

Each command gets its whole input as a file: a killed parent then leaves a git that ends its work, not half of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mjolnir.ledger.errors import LedgerError

_WAYS_OUT = frozenset({
    "GIT_ASKPASS", "GIT_PROXY_SSL_CAINFO", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY",
})  # fmt: skip
"""How git reaches a remote is the user's to say, as it is outside."""

_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


class GitError(LedgerError):
    """A git command failed; the message holds what it said."""


def _environment() -> Mapping[str, str]:
    """The environment without anything that points git elsewhere, messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _WAYS_OUT}
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}


def run_git(command: Sequence[str], folder: Path, source: Iterable[bytes] = ()) -> bytes:
    """What a git command prints in `folder`, of which `source` is the whole input.

    Raises:
        GitError: it failed, or could not be started.
    """
    try:
        with tempfile.TemporaryFile() as input_file:
            input_file.writelines(source)
            input_file.seek(0)
            # A session of its own: Ctrl-C is for the campaign, which then flushes, not for the flush.
            done = subprocess.run(
                command, stdin=input_file, capture_output=True, cwd=folder, env=_environment(), start_new_session=True
            )
    except OSError as error:
        raise GitError(f"git could not be run: {error}") from error
    if done.returncode:
        said = _said(done.stderr) or _said(done.stdout) or f"exit status {done.returncode}"
        action = next((part for part in command[1:] if not part.startswith("-") and "=" not in part), "")
        raise GitError(f"git {action} in {folder} failed: {said}")
    return done.stdout


def _said(output: bytes) -> str:
    """What git said, on one line, without the user and password of a URL."""
    lines = (line.strip() for line in output.decode(errors="replace").splitlines())
    return _PASSWORD.sub("", "; ".join(line for line in lines if line))
