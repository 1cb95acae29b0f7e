"""What the plots show, as plain numbers: best so far over the campaign, and how each knob's values did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.kernel.knobs import KNOBS

Trial = Mapping[str, Any]


def convergence(
    trials: Sequence[Trial], buckets: Sequence[int], axis: str = "trial"
) -> dict[int, list[tuple[float, float]]]:
    """Best ratio to the built-in default so far, for each bucket.

    Args:
        trials: trial bodies in order.
        buckets: the buckets wanted.
        axis: "trial" (the number) or "clock" (minutes since the campaign began).

    Returns:
        Points (x, best ratio so far) for each bucket, from its first measured trial to the last trial of all.
    """
    lines: dict[int, list[tuple[float, float]]] = {bucket: [] for bucket in buckets}
    for trial in trials:
        x = float(trial["trial"]) if axis == "trial" else round(float(trial["clock"]) / 60, 4)
        for bucket, line in lines.items():
            ratio = (trial.get("ratios") or {}).get(str(bucket))
            best = line[-1][1] if line else None
            if ratio is not None and (best is None or ratio < best):
                best = float(ratio)
            if best is not None:
                line.append((x, best))
    return {bucket: line for bucket, line in lines.items() if line}


def knob_groups(trials: Sequence[Trial]) -> dict[str, dict[str, list[float]]]:
    """For each knob that varied, the overall ratios of the measured trials by the knob's resolved value, ascending."""
    measured = [trial for trial in trials if trial.get("ratio") is not None]
    groups: dict[str, dict[str, list[float]]] = {}
    for knob in KNOBS:
        by_value: dict[int, list[float]] = {}
        for trial in measured:
            value = (trial.get("resolved") or trial["setting"]).get(knob.name)
            if value is not None:
                by_value.setdefault(value, []).append(float(trial["ratio"]))
        if len(by_value) > 1:
            groups[knob.name] = {str(value): by_value[value] for value in sorted(by_value)}
    return groups
