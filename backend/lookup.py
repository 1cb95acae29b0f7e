"""From a device, a geometry and a batch to the knobs that serve it, with every step that led there.

Order: environment variable, user table, packaged table, built-in rule. Within a table: the exact key; the nearest
batch bucket at most a factor of two away, the larger first; a similar problem; the latter two only on devices that the
rule was not fitted on, where it is nearer. All files are read in `Defaults.load`; a lookup does no I/O and takes no
lock.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mjolnir.backend.key import bucket_of
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.table import VARIABLE, Key, Row, Table, packaged_path
from mjolnir.backend.table import user_path as user_path
from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import FITTED_ON, built_in
from mjolnir.kernel.variant import infeasible

log = logging.getLogger(__name__)

EXACT, NEIGHBOUR, SIMILAR = "exact key", "nearest bucket", "similar problem"
BUILT_IN, ENVIRONMENT = "built-in rule", "environment"

_NEARER = "the built-in rule was fitted on this device, and is nearer than a row for another batch or problem"

Rule = Callable[[Geometry, Device, int], Setting]

NOTHING: Sequence[Row | None] = (None,)

FREE_FIELDS = ("device", "mig", "page_size", "causal", "layout", "kv")
"""Fields of a key in which a similar problem may differ; of equally near rows the one that differs in fewest serves."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a lookup.

    Attributes:
        source: the table, `ENVIRONMENT` or `BUILT_IN`.
        rule: what was looked for there.
        outcome: "serves", "no row", "passed over", "does not fit", "applied" or "none set".
        reason: a sentence for a person.
        row: the key of the row that was found, or None.
    """

    source: str
    rule: str
    outcome: str
    reason: str
    row: Key | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        row = self.row.as_dict() if self.row else None
        return {"source": self.source, "rule": self.rule, "outcome": self.outcome, "reason": self.reason, "row": row}


@dataclass(frozen=True, slots=True)
class Resolution:
    """What serves one key.

    Attributes:
        key: what was asked for.
        engine, setting: what runs.
        sources: where each knob's value came from, by knob name.
        row: the table row underneath, or None for the built-in rule.
        stale: whether the row was measured with other kernel sources.
        steps: every step, in order.
    """

    key: Key
    engine: str
    setting: Setting
    sources: Mapping[str, str]
    row: Row | None
    stale: bool
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, as `mjolnir defaults explain --json` prints it."""
        return {
            "key": self.key.as_dict(),
            "engine": self.engine,
            "setting": self.setting.as_dict(),
            "sources": dict(self.sources),
            "row": self.row.as_dict() if self.row else None,
            "stale": self.stale,
            "steps": [step.as_dict() for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Defaults:
    """All tables and overrides of one process, read once.

    Attributes:
        tables: in the order in which they are asked.
        overrides: knobs from the environment.
        kernel_hash: the hash of the kernel sources in use; empty where staleness is of no interest.
        counts: how often each step was taken, by "source: rule: outcome".
        rule: what serves a batch where no table has a row.
    """

    tables: tuple[Table, ...]
    overrides: Overrides = field(default_factory=Overrides)
    kernel_hash: str = ""
    counts: Counter[str] = field(default_factory=Counter, compare=False)
    rule: Rule = built_in
    _known: dict[tuple[Device, Geometry, Placement, int], Resolution] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _logged: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def load(
        cls, environ: Mapping[str, str] = os.environ, *, kernel_hash: str = "", scratch: Path | None = None
    ) -> Defaults:
        """Read the user table, or `scratch` in its place, the packaged table and the environment.

        Raises:
            ValueError: an environment variable that does not parse. Tables never raise.
        """
        overrides = Overrides.read(environ)
        try:
            if scratch is not None:
                user = Table.read(scratch, missing_ok=True)
            else:
                user = Table.read(user_path(environ), "user table", missing_ok=not environ.get(VARIABLE))
        except RuntimeError as error:  # no home folder can be found
            log.warning("user table: cannot be found: %s", error)
            user = Table("user table")
        return cls((user, Table.read(packaged_path(), "packaged table")), overrides, kernel_hash)

    def lookup(self, device: Device, geometry: Geometry, placement: Placement, batch: int) -> Resolution:
        """What serves `batch` sequences here.

        Raises:
            ValueError: the knobs do not fit: a mixture of environment and table, or a problem that the built-in
                default cannot run. The message names the sources.
        """
        asked = device, geometry, placement, bucket_of(batch)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._resolve(Key.of(*asked), device, geometry)
        for step in known.steps:
            self.counts[f"{step.source}: {step.rule}: {step.outcome}"] += 1
        return known

    def incumbent(self, device: Device, geometry: Geometry, placement: Placement, batch: int) -> Row | None:
        """The row in force for exactly this key, environment left out; None where the built-in rule is."""
        key = Key.of(device, geometry, placement, batch)
        return next((row for table in self.tables if (row := table.get(key))), None)

    def _resolve(self, key: Key, device: Device, geometry: Geometry) -> Resolution:
        steps: list[Step] = []
        row = self._find(key, device, geometry, steps)
        base, source = (row.setting, steps[-1].source) if row else self._by_rule(key, device, geometry, steps)
        setting = self.overrides.apply(base)
        sources = {name: self.overrides.source(name) or source for name in setting.as_dict()}
        steps.append(self._override_step(setting.changed(base)))
        engine = engine_for(geometry, device.arch, warps=setting.consumer_warps)
        if row and setting.consumer_warps == row.setting.consumer_warps:
            engine = row.engine_on(geometry, device.arch)
        if reason := infeasible(setting, geometry, device, engine):
            used = " and ".join(dict.fromkeys(sources.values()))
            raise ValueError(f"{setting}, from {used}, cannot run: {reason}")
        stale = bool(row and self.kernel_hash and row.kernel_hash != self.kernel_hash)
        self._log(key, steps, row if stale else None)
        return Resolution(key, engine.name, setting, sources, row, stale, tuple(steps))

    def _by_rule(self, key: Key, device: Device, geometry: Geometry, steps: list[Step]) -> tuple[Setting, str]:
        """What serves without a row: the rule, or every knob's own default where the environment does not fit it."""
        said = self.rule(geometry, device, key.batch)
        reason = infeasible(self.overrides.apply(said), geometry, device)
        if reason:
            steps.append(Step(BUILT_IN, BUILT_IN, "does not fit", f"{said} with {self.overrides}: {reason}"))
            said = Setting()
        steps.append(Step(BUILT_IN, BUILT_IN, "serves", f"no table has a row for this; {said}"))
        return said, BUILT_IN

    def _find(self, key: Key, device: Device, geometry: Geometry, steps: list[Step]) -> Row | None:
        nearer = device.name in FITTED_ON and self.rule is built_in
        for table in self.tables:
            for rule, row in _candidates(table, key):
                if row is not None and rule != EXACT and nearer:
                    steps.append(Step(table.name, rule, "passed over", _NEARER, row.key))
                    break
                if row is None:
                    steps.append(Step(table.name, rule, "no row", _missed(rule, key)))
                elif reason := _misfit(row, geometry, device):
                    steps.append(Step(table.name, rule, "does not fit", f"{row.setting}: {reason}", row.key))
                else:
                    steps.append(Step(table.name, rule, "serves", f"row for {row.key}: {row.setting}", row.key))
                    return row
        return None

    def _override_step(self, changed: Mapping[str, int]) -> Step:
        if not self.overrides.values:
            return Step(ENVIRONMENT, "override", "none set", "no variable overrides a knob")
        effect = " ".join(f"{name}={value}" for name, value in changed.items()) or "nothing"
        return Step(ENVIRONMENT, "override", "applied", f"{self.overrides} changes {effect}")

    def _log(self, key: Key, steps: Sequence[Step], stale: Row | None) -> None:
        for step in steps:
            level = logging.DEBUG if step.outcome in ("no row", "none set") else logging.INFO
            self._log_once(level, f"{key}: {step.source}, {step.rule}: {step.outcome}: {step.reason}")
        if stale:
            tag = stale.certificate.get("tag", "no tag")
            self._log_once(
                logging.WARNING,
                f"the row for {stale.key} ({tag}) was measured with other kernel sources "
                f"({stale.kernel_hash[:12] or 'not told'}, now {self.kernel_hash[:12]}); it fits and still serves",
            )

    def _log_once(self, level: int, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.log(level, "%s", text)


def knob_defaults(geometry: Geometry, device: Device, batch: int) -> Setting:
    """The rule that every knob has its own default, whatever is launched."""
    return Setting()


def _candidates(table: Table, key: Key) -> Iterator[tuple[str, Row | None]]:
    """What each rule finds, in order; None where it finds nothing."""
    yield EXACT, table.get(key)
    buckets = (2 * key.batch, key.batch // 2) if key.batch > 1 else (2,)
    neighbours = [row for batch in buckets if (row := table.get(replace(key, batch=batch)))]
    yield from ((NEIGHBOUR, row) for row in neighbours or NOTHING)
    tried = {key, *(row.key for row in neighbours)}
    similar = [row for row in table.rows if row.key not in tried and _is_similar(row.key, key)]
    yield from ((SIMILAR, row) for row in sorted(similar, key=lambda row: _distance(row.key, key)) or NOTHING)


def _misfit(row: Row, geometry: Geometry, device: Device) -> str | None:
    """Why a row cannot serve a geometry on a device, or None."""
    try:
        return infeasible(row.setting, geometry, device, row.engine_on(geometry, device.arch))
    except ValueError as error:
        return str(error)


def _is_similar(row: Key, key: Key) -> bool:
    def facts(k: Key) -> tuple[object, ...]:
        return k.arch, k.sm_count, k.heads_q // k.heads_kv, k.head_dim, k.q_len, k.kv_format, k.q_format

    return facts(row) == facts(key) and 0.5 <= _items(row) / _items(key) <= 2


def _distance(row: Key, key: Key) -> tuple[float, int, int, Key]:
    """Nearest in batch x KV heads first, then alike in most fields, then the larger, then by key."""
    ratio = _items(row) / _items(key)
    different = sum(getattr(row, name) != getattr(key, name) for name in FREE_FIELDS)
    return abs(math.log2(ratio)), different, -_items(row), row


def _items(key: Key) -> int:
    return key.batch * key.heads_kv


def _missed(rule: str, key: Key) -> str:
    if rule == EXACT:
        return f"no row for {key}"
    if rule == NEIGHBOUR:
        return f"no row for a bucket of {2 * key.batch}" + (f" or {key.batch // 2}" if key.batch > 1 else "")
    gqa = key.heads_q // key.heads_kv
    return (
        f"no row for {key.arch}, {key.sm_count} SMs, GQA ratio {gqa}, head_dim {key.head_dim}, q_len {key.q_len}, "
        f"the same formats, and {_items(key) / 2:g} to {2 * _items(key)} (batch x KV heads)"
    )
