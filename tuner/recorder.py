"""Making a recording that survives the process: a builder with a file beside it, so that it can go on later."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Outcome, Status, Timing
from mjolnir.tuner.builder import RecordingBuilder, Source
from mjolnir.tuner.recording import Recording, RecordingError

__all__ = ["RecordingWriter", "Source"]

CARD = ("device_uuid",)
"""What of an environment tells one card from another of its kind."""

SYNC_SECONDS = 1.0
"""How long a line may be the system's alone: it outlives this process at once, and the machine after that."""


class RecordingWriter(RecordingBuilder):
    """A builder whose additions survive the process, in `progress.jsonl` of the recording's folder.

    Each addition is one line, which outlives this process when the call returns, and soon the machine; opening the
    folder again reads them back, and begins a new chunk. A line cut short by a crash is dropped.

    Args:
        folder: the recording's folder, made where it is missing.
        source: what is recorded; has to be that of the lines already there, but may be on another card of its kind:
            all that is recorded is timed against the default beside it, and chunks say which card they are from.
        chunk: facts of this sitting.

    Raises:
        RecordingError: the folder holds another recording, or damaged lines.
    """

    __slots__ = ("_file", "_synced", "folder")

    def __init__(self, folder: Path, source: Source, **chunk: Any) -> None:
        super().__init__(source)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "progress.jsonl"
        self._synced = -SYNC_SECONDS
        identity = json.loads(json.dumps(["source", _identity(source)]))
        lines = self._read()
        if lines and _but_for_the_card(lines[0]) != _but_for_the_card(identity):
            raise RecordingError(
                f"{self._file}: another recording ({lines[0][1]['name']}) was begun here; choose another folder"
            )
        for line in lines[1:]:
            self._replay(*line)
        if not lines:
            self._write("source", _identity(source))
        card = {name: source.environment[name] for name in CARD if name in source.environment}
        self.open_chunk(**chunk, **card)

    def open_chunk(self, **facts: Any) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.open_chunk(self, **facts)
        self._write("chunk", facts)

    def add(self, setting: Setting, outcome: Outcome) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.add(self, setting, outcome)
        self._write("setting", setting.as_dict(), _outcome_dict(outcome))

    def add_further(self, outcome: Outcome) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.add_further(self, outcome)
        self._write("further", _outcome_dict(outcome))

    def note(self, **facts: Any) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.note(self, **facts)
        self._write("note", facts)

    def add_pairs(self, timings: Sequence[Timing]) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.add_pairs(self, timings)
        self._write("pairs", [timing.as_dict() for timing in timings])

    def add_rebuild(self, timings: Sequence[Timing]) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.add_rebuild(self, timings)
        self._write("rebuild", [timing.as_dict() for timing in timings])

    def add_canary(self, fault: str, setting: Setting, outcome: Outcome) -> None:
        """See `RecordingBuilder`."""
        RecordingBuilder.add_canary(self, fault, setting, outcome)
        self._write("canary", fault, setting.as_dict(), _outcome_dict(outcome))

    def finish(self) -> Path:
        """Write `recording.json` and `cells.npz`, read them back, and return the folder; more can be added later."""
        self.build().save(self.folder)
        Recording.load(self.folder)
        return self.folder

    def _read(self) -> list[Any]:
        if not self._file.exists():
            return []
        data = self._file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            with self._file.open("r+b") as stream:
                stream.truncate(len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise RecordingError(f"{self._file}: damaged ({error}); choose another folder") from error

    def _write(self, *line: Any) -> None:
        with self._file.open("ab") as stream:
            stream.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n")
            stream.flush()
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                os.fsync(stream.fileno())
                self._synced = time.monotonic()

    def _replay(self, kind: str, *parts: Any) -> None:
        """Take one line back in."""
        if kind == "chunk":
            RecordingBuilder.open_chunk(self, **parts[0])
        elif kind == "setting":
            RecordingBuilder.add(self, Setting.from_dict(parts[0]), _outcome(parts[1]))
        elif kind == "further":
            RecordingBuilder.add_further(self, _outcome(parts[0]))
        elif kind == "note":
            RecordingBuilder.note(self, **parts[0])
        elif kind == "canary":
            RecordingBuilder.add_canary(self, parts[0], Setting.from_dict(parts[1]), _outcome(parts[2]))
        elif kind == "pairs":
            RecordingBuilder.add_pairs(self, [Timing.from_dict(values) for values in parts[0]])
        elif kind == "rebuild":
            RecordingBuilder.add_rebuild(self, [Timing.from_dict(values) for values in parts[0]])
        else:
            raise RecordingError(f"{self._file}: a line of unknown kind {kind!r}")


def _identity(source: Source) -> dict[str, Any]:
    return {
        "name": source.name,
        "device": [source.device.arch, source.device.name, source.device.sm_count, source.device.mig],
        "geometry": source.geometry.as_dict(),
        "placement": [source.placement.layout, source.placement.kv],
        "workload": source.workload.as_dict(),
        "environment": dict(source.environment),
    }


def _but_for_the_card(line: Any) -> Any:
    kind, identity = line
    environment = {name: value for name, value in identity["environment"].items() if name not in CARD}
    return kind, {**identity, "environment": environment}


def _outcome_dict(outcome: Outcome) -> dict[str, Any]:
    """The parts of an outcome that a recording uses."""
    return {
        "status": str(outcome.status),
        "reason": outcome.reason,
        "timings": [timing.as_dict() for timing in outcome.timings],
        "correctness": dict(outcome.correctness),
        "binary": outcome.binary,
        "plans": list(outcome.plans),
        "facts": {"compile_seconds": outcome.facts.get("compile_seconds", 0.0)},
        "phases": dict(outcome.phases),
    }


def _outcome(values: Mapping[str, Any]) -> Outcome:
    timings = tuple(Timing.from_dict(timing) for timing in values["timings"])
    return Outcome(
        **{**values, "status": Status(values["status"]), "timings": timings, "plans": tuple(values["plans"])}
    )
