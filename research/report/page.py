"""The report page: one self-contained HTML file that depends on the records alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mjolnir.research import effects
from mjolnir.research.findings import LEGEND, asked, bucket_cells, tried
from mjolnir.research.naming import Names
from mjolnir.research.promote import interval
from mjolnir.research.report import charts, series
from mjolnir.research.summary import bodies, current

FAILURES_SHOWN = 12


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
    return engine.get_template("page.html").render(
        summary=summary,
        asked=asked(summary),
        tried=tried(summary),
        legend=LEGEND,
        buckets=[_bucket(bucket, summary) for bucket in summary["buckets"]],
        by_trial=_lines(trials, buckets, "trial", "trial"),
        by_minute=_lines(trials, buckets, "clock", "minute"),
        knobs={knob: charts.dots(knob, groups) for knob, groups in series.knob_groups(trials).items()},
        effects=effects.page_rows(summary),
        effects_legend=effects.LEGEND,
        failures=_failures(trials, summary),
        noise=_noise(summary),
        rows=[
            {"batch": row["key"]["batch"], "key": _pairs(row["key"]), "value": _pairs(row["value"]), "json": _json(row)}
            for row in rows
        ],
        environments=[(writer, _json(entry)) for writer, entry in environments.items()],
        commands=_commands(records),
    )


def _lines(trials: Sequence[Mapping[str, Any]], buckets: Sequence[int], axis: str, title: str) -> str:
    lines = series.convergence(trials, buckets, axis)
    named = {f"batch {bucket}": line for bucket, line in lines.items()}
    return charts.lines(named, x_title=title, y_title="best time so far / built-in default")


def _bucket(bucket: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    batch, setting, found, proven, outcome = bucket_cells(bucket, Names.of(summary))
    promotion = bucket["promotion"] or {}
    against = (promotion.get("certificate") or {}).get("ratio_incumbent")
    return {
        "batch": batch,
        "points": ", ".join(bucket["points"]),
        "setting": setting,
        "found": found,
        "proven": proven,
        "incumbent": interval(against) if against else "-",
        "outcome": outcome,
        "reason": promotion.get("reason", ""),
        "promoted": promotion.get("decision") == "promote",
    }


def _failures(trials: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = Names.of(summary)
    failed = [trial for trial in trials if trial["status"] != "measured"]
    return [
        {
            "trial": trial["trial"],
            "status": trial["status"],
            "reason": trial["reason"],
            "setting": names(trial["setting"]),
        }
        for trial in failed[:FAILURES_SHOWN]
    ]


def _noise(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    from mjolnir.tuner.workload import Workload

    points = Workload.from_dict(summary["workload"]).points
    return [(point.name, f"{floor:.2%}") for point, floor in zip(points, summary["noise_floor"], strict=True)]


def _commands(records: Sequence[Mapping[str, Any]]) -> list[str]:
    import shlex

    return [shlex.join(body.get("command") or ()) for body in bodies(records, "campaign")]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
