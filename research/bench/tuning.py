"""Which setting `mjolnir` runs with at a spot: from a file, from the defaults table, or by a short search there.

The search is greedy. It begins with what the table or the built-in rule would serve, tries `BINARIES`, then the two
best of them with PDL the other way, then splits with the two best so far, then every other knob by itself. It is no
campaign: it proves nothing, and is there so that a kernel can be compared at its best before its table rows are made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mjolnir.backend.lookup import Defaults
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.research.answer import UsageFailure
from mjolnir.research.bench.points import Spot, parse

BINARIES: tuple[Mapping[str, int], ...] = (
    {"kv_stages": 3, "pdl": 1}, {"ctas_per_sm": 1, "consumer_warps": 8, "kv_stages": 4, "pdl": 1},
    {"kv_stages": 2, "pdl": 1}, {"ctas_per_sm": 3, "kv_stages": 2, "pdl": 1}, {"kv_stages": 4, "pdl": 1},
    {"ctas_per_sm": 1, "consumer_warps": 8, "kv_stages": 6, "pdl": 1}, {"ctas_per_sm": 3, "kv_stages": 3, "pdl": 1},
    {"kv_stages": 3}, {"ctas_per_sm": 1, "kv_stages": 4, "pdl": 1}, {"ctas_per_sm": 1, "kv_stages": 6, "pdl": 1},
    {"ctas_per_sm": 1, "consumer_warps": 8, "kv_stages": 8, "pdl": 1}, {"ctas_per_sm": 1, "kv_stages": 4},
    {"ctas_per_sm": 1, "consumer_warps": 8, "kv_stages": 4}, {"ctas_per_sm": 3, "kv_stages": 2},
)  # fmt: skip
"""Knobs of the binaries that a search tries, the likeliest first."""

SPLITS = (0, 1, 16, 8, 4, 32, 64, 2)
"""`max_splits`, the likeliest first."""

FINALISTS = 2
"""Settings that are tried with PDL the other way, and with which splits are tried."""

Key = tuple[str, str, str]

Timer = Callable[[Setting], float | None]
"""Microseconds of a setting, None where it cannot run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and where it is from: "file", "table", "built-in rule" or "search"."""

    setting: Setting
    origin: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings by spot.

    Attributes:
        device: what they are for.
        defaults: tables that serve what `chosen` lacks.
        chosen: settings by `key_of` the spot.
    """

    device: Device
    defaults: Defaults
    chosen: Mapping[Key, Setting] = field(default_factory=dict)

    def choice(self, spot: Spot, placement: Placement, timing: str = "graph") -> Choice:
        """The setting of a spot without a search; in the chain one that was found in the chain, if there is any.

        Raises:
            ValueError: nothing that fits.
        """
        for key in (key_of(spot, timing), key_of(spot)):
            if key in self.chosen:
                return Choice(self.chosen[key], "file")
        found = self.defaults.lookup(self.device, spot.geometry, placement, spot.batch)
        return Choice(found.setting, "table" if found.row else "built-in rule")


def key_of(spot: Spot, timing: str = "graph") -> Key:
    """Geometry, with its formats, lengths, and "graph" or "chain"."""
    return str(spot.geometry), spot.lengths, timing


def read(path: Path) -> dict[Key, Setting]:
    """Settings from a JSON file.

    A list of {"geometry": "32/8xd128,page=64", "batch": 8, "context": 8192, "q_len": 1, "knobs": {...}}, where
    `lengths` may stand for batch and context, `q_len` may be left out, and "timing": "chain" says what the setting is
    for; or a result file, whose settings of `mjolnir` are taken.

    Raises:
        UsageFailure: it cannot be read, or an entry is malformed; the message names it.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageFailure(f"--tuned {path}: {error}") from error
    entries = [_entry_of(row) for row in values["rows"] if _is_tuned(row)] if isinstance(values, Mapping) else values
    if not isinstance(entries, list):
        raise UsageFailure(f"--tuned {path}: this is neither a list of settings nor a result file")
    found = {}
    for number, entry in enumerate(entries):
        try:
            geometry = Geometry.parse(entry["geometry"])
            if "q_len" in entry:
                geometry = replace(geometry, q_len=entry["q_len"])
            lengths = entry.get("lengths") or f"{entry['batch']}x{entry['context']}"
            spot = Spot(geometry, parse(lengths))
            found[key_of(spot, entry.get("timing", "graph"))] = Setting.from_dict(entry["knobs"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageFailure(f"--tuned {path}: entry {number}: {type(error).__name__}: {error}") from error
    return found


def _is_tuned(row: Mapping[str, Any]) -> bool:
    return row.get("kernel") == "mjolnir" and str(row.get("layout")).endswith("head-major")


def _entry_of(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("heads_q", "heads_kv", "head_dim", "page_size", "q_len", "causal", "q_format")
    geometry = Geometry(**{name: row[name] for name in names})
    return {"geometry": str(geometry), "lengths": row["lengths"], "timing": row["timing"], "knobs": row["setting"]}


def search(first: list[Setting], geometry: Geometry, device: Device, timer: Timer, limit: int) -> Setting | None:
    """The fastest of at most `limit` settings, None where none can run.

    Args:
        first: what is tried before anything else.
        geometry, device: what settings have to fit.
        timer: times one.
        limit: how many are timed.
    """
    times: dict[Setting, float] = {}
    tried: set[Setting] = set()

    def attempt(settings: Iterator[Setting], count: int) -> None:
        fresh = (s for s in settings if not infeasible(s, geometry, device))
        new = (s for s in fresh if _folded(s, geometry, device) not in tried)
        for setting in islice(new, max(0, count)):
            tried.add(_folded(setting, geometry, device))
            us = timer(setting)
            if us is not None:
                times[setting] = us

    def leaders() -> list[Setting]:
        return sorted(times, key=lambda setting: times[setting])[:FINALISTS]

    attempt(iter(first), limit)
    attempt(_binaries(), (limit + 1) // 2 - len(tried))
    # PDL gains where launches follow one another, and costs in the chain where the reader waits anyway.
    attempt((replace(leader, pdl=1 - leader.pdl) for leader in leaders()), limit - len(tried))
    settled = leaders()
    attempt((replace(leader, max_splits=splits) for splits in SPLITS for leader in settled), limit - len(tried))
    if times:
        attempt(_neighbours(min(times, key=lambda setting: times[setting])), limit - len(tried))
    return min(times, key=lambda setting: times[setting], default=None)


def first_binaries(geometry: Geometry, device: Device, limit: int) -> list[Setting]:
    """Those that a search of `limit` settings can come to."""
    fitting = (setting for setting in _binaries() if not infeasible(setting, geometry, device))
    return list(islice(fitting, (limit + 1) // 2))


def _binaries() -> Iterator[Setting]:
    known = {knob.name for knob in KNOBS}
    for knobs in BINARIES:
        if known.issuperset(knobs):  # a knob that is gone takes its binaries with it
            yield Setting.from_dict(knobs)


def _neighbours(setting: Setting) -> Iterator[Setting]:
    """Settings that differ from `setting` in one knob which was not tried yet."""
    for knob in KNOBS:
        if knob.name not in ("ctas_per_sm", "kv_stages", "max_splits", "pdl"):
            yield from (replace(setting, **{knob.name: value}) for value in knob.search)


def _folded(setting: Setting, geometry: Geometry, device: Device) -> Setting:
    return resolve(setting, geometry, device)
