"""What a campaign found, for a reader who was not there: asked, tried, found, proven, and where everything is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.geometry import Geometry
from mjolnir.research import effects
from mjolnir.research.answer import Answer, Exit, NotWrittenFailure
from mjolnir.research.hints import SCRATCH, command
from mjolnir.research.naming import Names, counted, interval, written
from mjolnir.research.plain import plain
from mjolnir.research.rows import left_out_lines
from mjolnir.research.summary import DECISIONS, summarize
from mjolnir.tuner.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mjolnir.ledger import Ledger
    from mjolnir.research.request import Request
    from mjolnir.tuner.coordinator import Result

LEGEND = (
    "Ratios are time divided by the time of the built-in default in the same window: below 1 is faster. "
    "The setting is the one that was decided on: of those that tie with the fastest, the one that takes the least; the "
    "best so far where nothing was decided. "
    "'found' is the search's own estimate of it, '-' when the search did not try it; 'measured again' is against the "
    "default in fresh processes, with its interval."
)


def findings(
    request: Request,
    ledger: Ledger,
    records: Sequence[Mapping[str, Any]],
    result: Result,
    applied: Answer | NotWrittenFailure | None,
) -> Answer:
    """The answer of a run that has ended, its export made when one was asked for."""
    from rich.console import Group

    summary = summarize(records)
    tag = summary["tag"]
    exported = _export(ledger, tag, request)
    where = _where(ledger, tag, exported)
    data = {
        "tag": tag,
        "reason": result.reason,
        "resumable": result.resumable,
        "summary": summary,
        "written": applied.data if isinstance(applied, Answer) else None,
        "not_written": str(applied) if isinstance(applied, NotWrittenFailure) else None,
        "export": str(exported) if exported else None,
        "ledger": str(ledger.live),
    }
    lines = [*_ending(result, tag, request), *_promotion_lines(summary, applied, ledger, request), *where]
    return Answer(data, Group(overview(summary), "", *lines), _code(result, applied))


def overview(summary: Mapping[str, Any]) -> RenderableType:
    """What was asked, what was tried, and the best of each bucket; or the experiments, where sources were tried."""
    from rich.console import Group

    if "experiments" in summary:
        from mjolnir.research.source import story

        told = [*asked(summary), *tried(summary), *noise_lines(summary)]
        return Group("", *told, "", story.table(summary["experiments"]), "", story.LEGEND)
    head = [*asked(summary), *tried(summary), *noise_lines(summary), *device_lines(summary)]
    tail = [*_reasons(summary), *price_lines(summary), *effect_lines(summary)]
    return Group("", *head, "", bucket_table(summary), "", LEGEND, *tail)


def noise_lines(summary: Mapping[str, Any]) -> list[str]:
    """The noise floor of each point; settings closer than that are ties. Empty where it was not measured."""
    names = [point.name for point in Workload.from_dict(summary["workload"]).points]
    floors = [f"{name} {floor:.1%}" for name, floor in zip(names, summary["noise_floor"], strict=True) if floor]
    return [f"Noise floor: {', '.join(floors)}."] if floors else []


def device_lines(summary: Mapping[str, Any]) -> list[str]:
    """How busy a live search kept its devices, and how far these lie apart; empty for a replay."""
    live = summary.get("live")
    if live is None:
        return []
    idle = "" if live["idle_ms"] is None else f", idle for {live['idle_ms']:.2g} ms between trials"
    lines = [f"Search: {live['trials_per_minute']:.0f} trials/min; device busy {live['busy_share']:.0%} of it{idle}."]
    for name, device in live["devices"].items():
        apart = max(device["offset"].values(), key=abs, default=0.0)
        if len(live["devices"]) > 1:
            lines.append(
                f"  {name}: {device['trials']} trials, busy {device['busy_share']:.0%}; its default differs from the "
                f"first device's by {apart:+.1%} at most."
            )
    if live["lost"]:
        lines.append(f"  Lost with a worker and asked again: {live['lost']}.")
    return lines


def price_lines(summary: Mapping[str, Any]) -> list[str]:
    """What one setting for all context lengths of a bucket costs against the best for each."""
    lines = []
    for bucket in summary["buckets"]:
        price = (bucket["promotion"] or {}).get("price") or {"points": {}}
        if len(price["points"]) > 1:
            worst = max(price["points"], key=lambda name: price["points"][name])
            lines.append(
                f"Batch {bucket['bucket']}: one setting for all lengths costs {price['weighted']:.1%} against the best "
                f"for each, at most {price['points'][worst]:.1%} (at {worst})."
            )
    return ["", *lines] if lines else []


def effect_lines(summary: Mapping[str, Any]) -> list[RenderableType]:
    """What each knob does, also when nothing was gained; empty where no knob varied."""
    table = effects.table(summary)
    return ["", table, "", effects.LEGEND] if table else []


def asked(summary: Mapping[str, Any]) -> list[str]:
    """What the campaign was to find out, as sentences."""
    if "experiments" in summary:
        from mjolnir.research.source import story

        return story.asked(summary)
    device, workload = summary["device"], summary["workload"]
    origin = f" (replay of the recording {summary['recording']})" if summary["simulated"] else ""
    layout = f"{summary['placement']['layout']}, K and V {summary['placement']['kv']}"
    points = len(workload["points"])
    pins = " ".join(f"{name}={value}" for name, value in summary["options"]["pins"].items())
    held = [f"Held: {pins}; the default and what is in force are compared with all the same."] if pins else []
    return [
        f"Campaign {summary['tag']}{origin}",
        f"Asked: the fastest knobs for {Geometry.from_dict(summary['geometry'])} ({layout}) on {device['name']}.",
        f"Workload {workload['name']}: {points} points in {len(summary['buckets'])} batch buckets.",
        *held,
    ]


def tried(summary: Mapping[str, Any]) -> list[str]:
    """What the campaign did, as sentences."""
    trials, canaries = summary["trials"], summary["canaries"]
    statuses = ", ".join(f"{count} {status}" for status, count in trials["status"].items()) or "none"
    clock = " of recorded time" if summary["simulated"] else ""
    lines = [f"Tried: {counted(trials['total'], 'trial')} in {summary['seconds'] / 60:.1f} min{clock}: {statuses}."]
    lines += proposal_lines(summary)
    if canaries["tried"]:
        lines.append(f"Gate: {canaries['rejected']} of {canaries['tried']} deliberately wrong kernels were rejected.")
    if floor := [value for value in summary["noise_floor"] if value]:
        lines.append(f"Noise: the default against itself differs by {min(floor):.1%} to {max(floor):.1%}, by point.")
    return lines


def proposal_lines(summary: Mapping[str, Any]) -> list[str]:
    """How many proposals of an external command failed; empty for other proposers."""
    proposals = summary.get("proposals")
    if proposals is None:
        return []
    line = f"Proposals: {proposals['failed']} of {proposals['asked']} of the external command failed"
    if first := proposals["first"]:
        line += f" and were replaced; the first, of trial {first['trial']}: {plain(first['note'])}"
    return [f"{line}."]


def bucket_table(summary: Mapping[str, Any]) -> Table:
    """One line a bucket: the setting that was decided on, its estimate, what was measured again, and the outcome."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    setting = "setting (where it differs from the default)"
    for title in ("batch", setting, "found", "measured again [interval]", "outcome"):
        table.add_column(title, overflow="fold")
    for bucket in summary["buckets"]:
        table.add_row(*bucket_cells(bucket, Names.of(summary)))
    return table


