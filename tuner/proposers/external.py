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
import threading
import time
from collections.abc import Iterator, Set
from contextlib import suppress
from typing import IO, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.proposers import CommandError, Gain, ProposerError
from mjolnir.tuner.space import Coordinates, Space

LONGEST = 160
"""Characters of a bad answer that are kept."""

MOST_BYTES = 1_000_000
"""Of an answer; a command that answers more is ended."""


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
                start_new_session=True,
            )
        except OSError as error:
            raise ProposerError(f"the proposer's command {name!r} cannot be run: {error.strerror}") from error
        try:
            answer, complaint = _talk(process, given.encode(), self._seconds)
        except subprocess.TimeoutExpired:
            raise ProposerError(f"the proposer's command {name!r} gave no answer within {self._seconds:g} s") from None
        finally:
            _end(process)
        if len(answer) > MOST_BYTES:
            raise ProposerError(f"the proposer's command {name!r} answered more than {MOST_BYTES:,} bytes")
        if process.returncode:
            last = _short((complaint.decode(errors="replace").strip().splitlines() or ["no message"])[-1])
            raise ProposerError(f"the proposer's command {name!r} died with status {process.returncode}: {last}")
        return answer.decode(errors="replace")


def _talk(process: subprocess.Popen[bytes], given: bytes, seconds: float) -> tuple[bytes, bytes]:
    """What a process answers and complains; it is left running once it has answered more than is read.

    Raises:
        subprocess.TimeoutExpired: it was not done in time.
    """
    end = time.monotonic() + seconds
    answer, complaint = bytearray(), bytearray()
    jobs = [
        threading.Thread(target=_feed, args=(process.stdin, given), daemon=True),
        threading.Thread(target=_take, args=(process.stdout, answer), daemon=True),
        threading.Thread(target=_drain, args=(process.stderr, complaint), daemon=True),
    ]
    for job in jobs:
        job.start()
    for job in jobs[1:]:
        job.join(max(0.0, end - time.monotonic()))
        if len(answer) > MOST_BYTES:
            return bytes(answer), b""
    process.wait(max(0.0, end - time.monotonic()))
    return bytes(answer), bytes(complaint)


def _feed(stream: IO[bytes], given: bytes) -> None:
    """Write all, as far as it is read."""
    with suppress(OSError), stream:
        stream.write(given)


def _take(stream: IO[bytes], taken: bytearray) -> None:
    """Read all, or one byte more than an answer may have."""
    taken += stream.read(MOST_BYTES + 1)


def _drain(stream: IO[bytes], kept: bytearray) -> None:
    """Read all, and keep the end."""
    while part := stream.read(4096):
        kept[:] = (kept + part)[-4 * LONGEST :]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End whatever the command has started and is still there."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    process.wait()


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
