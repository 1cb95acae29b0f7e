"""What the user asked of `autoresearch run`, and how it becomes the tuner's options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting, parse_assignment
from mjolnir.research.answer import UsageFailure, asked
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
        device: "auto", "cuda", "cuda:<i>", several of them with commas between, or "replay".
        gate_url: metrics page of a vLLM server that has to be idle while something is measured.
        recording: name or folder of the recording to replay.
        effort, trials, minutes, seed, proposer: the search.
        proposer_command, proposer_seconds: of the proposer `external`.
        until_flat, race: end when nothing is left to gain; drop slow settings early; None takes the default.
        warm_start: ask first what was good nearby; None does so on a GPU.
        dry_run: say what would be done, and do nothing.
        alpha, robust: the proof, and the choice over context lengths.
        geometry, placement, workload: the problem, as text.
        model, tensor_parallel, page_size: the geometry by a model's config, the GPUs that share its heads, its pages.
        pins: `knob=value`, each.
        promote: write the rows that are proven.
        defaults: scratch table that stands in for the user's table and takes the rows.
        ledger: the ledger's folder.
        export: folder for the export when the run has ended.
        depth: asks made ahead of the device: as many trials can be in hand at once.
        storage: URL of the database through which hosts share the campaign; it may hold a password.
        worker: join a campaign that another process has opened.
        lease_seconds: how long a process that gives no sign of life keeps what it has in hand.
        command: the command line, for the record.
    """

    tag: str | None = None
    resume: bool = False
    device: str = "auto"
    recording: str | None = None
    gate_url: str | None = None
    effort: str | None = None
    trials: int | None = None
    minutes: float | None = None
    seed: int | None = None
    proposer: str | None = None
    proposer_command: str | None = None
    proposer_seconds: float | None = None
    until_flat: bool | None = None
    race: bool | None = None
    warm_start: bool | None = None
    dry_run: bool = False
    alpha: float | None = None
    robust: bool = False
    geometry: str | None = None
    model: Path | None = None
    tensor_parallel: int | None = None
    page_size: int | None = None
    placement: str | None = None
    workload: str | None = None
    pins: tuple[str, ...] = ()
    promote: bool = False
    defaults: Path | None = None
    ledger: Path | None = None
    export: Path | None = None
    depth: int | None = None
    noise: int | None = None
    instances: int | None = None
    group: int | None = None
    storage: str | None = None
    worker: bool = False
    lease_seconds: float = 30.0
    command: tuple[str, ...] = ()

    @property
    def shown_storage(self) -> str | None:
        """The storage without password, for the screen; what is on record has no user and folders either."""
        from mjolnir.ledger.database import passwordless

        return None if self.storage is None else passwordless(self.storage)

    def __post_init__(self) -> None:
        for name in ("tag", "device", "recording", "effort", "proposer", "geometry", "placement", "workload"):
            if getattr(self, name) == "":
                raise UsageFailure(f"--{name} is empty; give it a value or leave it out")

    def problem(self) -> tuple[Geometry, Placement, Workload]:
        """Geometry, placement and workload, with their defaults.

        Raises:
            UsageFailure: one of them does not parse.
        """
        layout, _, kv = (self.placement or "head-major/together").partition("/")
        with asked("--geometry"):
            geometry = self._geometry()
        with asked("--placement"):
            placement = Placement(layout, kv or "together")
        with asked("--workload"):
            return geometry, placement, Workload.load(self.workload or DEFAULT_WORKLOAD)

    def _geometry(self) -> Geometry:
        if self.model is None:
            if self.tensor_parallel is not None or self.page_size is not None:
                raise UsageFailure("--tensor-parallel and --page-size go with --model; --geometry says both itself")
            return Geometry.parse(self.geometry or DEFAULT_GEOMETRY)
        if self.geometry is not None:
            raise UsageFailure("--model and --geometry both say what the heads are: give one of them")
        from mjolnir.research import model_config

        found = model_config.load(self.model, self.tensor_parallel or 1)
        return replace(found, page_size=self.page_size) if self.page_size else found

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
            "proposer_command": self.proposer_command,
            "proposer_seconds": self.proposer_seconds,
            "until_flat": self.until_flat,
            "race": self.race,
            "alpha": self.alpha,
            "depth": self.depth,
            "noise": self.noise,
            "instances": self.instances,
            "group": self.group,
            "robust": self.robust or None,
            "pins": self._pins() or None,
        }
        overrides = {name: value for name, value in given.items() if value is not None}
        if self.minutes is not None and not isfinite(self.minutes):
            raise UsageFailure(f"--minutes {self.minutes} is no number of minutes")
        with asked():
            if recorded is not None:
                return self._resumed(Options.from_dict(recorded))
            return Options.of_effort(self.effort or "default", **overrides)

    def _resumed(self, options: Options) -> Options:
        asked = {
            "--effort": (self.effort, options.effort),
            "--seed": (self.seed, options.seed),
            "--proposer": (self.proposer, options.proposer),
            "--proposer-command": (self.proposer_command, options.proposer_command),
            "--until-flat": (self.until_flat, options.until_flat),
            "--race": (self.race, options.race),
            "--alpha": (self.alpha, options.alpha),
            "--depth": (self.depth, options.depth),
            "--noise": (self.noise, options.noise),
            "--instances": (self.instances, options.instances),
            "--group": (self.group, options.group),
            "--robust": (self.robust or None, options.robust),
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
        pins: dict[str, int] = {}
        with asked("--pin"):
            for knob, value in map(parse_assignment, self.pins):
                if knob in pins:
                    raise ValueError(f"{knob} is held twice, at {pins[knob]} and {value}")
                pins[knob] = value
        return pins


def with_incumbents(options: Options, incumbents: Mapping[int, Setting]) -> Options:
    """`options` with the rows in force, by bucket."""
    return replace(options, incumbents=dict(incumbents))


def command_line(arguments: Sequence[str]) -> list[str]:
    """The command for the record, without folders, which are of this machine and name its users, and passwords."""
    found = list(arguments)
    for place, argument in enumerate(found):
        option, equals, value = argument.partition("=")
        if option in SECRETIVE and equals:
            found[place] = f"{option}={SECRETIVE[option](value)}"
        elif argument in SECRETIVE and place + 1 < len(found):
            found[place + 1] = SECRETIVE[argument](found[place + 1])
        elif Path(argument).is_absolute():
            found[place] = Path(argument).name
    # Bytes that the locale could not read are in no record, which is UTF-8.
    return [os.fsencode(argument).decode("utf-8", "replace") for argument in found]


def _masked(url: str) -> str:
    from mjolnir.ledger.database import masked

    return masked(url)


def _public_page(url: str) -> str:
    """A page's address without user, password and query."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))
    except ValueError:
        return "***"


SECRETIVE: dict[str, Callable[[str], str]] = {"--storage": _masked, "--gate-url": _public_page}
"""Options whose values may hold a password, and how they are written down."""