def bucket_cells(bucket: Mapping[str, Any], names: Names) -> tuple[str, str, str, str, str]:
    """The cells of one bucket's line."""
    best, promotion = bucket["best"] or {}, bucket["promotion"] or {}
    decided = promotion or {"setting": best.get("setting"), "certificate": {}}
    found = bucket["found"] if promotion else best.get("ratio")
    certificate = decided["certificate"]
    return (
        str(bucket["bucket"]),
        names(decided["setting"]) if decided["setting"] else "-",
        f"{found:.3f}" if found else "-",
        _measured_again(certificate),
        outcome(bucket, names),
    )


def outcome(bucket: Mapping[str, Any], names: Names) -> str:
    """What became of a bucket, in words."""
    promotion, incumbent = bucket["promotion"], bucket["incumbent"]
    if not promotion:
        return "not decided"
    stays = promotion["decision"] == "not-proven" and incumbent and names(promotion["setting"]) == names(incumbent)
    return "what is in force stays" if stays else DECISIONS[promotion["decision"]]


def _measured_again(certificate: Mapping[str, Any]) -> str:
    """A certificate's ratio to the default; an interval needs more than one instance."""
    ratio, instances = certificate.get("ratio_default"), certificate.get("instances")
    if not ratio:
        return "-"
    if instances == 1:
        return f"{ratio['value']:.3f} in 1 instance"
    return interval(ratio)


