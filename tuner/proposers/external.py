"""Proposals from a command of the user's: a script, an optimiser in another language, a language model.

The command is run once an ask, so it needs no state and a campaign that was killed can go on. It reads JSON lines on
stdin and answers on stdout with settings, one JSON object of knob names and values a line; knobs that are left out take
their default, and the first setting that is in the space and not taken is used. The lines that it reads are

- `{"space": {"knobs": {name: [values]}, "size": n, "default": {...}}}`
- `{"trial": {"setting": {...}, "ratios": {bucket: ratio or null}}}`, one a trial: time over the default's, null where
  it has none, since it failed or was dropped as slow
- `{"ask": {"bucket": b, "number": n, "taken": count}}`, the last one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Set
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.proposers import CommandError, Gain, ProposerError
from mjolnir.tuner.space import Coordinates, Space

LONGEST = 160
"""Characters of a bad answer that are kept."""

MOST_BYTES = 1_000_000
"""Of an answer that is read."""


class ExternalProposer:
    """Runs a command for each ask.

    Args:
        space: of the settings.
        command: split as a shell would, and run without one.
        seconds: how long it may take.

    Raises:
        CommandError: the command is empty, does not parse, or names a program that is not there.
    """

    name = "external"

    def __init__(self, space: Space, command: str, seconds: float) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise CommandError(f"--proposer-command {command!r} does not parse: {error}") from error
        if not self._command:
            raise CommandError("the proposer external needs a command: --proposer-command 'python propose.py'")
        if shutil.which(self._command[0]) is None:
            raise CommandError(
                f"--proposer-command: {self._command[0]!r} cannot be run: there is no such program; "
                "name one on the PATH, or its file"
            )
        self._space = space
        self._seconds = seconds
        self._told: dict[Coordinates, dict[int, float | None]] = {}

    def ask(self, bucket: int, number: int, taken: Set[Coordinates]) -> Coordinates:
        """See `Proposer`.

        Raises:
            ProposerError: the command cannot be run, failed, was too slow, or answered no setting that can be used.
        """
        lines = [*self._history(), {"ask": {"bucket": bucket, "number": number, "taken": len(taken)}}]
        answer = self._run("".join(json.dumps(line) + "\n" for line in lines))
        refused = ""
        for line in answer.splitlines():
            if line.strip():
                try:
                    return self._read(line, taken)
                except (ValueError, TypeError, RecursionError) as error:
                    refused = refused or f"{_short(line)}: {error}"
        raise ProposerError(f"the proposer's command answered no new setting: {refused or 'nothing at all'}")

    def gain(self, bucket: int, number: int, taken: Set[Coordinates]) -> Gain | None:
        """See `Proposer`; it is not asked."""
        return None

    def tell(self, bucket: int, coordinates: Coordinates, value: float | None) -> None:
        """See `Proposer`."""
        self._told.setdefault(coordinates, {})[bucket] = value

    def _history(self) -> Iterator[dict[str, Any]]:
        space = self._space
        values: dict[str, list[int]] = {}
        for dimension in space.dimensions:
            for place, name in enumerate(dimension.knobs):
                values[name] = sorted({value[place] for value in dimension.values})
        yield {"space": {"knobs": values, "size": space.size, "default": space.default.as_dict()}}
        for coordinates, ratios in self._told.items():
            yield {"trial": {"setting": space.setting(coordinates).as_dict(), "ratios": ratios}}

    def _read(self, line: str, taken: Set[Coordinates]) -> Coordinates:
        """The setting of one line of an answer; ValueError where it cannot be used."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("this is no JSON object of knobs")
        coordinates = self._space.coordinates(Setting.from_dict(values))
        if coordinates is None:
            raise ValueError("this setting is outside the space")
        if coordinates in taken:
            raise ValueError("this setting was tried already")
        return coordinates

    def _run(self, given: str) -> str:
        """What the command answers."""
        name = self._command[0]
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ProposerError(f"the proposer's command {name!r} cannot be run: {error.strerror}") from error
        try:
            answer, complaint = process.communicate(given, timeout=self._seconds)
        except subprocess.TimeoutExpired:
            raise ProposerError(f"the proposer's command {name!r} gave no answer within {self._seconds:g} s") from None
        finally:
            _end(process)
        if process.returncode:
            last = _short((complaint.strip().splitlines() or ["no message"])[-1])
            raise ProposerError(f"the proposer's command {name!r} died with status {process.returncode}: {last}")
        return answer[:MOST_BYTES]


def _end(process: subprocess.Popen[str]) -> None:
    """End whatever the command has started and is still there."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    process.wait()


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
