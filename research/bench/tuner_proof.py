"""`mjolnir bench tuner --part proof`: false promotions, and the power to prove true gains."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mjolnir.research.answer import Answer
from mjolnir.research.bench import tuner_nulls, tuner_power
from mjolnir.research.bench.tuner_nulls import NULLS, Nulls
from mjolnir.research.bench.tuner_power import power
from mjolnir.tuner import alpha, eprocess, recording
from mjolnir.tuner.options import Options

SCHEMA = "mjolnir.bench/1"
NAME = "tuner-proof.json"
CAMPAIGNS, POWER_CAMPAIGNS = 1000, 50
GAINS = (0.015, 0.02, 0.03, 0.05)
FIGURE_GAIN = 0.03


def proof(out: Path, campaigns: int = CAMPAIGNS, power_campaigns: int = POWER_CAMPAIGNS) -> Answer:
    """Take the figures and write `tuner-proof.json` in the folder `out`.

    Args:
        out: the folder.
        campaigns: campaigns of each null.
        power_campaigns: campaigns at each gain.
    """
    source, options = recording.packaged(recording.packaged_names()[0]), Options()
    nulls = Nulls(source, options)
    promoted = {name: nulls.promoted(name, campaigns) for name in NULLS}
    powers = {gain: power(source, gain, power_campaigns) for gain in GAINS}
    per_1000 = {name: {test: 1000 * share for test, share in found.items()} for name, found in promoted.items()}
    figures = {
        "false_promotions_per_1000": max(found["e_process"] for found in per_1000.values()),
        "naive_false_promotions_per_1000": per_1000["margin"]["pairs"],
        "power_3pct": round(powers[FIGURE_GAIN].promoted, 4),
    }
    data = {
        "schema": SCHEMA,
        "bench": "tuner-proof",
        "figures": figures,
        "false_promotions_per_1000": per_1000,
        "power": {f"{gain:g}": asdict(found) for gain, found in powers.items()},
        "taken": _taken(source, options, campaigns, power_campaigns),
    }
    path = out / NAME
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    lines = [f"{name:32} {value:>8g}" for name, value in figures.items()]
    return Answer(data, "\n".join([*lines, f"written to {path}"]))


def _taken(source: recording.Recording, options: Options, campaigns: int, power_campaigns: int) -> dict[str, Any]:
    buckets = len(source.workload.buckets)
    rules = alpha.rules_of(options, buckets, 1)
    chance = eprocess.chance(0.5, rules)
    return {
        "command": "mjolnir bench tuner --part proof",
        "recording": source.name,
        "campaigns": {"each null": campaigns, "each gain": power_campaigns},
        "options": options.as_dict(),
        "rules": asdict(rules),
        "exact": {"a candidate at the limit of one claim": chance, "a campaign": alpha.TESTED * buckets * chance},
        "how": {
            "nulls": " ".join((tuner_nulls.__doc__ or "").split()),
            "power": " ".join((tuner_power.__doc__ or "").split()),
        },
    }