def _reasons(summary: Mapping[str, Any]) -> list[str]:
    open_buckets = [
        f"Batch {bucket['bucket']}: {outcome(bucket, Names.of(summary))}: {bucket['promotion']['reason']}"
        for bucket in summary["buckets"]
        if bucket["promotion"] and bucket["promotion"]["decision"] != "promote"
    ]
    return ["", *open_buckets] if open_buckets else []


def _ending(result: Result, tag: str, request: Request) -> list[str]:
    endings = {
        "canary": "The results are void: a wrong kernel passed the gate. Nothing is promoted.",
        "no-clean-window": "The results are void: no clean window was found. Once there is one, go on with:",
        "infrastructure": "The device failed again and again, and was left alone. Once it is well, go on with:",
        "interrupted": "Stopped before the end, with the best so far above. Go on with:",
    }
    if result.reason not in endings:
        return []
    return [endings[result.reason], *([f"  {_resume_command(request, tag)}"] if result.resumable else [])]


def _resume_command(request: Request, tag: str) -> str:
    """The command that goes on with the campaign; what its records know is left out."""
    given = {
        "--storage": request.shown_storage,
        "--device": request.device if request.device.startswith("cuda") else None,
        "--gate-url": request.gate_url,
        "--recording": request.recording,
        "--ledger": request.ledger,
        "--table": request.defaults,
        "--export": request.export,
    }
    words = ["mjolnir", "autoresearch", "run", "--tag", tag, "--resume", *(["--promote"] if request.promote else [])]
    for flag, value in given.items():
        words += [flag, str(value)] if value else []
    return shlex.join(words)


def _promotion_lines(
    summary: Mapping[str, Any], applied: Answer | NotWrittenFailure | None, ledger: Ledger, request: Request
) -> list[RenderableType]:
    if isinstance(applied, NotWrittenFailure):
        return [f"The rows were NOT written: {applied}"]
    if applied is not None:
        return _applied_lines(applied.data)
    count = sum(bool(b["promotion"]) and b["promotion"]["decision"] == "promote" for b in summary["buckets"])
    if not count:
        return []
    table = ("--table", request.defaults or SCRATCH) if summary["simulated"] or request.defaults else ()
    write = command(ledger, "defaults", "promote", summary["tag"], *table)
    return [f"{counted(count, 'row')} proven and not yet written; write with: {write}"]


def _applied_lines(data: Mapping[str, Any]) -> list[RenderableType]:
    """How many of the proven rows were written, which of them were in force already, and why others were not."""
    there, left_out = len(data["rows"]) - data["changed"], left_out_lines(data)
    proven = len(data["rows"]) + len(left_out)
    if not proven:
        return []
    already = f" ({counted(there, 'row')} in force already)" if there else ""
    return [written(data["changed"], proven, data["place"]) + already, *left_out]


def _where(ledger: Ledger, tag: str, exported: Path | None) -> list[str]:
    lines = [f"Ledger: {ledger.live}"]
    if ledger.repository:
        lines.append(f"Commits: git log --oneline --glob='refs/mjolnir/ledger/{tag}/*'   (in {ledger.repository})")
    if exported:
        lines.append(f"Report: {exported / 'report.html'}   (with the data beside it)")
    else:
        lines.append(f"Report: {command(ledger, 'autoresearch', 'export', tag)}")
    return lines


def _export(ledger: Ledger, tag: str, request: Request) -> Path | None:
    if request.export is None:
        return None
    from mjolnir.research.export import export_records

    return export_records(ledger, tag, request.export, request.defaults)


def _code(result: Result, applied: Answer | NotWrittenFailure | None) -> Exit:
    if result.void:
        return Exit.VOID
    if result.reason == "interrupted":
        return Exit.INTERRUPTED
    if result.reason in ("infrastructure", "default"):
        return Exit.FAILED
    return Exit.DONE if applied is None else Exit(applied.code)
