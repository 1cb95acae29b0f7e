"""The report page: one self-contained HTML file that depends on the records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.research import effects
from mjolnir.research.findings import LEGEND, asked, device_lines, tried
from mjolnir.research.naming import Names
from mjolnir.research.plain import plain
from mjolnir.research.report import charts, knobs, series, winners
from mjolnir.research.report.windows import lines, windows
from mjolnir.research.summary import bodies, current

FAILURES_SHOWN = 12
"""Failed trials of one kind that the page names; the records have all."""

REASONS_SHOWN = 3

FACTS = ("driver", "cuda", "torch", "dsl", "engine", "kernel_hash")
"""What the bench says of itself that the page shows at once."""


def render(
    summary: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    environments: Mapping[str, Mapping[str, Any]],
) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    engine = Environment(
        loader=PackageLoader("mjolnir.research", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    trials = current(bodies(records, "trial"), summary["epoch"])
    buckets = [bucket["bucket"] for bucket in summary["buckets"]]
    cards = winners.cards(summary, records)
    text = engine.get_template("page.html").render(
        summary=summary,
        asked=asked(summary),
        tried=tried(summary),
        devices=[line.strip() for line in device_lines(summary)],
        legend=LEGEND,
        headline=winners.headline(summary),
        winners=winners.chart(summary),
        ceiling=winners.ceiling_words(summary, cards),
        buckets=cards,
        by_trial=_lines(trials, buckets, "trial", "trial"),
        by_minute=_lines(trials, buckets, "clock", "minute"),
        knobs=knobs.cards(summary, trials),
        effects_legend=effects.LEGEND,
        failures=_failures(bodies(records, "trial"), Names.of(summary)),
        noise=_noise(summary),
        remarks=[(body.get("about") or "the campaign", body.get("text", "")) for body in bodies(records, "note")],
        windows=lines(windows(records, summary["epoch"])),
        rows=[
            {"batch": row["key"]["batch"], "key": _pairs(row["key"]), "value": _pairs(row["value"]), "json": _json(row)}
            for row in rows
        ],
        environments=[(writer, _facts(entry), _json(entry)) for writer, entry in environments.items()],
        commands=_commands(records),
    )
    return plain(text)


def _lines(trials: Sequence[Mapping[str, Any]], buckets: Sequence[int], axis: str, title: str) -> str:
    lines = series.convergence(trials, buckets, axis)
    named = {f"batch {bucket}": line for bucket, line in lines.items()}
    return charts.lines(named, x_title=title, y_title="best time so far / built-in default")


def _failures(trials: Sequence[Mapping[str, Any]], names: Names) -> list[dict[str, Any]]:
    """The trials that were not measured, by kind, the most frequent first: how many, why, and the first of them."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for trial in trials:
        if trial["status"] != "measured":
            kinds.setdefault(trial["status"], []).append(trial)
    return [
        {
            "kind": kind,
            "count": len(failed),
            "share": f"{len(failed) / len(trials):.1%}",
            "reasons": Counter(trial["reason"] for trial in failed if trial["reason"]).most_common(REASONS_SHOWN),
            "trials": [
                {"trial": trial["trial"], "setting": names(trial["setting"]), "reason": trial["reason"]}
                for trial in failed[:FAILURES_SHOWN]
            ],
        }
        for kind, failed in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _noise(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    from mjolnir.tuner.workload import Workload

    points = Workload.from_dict(summary["workload"]).points
    return [(point.name, f"{floor:.2%}") for point, floor in zip(points, summary["noise_floor"], strict=True)]


def _commands(records: Sequence[Mapping[str, Any]]) -> list[str]:
    import shlex

    return [shlex.join(body.get("command") or ()) for body in bodies(records, "campaign")]


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader wants to know of a process first."""
    device, bench = environment.get("device") or {}, environment.get("bench") or {}
    card = " ".join(str(device[name]) for name in ("name", "arch", "mig") if device.get(name))
    found = {"device": f"{card}, {device['sm_count']} SMs" if device.get("sm_count") else card}
    found |= {name.replace("_", " "): str(bench[name]) for name in FACTS if bench.get(name)}
    found |= {name: str(environment[name]) for name in ("python", "system") if environment.get(name)}
    found["packages"] = ", ".join(f"{name} {version}" for name, version in (environment.get("packages") or {}).items())
    return [(name, text) for name, text in found.items() if text]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
