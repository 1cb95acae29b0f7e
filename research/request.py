"""What the user asked of `autoresearch run`, and how it becomes the tuner's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting, parse_assignment
from mjolnir.research.answer import UsageFailure
from mjolnir.tuner.options import Options
from mjolnir.tuner.workload import Workload

DEFAULT_GEOMETRY = "32/8xd128,page=64,q=1"
DEFAULT_WORKLOAD = "decode8"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `run` as they were given; None where they were not.

    Attributes:
        tag: the campaign; None makes a fresh one.
        resume: go on with a campaign that exists.
        device: "auto", "cuda", "cuda:<i>" or "replay".
        recording: name or folder of the recording to replay.
        effort, trials, minutes, seed, proposer: the search.
        geometry, placement, workload: the problem, as text.
        pins: `knob=value`, each.
        promote: write the rows that are proven.
        defaults: scratch table that stands in for the user's table and takes the rows.
        ledger: the ledger's folder.
        export: folder for the export when the run has ended.
        command: the command line, for the record.
    """

    tag: str | None = None
    resume: bool = False
    device: str = "auto"
    recording: str | None = None
    effort: str | None = None
    trials: int | None = None
    minutes: float | None = None
    seed: int | None = None
    proposer: str | None = None
    geometry: str | None = None
    placement: str | None = None
    workload: str | None = None
    pins: tuple[str, ...] = ()
    promote: bool = False
    defaults: Path | None = None
    ledger: Path | None = None
    export: Path | None = None
    command: tuple[str, ...] = ()

    def problem(self) -> tuple[Geometry, Placement, Workload]:
        """Geometry, placement and workload, with their defaults.

        Raises:
            UsageFailure: one of them does not parse.
        """
        layout, _, kv = (self.placement or "head-major/together").partition("/")
        try:
            return (
                Geometry.parse(self.geometry or DEFAULT_GEOMETRY),
                Placement(layout, kv or "together"),
                Workload.load(self.workload or DEFAULT_WORKLOAD),
            )
        except ValueError as error:
            raise UsageFailure(str(error)) from error

    def options(self, recorded: Mapping[str, Any] | None = None) -> Options:
        """The tuner's options; a resumed campaign keeps its own but for a new limit of trials or minutes.

        Args:
            recorded: the `options` of the campaign record that is resumed.

        Raises:
            UsageFailure: an option out of its range, or one that would change what a resumed campaign is.
        """
        given = {
            "trials": self.trials,
            "minutes": self.minutes,
            "seed": self.seed,
            "proposer": self.proposer,
            "pins": self._pins() or None,
        }
        overrides = {name: value for name, value in given.items() if value is not None}
        try:
            if recorded is not None:
                return self._resumed(Options.from_dict(recorded))
            return Options.of_effort(self.effort or "default", **overrides)
        except ValueError as error:
            raise UsageFailure(str(error)) from error

    def _resumed(self, options: Options) -> Options:
        asked = {
            "--effort": (self.effort, options.effort),
            "--seed": (self.seed, options.seed),
            "--proposer": (self.proposer, options.proposer),
            "--pin": (self._pins() or None, dict(options.pins)),
        }
        for flag, (wanted, recorded) in asked.items():
            if wanted is not None and wanted != recorded:
                raise UsageFailure(
                    f"{flag} cannot change in a resumed campaign (it was {recorded}); start a new tag for that"
                )
        limits = {"trials": self.trials, "minutes": self.minutes}
        return replace(options, **{name: value for name, value in limits.items() if value is not None})  # type: ignore[arg-type]

    def _pins(self) -> dict[str, int]:
        try:
            return dict(parse_assignment(pin) for pin in self.pins)
        except ValueError as error:
            raise UsageFailure(f"--pin: {error}") from error


def with_incumbents(options: Options, incumbents: Mapping[int, Setting]) -> Options:
    """`options` with the rows in force, by bucket."""
    return replace(options, incumbents=dict(incumbents))


def command_line(arguments: Sequence[str]) -> list[str]:
    """The command for the record, folders left out of paths: they are of this machine and name its users."""
    return [Path(argument).name if Path(argument).is_absolute() else argument for argument in arguments]
