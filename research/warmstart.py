"""What a campaign tries first: what was good for problems near its own, on this device or on others.

What the built-in rule says of each bucket comes first, then rows of the tables in force, then the best settings of
other campaigns in the ledger. A problem is near when it has the same GQA ratio, head size, query length and formats.
Of near rows and trials those of the same architecture come first, then those whose batch x KV heads is nearest. Trials
of a replay count for replays alone, and those of a GPU for campaigns on one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.tuner.earlier import as_of_now
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from mjolnir.backend.lookup import Defaults
    from mjolnir.ledger import Ledger
    from mjolnir.tuner.bench import Bench

MOST = 12
"""Settings that are asked first, beside the rows in force."""

A_BUCKET = 2
"""Settings that one source gives a bucket, at most."""

FARTHEST = 3.0
"""Doublings of batch x KV heads beyond which nothing is near."""


@dataclass(frozen=True, slots=True)
class Near:
    """A setting that was good elsewhere; the smaller `distance`, the nearer."""

    distance: tuple[bool, float, float]
    setting: Setting


def near_settings(bench: Bench, defaults: Defaults, ledger: Ledger, tag: str) -> tuple[Setting, ...]:
    """The settings to try first, nearest first, each once; all of them can run here."""
    rule = [built_in(bench.geometry, bench.device, bucket) for bucket in bench.workload.buckets]
    tables = [near for bucket in bench.workload.buckets for near in _of_tables(bench, defaults, bucket)]
    trials = list(_of_ledger(bench, ledger, tag))
    nearest = [near.setting for source in (tables, trials) for near in sorted(source, key=lambda n: n.distance)]
    ordered = [*rule, *nearest]
    known = bench.settings()
    now = (as_of_now(setting, bench.geometry, bench.device) for setting in ordered)
    fits = (
        resolve(setting, bench.geometry, bench.device)
        for setting in now
        if not infeasible(setting, bench.geometry, bench.device)
    )
    return tuple(dict.fromkeys(s for s in fits if known is None or s in known))[:MOST]


def _of_tables(bench: Bench, defaults: Defaults, bucket: int) -> list[Near]:
    """The nearest rows of one bucket; those of this very problem are rows in force, and asked as such."""
    found = []
    for row in (row for table in defaults.tables for row in table.rows):
        key = row.key
        here = (key.hardware, key.placement) == (bench.device, bench.placement) and key.batch in bench.workload.buckets
        if _alike(key.geometry, bench.geometry) and not (here and _same(key.geometry, bench.geometry)):
            apart = _doublings(key.batch * key.heads_kv, bucket * bench.geometry.heads_kv)
            found.append(Near((key.arch != bench.device.arch, apart, 0.0), row.setting))
    return _nearest(found)


def _of_ledger(bench: Bench, ledger: Ledger, tag: str) -> Iterator[Near]:
    """The best settings of near campaigns, for each bucket."""
    known = ledger.records(kind="campaign")
    # Of a source experiment the ratios are over its base, and say nothing of a setting.
    campaigns = {r.tag: r.body for r in known if r.tag != tag and not r.body.get("sources")}
    for name, body in campaigns.items():
        geometry = _geometry(body)
        if geometry is None or body["simulated"] != bench.simulated or not _alike(geometry, bench.geometry):
            continue
        other = body["device"]["arch"] != bench.device.arch
        trials = [record.body for record in ledger.records(name, "trial") if record.body["status"] == "measured"]
        theirs = Workload.from_dict(body["workload"]).buckets
        for bucket in bench.workload.buckets:
            wanted = bucket * bench.geometry.heads_kv
            nearest = min(theirs, key=lambda b: _doublings(b * geometry.heads_kv, wanted))
            apart = _doublings(nearest * geometry.heads_kv, wanted)
            yield from _nearest(_best(trials, str(nearest), other, apart))


def _best(trials: Sequence[Mapping[str, Any]], bucket: str, other: bool, apart: float) -> list[Near]:
    return [
        Near((other, apart, body["ratios"][bucket]), Setting.from_dict(body["resolved"]))
        for body in trials
        if bucket in body["ratios"]
    ]


def _nearest(found: Iterable[Near]) -> list[Near]:
    near = [entry for entry in found if entry.distance[1] <= FARTHEST]
    return sorted(near, key=lambda entry: (entry.distance, entry.setting))[:A_BUCKET]


def _geometry(body: Mapping[str, Any]) -> Geometry | None:
    """The geometry of a campaign; None where it is of a version that this one cannot read."""
    try:
        return Geometry.from_dict(body["geometry"])
    except (KeyError, TypeError, ValueError):
        return None


def _alike(one: Geometry, other: Geometry) -> bool:
    def facts(g: Geometry) -> tuple[object, ...]:
        return g.heads_q // g.heads_kv, g.head_dim, g.q_len, g.kv_format, g.q_format

    return facts(one) == facts(other)


def _same(one: Geometry, other: Geometry) -> bool:
    return (one.heads_q, one.page_size, one.causal) == (other.heads_q, other.page_size, other.causal)


def _doublings(one: int, other: int) -> float:
    return abs(math.log2(one / other))
