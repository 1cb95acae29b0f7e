"""The figures of the kernel bench, from its rows alone.

A ratio is the best peer's time over ours, above 1 where we are faster. Its interval is a bootstrap over the samples of
both: medians of resamples, the middle 95 % of their ratios. A share is the ceiling's time over ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean
from typing import Any

import numpy as np

from mjolnir.research.bench.points import EIGHT, LONG_QUERIES, MAIN, MIXED, UNIFORM, Spot
from mjolnir.research.bench.rows import CHAIN, GRAPH, HEAD_MAJOR, SPOT, TOKEN_MAJOR, Row, is_wrong, name_of, spot_of

PEERS = ("flashinfer-tc", "flashinfer-xqa", "fa3", "vllm-triton")

SIZES = {f"ceiling_share_{name}": mebibytes << 20 for name, mebibytes in (
    ("1gb", 1024), ("512mb", 512), ("256mb", 256), ("128mb", 128), ("64mb", 64), ("32mb", 32),
)}  # fmt: skip
NEAR = 1.1
"""A size is that of a point up to this factor."""

CEILING_US, CEILING_BYTES_PER_US, CEILING_SLACK = 2.4, 4.68e6, 1.03
"""A ceiling is void where it is slower than this line, which was measured on an H200, by more than the slack."""

TARGETS: Mapping[str, tuple[str, float]] = {
    "geomean_vs_best_peer": (">=", 1.40), "worst_vs_best_peer": (">=", 1.0),
    "points_below_best_peer": ("<=", 0),
    "ceiling_share_1gb": (">=", 0.94), "ceiling_share_512mb": (">=", 0.93), "ceiling_share_256mb": (">=", 0.92),
    "ceiling_share_128mb": (">=", 0.86), "ceiling_share_64mb": (">=", 0.80), "ceiling_share_32mb": (">=", 0.70),
    "us_1x4096": ("<=", 7.5), "page16_vs_page64_max": ("<=", 1.12), "nhd_vs_hnd_max": ("<=", 1.05),
    "qlen8_gqa4": ("<=", 1.10), "qlen8_gqa8": ("<=", 1.25), "mixed_vs_uniform": ("<=", 1.10),
}  # fmt: skip
"""What each figure is held against."""

RESAMPLES = 2000
SEED = 20261129

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours at one spot beside the best peer and the ceiling; None where there is none that counts.

    Attributes:
        ours: the row of `mjolnir`, head-major.
        peer: the fastest peer's row.
        ratio, low, high: the peer's time over ours, and its 95 % interval.
        ceiling: the ceiling's row, void ones left out.
    """

    ours: Row
    peer: Row | None
    ratio: float | None
    low: float | None
    high: float | None
    ceiling: Row | None

    @property
    def below(self) -> bool:
        """Whether the whole interval lies below 1: the peer is faster beyond doubt."""
        return self.high is not None and self.high < 1

    @property
    def share(self) -> float | None:
        """The ceiling's time over ours."""
        return self.ceiling["us"] / self.ours["us"] if self.ceiling else None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        names = ("heads_q", "heads_kv", "head_dim", "page_size", "q_len", "lengths", "bytes", "us")
        rounded = {name: getattr(self, name) for name in ("ratio", "low", "high", "share")}
        return {
            **{name: self.ours[name] for name in names},
            "best_peer": self.peer["kernel"] if self.peer else None,
            "peer_us": self.peer["us"] if self.peer else None,
            **{name: None if value is None else round(value, 4) for name, value in rounded.items()},
        }


def comparisons(rows: Sequence[Row]) -> dict[Key, Comparison]:
    """Every spot at which `mjolnir` has a right result, by `spot_of`, in the order of the rows."""
    return {
        spot_of(row): _compare(row, [other for other in rows if spot_of(other) == spot_of(row)])
        for row in rows
        if _is_ours(row, "mjolnir", HEAD_MAJOR) and not is_wrong(row)
    }


def _compare(ours: Row, rows: Sequence[Row]) -> Comparison:
    peers = [row for row in rows if row["kernel"] in PEERS and not is_wrong(row)]
    ceilings = [row for row in rows if row["kernel"] == "ceiling" and not is_void(row)]
    peer = min(peers, key=lambda row: row["us"], default=None)
    ratio, low, high = None, None, None
    if peer:
        ratio = peer["us"] / ours["us"]
        low, high = interval(peer["samples"], ours["samples"])
    return Comparison(ours, peer, ratio, low, high, ceilings[0] if ceilings else None)


def interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of the ratio of medians over resamples of both; the same for the same samples."""
    return _interval(tuple(above), tuple(below))


@cache
def _interval(above: tuple[float, ...], below: tuple[float, ...]) -> tuple[float, float]:
    generator = np.random.default_rng(SEED)
    medians = [
        np.median(generator.choice(np.asarray(samples, dtype=float), (RESAMPLES, len(samples))), axis=1)
        for samples in (above, below)
    ]
    low, high = np.quantile(medians[0] / medians[1], (0.025, 0.975))
    return float(low), float(high)


def is_void(row: Row) -> bool:
    """Whether a ceiling is too slow to be one."""
    return bool(row["us"] > CEILING_SLACK * (CEILING_US + row["bytes"] / CEILING_BYTES_PER_US))


def _is_ours(row: Row, kernel: str, layout: str, timing: str = GRAPH) -> bool:
    return bool(row["kernel"] == kernel and row["layout"] == layout and row["timing"] == timing)


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """Every figure that the rows allow, by name; one that lacks a row, or rests on a void ceiling, is absent."""
    compared = comparisons(rows)
    eight = [_at(Spot(MAIN, (context,) * batch)) for batch, context in EIGHT]
    found: dict[str, float | None] = {}
    if all(key in compared and compared[key].ratio is not None for key in eight):
        found["geomean_vs_best_peer"] = geometric_mean([_number(compared[key].ratio) for key in eight])
    found |= _worst(compared.values())
    for name, size in SIZES.items():
        found[name] = _share(compared, size)
    found["us_1x4096"] = _served(rows)
    found |= _ratios(rows)
    return {name: round(value, 4) for name, value in found.items() if value is not None}


def _worst(compared: Iterable[Comparison]) -> dict[str, float | None]:
    measured = [item for item in compared if item.ratio is not None]
    if not measured:
        return {}
    worst = min(measured, key=lambda item: _number(item.ratio))
    return {
        "worst_vs_best_peer": worst.ratio,
        "worst_vs_best_peer_high": worst.high,
        "points_compared": len(measured),
        "points_below_best_peer": sum(item.below for item in measured),
    }


def _share(compared: Mapping[Key, Comparison], size: int) -> float | None:
    """The worst share among the points of the main geometry whose bytes are nearest to `size`."""
    main = _at(Spot(MAIN, (1,)))[:-1]
    near = [item for key, item in compared.items() if key[:-1] == main and _far(item, size) <= NEAR]
    nearest = [item for item in near if _far(item, size) == min(_far(other, size) for other in near)]
    shares = [item.share for item in nearest]
    return None if None in shares else min(map(_number, shares), default=None)


def _far(item: Comparison, size: int) -> float:
    return float(max(item.ours["bytes"] / size, size / item.ours["bytes"]))


def _served(rows: Sequence[Row]) -> float | None:
    key = _at(Spot(MAIN, (4096,)))
    served = [row for row in rows if spot_of(row) == key and _is_ours(row, "mjolnir", HEAD_MAJOR, CHAIN)]
    return next((float(row["us"]) for row in served if not is_wrong(row)), None)


def _ratios(rows: Sequence[Row]) -> dict[str, float | None]:
    """Ours against ours: pages, strides, lengths of query, mixed lengths."""
    right = [row for row in rows if not is_wrong(row)]
    head = {spot_of(row): float(row["us"]) for row in right if _is_ours(row, "mjolnir", HEAD_MAJOR)}
    token = {spot_of(row): float(row["us"]) for row in right if _is_ours(row, "mjolnir", TOKEN_MAJOR)}
    main = [_at(Spot(MAIN, (context,) * batch)) for batch, context in EIGHT]
    small = [_changed(key, page_size=16) for key in main]
    batch, context = LONG_QUERIES[1]
    one = {gqa: _changed(_at(Spot(MAIN, (context,) * batch)), heads_q=8 * gqa) for gqa in (4, 8)}
    pages = [head[few] / head[many] for few, many in zip(small, main, strict=True) if few in head and many in head]
    strides = [us / head[key] for key, us in token.items() if key in head]
    return {
        "page16_vs_page64_max": max(pages, default=None),
        "nhd_vs_hnd_max": max(strides, default=None),
        **{f"qlen8_gqa{gqa}": _over(head, _changed(key, q_len=8), key) for gqa, key in one.items()},
        "mixed_vs_uniform": _over(head, _at(Spot(MAIN, MIXED)), _at(Spot(MAIN, UNIFORM))),
    }


def _over(times: Mapping[Key, float], above: Key, below: Key) -> float | None:
    return times[above] / times[below] if above in times and below in times else None


def _at(spot: Spot) -> Key:
    facts = {**spot.geometry.as_dict(), "lengths": spot.lengths}
    return tuple(facts[name] for name in SPOT)


def _changed(key: Key, **values: int) -> Key:
    return tuple(values.get(name, value) for name, value in zip(SPOT, key, strict=True))


def _number(value: float | None) -> float:
    assert value is not None
    return value


def problems(rows: Sequence[Row]) -> list[str]:
    """What a reader of the rows has to know: wrong results, void ceilings, points at which a peer is faster."""
    told = [f"{name_of(row)}: the result is wrong (error {row['error']})" for row in rows if is_wrong(row)]
    for row in rows:
        if row["kernel"] == "ceiling" and is_void(row):
            line = CEILING_US + row["bytes"] / CEILING_BYTES_PER_US
            told.append(f"{name_of(row)}: void, {row['us']:.1f} us is over 3 % slower than {line:.1f} us")
    told += [
        f"{name_of(item.ours)}: {item.peer['kernel']} is faster, ratio {item.ratio:.3f} (at most {item.high:.3f})"
        for item in comparisons(rows).values()
        if item.below and item.peer
    ]
    hashes = sorted({row["kernel_hash"] for row in rows if "kernel_hash" in row})
    if len(hashes) > 1:
        told.append(f"the rows of mjolnir are of {len(hashes)} kernels: {', '.join(hashes)}")
    return told
