"""What was found, bucket by bucket: the winner with its intervals, its times, its share of the ceiling, its price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mjolnir.research.findings import bucket_cells
from mjolnir.research.naming import Names, counted, interval
from mjolnir.research.report import charts
from mjolnir.research.report.times import CEILINGS, PointTimes, of_bucket

BASELINES = {"ratio_default": "against the built-in default", "ratio_incumbent": "against what is in force"}
"""What a winner is held against: the certificate's name, and ours."""

Record = Mapping[str, Any]
Bucket = Mapping[str, Any]


def headline(summary: Mapping[str, Any]) -> str:
    """The outcome in one sentence."""
    buckets = summary["buckets"]
    if not any(bucket["promotion"] for bucket in buckets):
        return "No batch bucket was decided."
    ratios = [ratio["value"] for bucket in buckets if _promoted(bucket) for ratio in _ratios(bucket, "ratio_default")]
    if not ratios:
        return "No setting was proven faster than the built-in default or what is in force."
    low, high = f"{1 / max(ratios) - 1:.1%}", f"{1 / min(ratios) - 1:.1%}"
    span = low if low == high else f"{low} to {high}"
    return f"Proven faster in {len(ratios)} of {counted(len(buckets), 'batch bucket')}: by {span}, against the default."


def spans(summary: Mapping[str, Any]) -> list[charts.Span]:
    """The intervals of all winners: one a bucket against each baseline, which decides its colour."""
    return [
        charts.Span(f"batch {bucket['bucket']}", ratio["low"], ratio["value"], ratio["high"], color)
        for bucket in summary["buckets"]
        for color, baseline in enumerate(BASELINES)
        for ratio in _ratios(bucket, baseline)
    ]


def chart(summary: Mapping[str, Any]) -> str:
    """The intervals as a drawing, the colours explained where there are two; "" where nothing was measured again."""
    found = spans(summary)
    drawn = charts.intervals(
        "time of each winner over its baselines", found, same=1.0, label="{:.2f}".format, x_title="time / baseline"
    )
    return drawn + charts.legend(BASELINES.values()) if any(span.color for span in found) else drawn


def cards(summary: Mapping[str, Any], records: Sequence[Record]) -> list[dict[str, Any]]:
    """One card a bucket."""
    return [_card(bucket, summary, of_bucket(summary, records, bucket)) for bucket in summary["buckets"]]


def ceiling_words(summary: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> str:
    """What the share of the read ceiling is a share of, and how much of it the winners reach."""
    device = summary["device"]["name"]
    if device not in CEILINGS:
        return f"The read ceiling of {device} has not been measured, so no share of it is given."
    start, rate = CEILINGS[device]
    line = f"Ceiling: on {device} a kernel that only reads takes {start:g} us + bytes / {rate / 1e6:g} TB/s at best"
    shares = [share for card in made for share in card["shares"]]
    if not shares:
        return f"{line}."
    return f"{line}; the settings below take {min(shares):.0%} to {max(shares):.0%} of that speed, by point."


def _card(bucket: Bucket, summary: Mapping[str, Any], times: Sequence[PointTimes]) -> dict[str, Any]:
    batch, setting, found, proven, outcome = bucket_cells(bucket, Names.of(summary))
    promotion = bucket["promotion"] or {}
    against = (promotion.get("certificate") or {}).get("ratio_incumbent")
    return {
        "batch": batch,
        "points": ", ".join(bucket["points"]),
        "setting": setting,
        "found": found,
        "proven": proven,
        "incumbent": interval(against) if against else "no row" if not bucket["incumbent"] else "-",
        "outcome": outcome,
        "reason": promotion.get("reason", ""),
        "promoted": _promoted(bucket),
        "price": _price(promotion, times),
        "times": [_row(time) for time in times],
        "timed_incumbent": any(time.incumbent for time in times),
        "shares": [time.share for time in times if time.share],
    }


def _row(time: PointTimes) -> dict[str, str]:
    return {
        "name": time.name,
        "read": _bytes(time.read),
        "default": _us(time.default),
        "incumbent": _us(time.incumbent),
        "setting": _us(time.setting),
        "share": f"{time.share:.0%}" if time.share else "-",
    }


def _price(promotion: Mapping[str, Any], times: Sequence[PointTimes]) -> str:
    """What one setting for all lengths costs; "" for a bucket of one point."""
    prices = {time.name: time.price for time in times if time.price is not None}
    if len(prices) < 2:
        return ""
    worst = max(prices, key=lambda name: prices[name])
    weighted = (promotion.get("price") or {}).get("weighted")
    mean = "" if weighted is None else f"{weighted:.1%}, and "
    return f"{mean}at most {prices[worst]:.1%} (at {worst})"


def _ratios(bucket: Bucket, baseline: str) -> Iterator[Mapping[str, float]]:
    """The ratio to a baseline, where it has an interval: that takes more than one instance."""
    certificate = (bucket["promotion"] or {}).get("certificate") or {}
    ratio = certificate.get(baseline)
    if isinstance(ratio, Mapping) and certificate.get("instances") != 1:
        yield ratio


def _promoted(bucket: Bucket) -> bool:
    return (bucket["promotion"] or {}).get("decision") == "promote"


def _us(time: float | None) -> str:
    return "-" if time is None else f"{time:.1f}" if time < 100 else f"{time:.0f}"


def _bytes(count: int) -> str:
    """Bytes in words that stay on one line."""
    size, unit = (count / 2**30, "GiB") if count >= 2**30 else (count / 2**20, "MiB")
    return f"{size:.3g}\N{NO-BREAK SPACE}{unit}"
