"""Times by point: what the decided setting, the default and the row in force take, and how near the read ceiling.

They come from the instances that the decision rests on: those of the confirmation, else those of the shoot-out. Times
of different windows are information, never evidence; the evidence is the certificate's interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mjolnir.kernel.geometry import Geometry
from mjolnir.research.summary import bodies
from mjolnir.tuner.workload import Workload

CEILINGS: Mapping[str, tuple[float, float]] = {"NVIDIA H200": (2.4, 4.68e6)}
"""By device: microseconds, and bytes per microsecond. A kernel that only reads takes us + bytes / rate at best; the
line was fitted to streams of 16 MB to 4 GB and is within 1.2 % of each."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PointTimes:
    """One point of a bucket.

    Attributes:
        name: of the point, batch x context.
        read: bytes of K and V that a launch reads.
        setting, default, incumbent: microseconds; None where it was not timed beside the others.
        ceiling: microseconds of a kernel that only reads; None where the device's line is not known.
        price: what the setting costs against the fastest arm of the shoot-out at this point, a fraction; None without.
    """

    name: str
    read: int
    setting: float | None
    default: float | None
    incumbent: float | None
    ceiling: float | None
    price: float | None

    @property
    def share(self) -> float | None:
        """The ceiling's time over the setting's: 1 is as fast as the card reads."""
        return self.ceiling / self.setting if self.ceiling and self.setting else None


def of_bucket(
    summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], bucket: Mapping[str, Any]
) -> list[PointTimes]:
    """The times of a bucket's points; empty where nothing was decided.

    Args:
        summary: of the campaign.
        records: of the campaign.
        bucket: the bucket's part of the summary.
    """
    promotion = bucket["promotion"]
    if not promotion:
        return []
    points = Workload.from_dict(summary["workload"]).points
    per_token = Geometry.from_dict(summary["geometry"]).kv_bytes_per_token
    shots = _held(records, promotion, "shootout")
    held = _held(records, promotion, "confirmation") or shots
    found = []
    for number in (place for place, point in enumerate(points) if point.bucket == bucket["bucket"]):
        read = per_token * sum(points[number].contexts)
        setting = _time(held, number, [body["arms"].index(promotion["setting"]) for body in held])
        default, incumbent = (_time(held, number, [body[arm] for body in held]) for arm in ("default", "incumbent"))
        price = _price(promotion, shots, points[number].name, number)
        limit = ceiling(summary["device"]["name"], read)
        found.append(PointTimes(points[number].name, read, setting, default, incumbent, limit, price))
    return found


def ceiling(device: str, read: int) -> float | None:
    """Microseconds that a kernel takes at best to read `read` bytes; None for a device whose line is not known."""
    if device not in CEILINGS:
        return None
    start, rate = CEILINGS[device]
    return start + read / rate


def _held(records: Sequence[Mapping[str, Any]], promotion: Body, kind: str) -> list[Body]:
    """The measured instances of a kind that hold the decided setting."""
    return [
        body
        for body in bodies(records, kind)
        if body["bucket"] == promotion["bucket"]
        and body["epoch"] == promotion["epoch"]
        and body["status"] == "measured"
        and promotion["setting"] in body["arms"]
    ]


def _time(held: Sequence[Body], point: int, arms: Sequence[int | None]) -> float | None:
    """Microseconds of an arm: the median over instances of the median over rounds."""
    pairs = [(body, arm) for body, arm in zip(held, arms, strict=True) if arm is not None and point in body["points"]]
    times = [median(body["samples"][body["points"].index(point)][arm]) for body, arm in pairs]
    return median(times) / 1e3 if times else None


def _price(promotion: Body, shots: Sequence[Body], name: str, point: int) -> float | None:
    """What the decision says; where it says nothing, from the arms of the shoot-out itself."""
    said: Mapping[str, float] = (promotion.get("price") or {}).get("points", {})
    if said or not shots:
        return said.get(name)
    arms = [_time(shots, point, [place] * len(shots)) for place in range(len(shots[0]["arms"]))]
    own = _time(shots, point, [body["arms"].index(promotion["setting"]) for body in shots])
    known = [time for time in arms if time]
    return own / min(known) - 1 if own and known else None
