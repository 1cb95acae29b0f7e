"""Source experiments as they are told: the list of a tag, one in full, and why it came out so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research.naming import counted, interval
from mjolnir.research.plain import plain
from mjolnir.research.source.answers import word
from mjolnir.research.story import Part
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Body = Mapping[str, Any]

LEGEND = (
    "Value is the change's time over that of its base, over the whole workload: below 1 is faster. Each kept change is "
    "the base of those after it."
)


def brief(trials: Sequence[Body]) -> list[dict[str, Any]]:
    """What a summary keeps of each experiment."""
    return [
        {
            "trial": body["trial"],
            "outcome": word(body),
            "value": body["ratio"],
            "commit": body["source"]["commit"],
            "base": body["source"]["base"],
            "message": body["source"]["message"],
        }
        for body in trials
        if "source" in body
    ]


def asked(summary: Mapping[str, Any]) -> list[str]:
    """What the experiments are about, as sentences."""
    kept = [entry["value"] for entry in summary["experiments"] if entry["outcome"] == "keep"]
    product = 1.0
    for value in kept:
        product *= value
    gained = f"; together they take {product:.4f} of the first base's time" if len(kept) > 1 else ""
    return [
        f"Source experiments {summary['tag']}",
        f"Asked: changes that make {Geometry.from_dict(summary['geometry'])} faster on {summary['device']['name']}.",
        f"Workload {summary['workload']['name']}: {len(summary['workload']['points'])} points.",
        f"{counted(len(summary['experiments']), 'experiment')}, {len(kept)} kept{gained}.",
    ]


def table(experiments: Sequence[Mapping[str, Any]]) -> Table:
    """One line an experiment."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for title in ("trial", "commit", "value", "outcome", "what and why"):
        made.add_column(title, overflow="fold")
    for entry in experiments:
        value = "-" if entry["value"] is None else f"{entry['value']:.4f}"
        first = plain(entry["message"]).splitlines()[0]
        made.add_row(str(entry["trial"]), entry["commit"][:12], value, entry["outcome"], first)
    return made


def view(record: Mapping[str, Any]) -> RenderableType:
    """One experiment in full: outcome, message, proof, diff."""
    body = record["body"]
    source = body["source"]
    lines = [f"experiment {body['trial']} of {record['tag']}: {word(body)}", "", plain(source["message"]), ""]
    lines += _facts(body)
    lines += [f"record    {record['hash']}", f"in git    {record['commit']}", "", plain(source["diff"]).rstrip()]
    if body["log"]:
        lines += ["", "log:", *(f"  {line}" for line in plain(body["log"]).splitlines())]
    return "\n".join(lines)


def _facts(body: Body) -> list[str]:
    source = body["source"]
    proof = source["proof"]
    lines = [f"base      {source['base']}", f"commit    {source['commit']}"]
    if body["ratio"] is not None:
        lines.append(f"value     {interval(proof['interval'])} of the base's time, over the whole workload")
    lines.append(plain(f"because   {proof['reason']}"))
    if proof["evidence"] is not None:
        lines.append(
            f"proof     evidence {proof['evidence']:.3g} of {proof['threshold']:.3g} in {proof['processes']} pairs of "
            f"processes, experiment {source['attempt']} on this base"
        )
    return [*lines, *(f"{arm['source']:9} {_knobs(arm['knobs'])}" for arm in source["arms"])]


def _knobs(knobs: Mapping[str, Mapping[str, int]]) -> str:
    """The knobs of an arm; buckets with the same ones together."""
    found: dict[str, list[str]] = {}
    for bucket, values in knobs.items():
        found.setdefault(str(Setting.from_dict(values)), []).append(bucket)
    return "; ".join(f"batch {', '.join(buckets)}: {setting}" for setting, buckets in found.items())


def why(tag: str, body: Body, campaign: Body) -> list[Part]:
    """The story of an experiment."""
    points = Workload.from_dict(campaign["workload"]).points
    times = [f"{point.name}: {ratio:.4f}" for point, ratio in zip(points, body["point_ratios"], strict=False)]
    diff = plain(body["source"]["diff"]).splitlines()
    parts = [
        Part(f"Experiment {body['trial']} of {tag}: {word(body)}", (plain(body["source"]["message"]), *_facts(body))),
        Part("Time over the base's, median over pairs of processes", tuple(times)),
        Part("What was changed", tuple(diff)),
    ]
    return [part for part in parts if part.lines]
