"""`mjolnir autoresearch run --dry-run`: what a campaign would search, compile, take and be able to prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mjolnir.kernel.variant import Variant
from mjolnir.research.answer import Answer
from mjolnir.research.planning import minutes
from mjolnir.tuner.space import Space

if TYPE_CHECKING:
    from mjolnir.tuner import coordinator
    from mjolnir.tuner.bench import Bench
    from mjolnir.tuner.options import Options

MOST_LISTED = 12
"""Values of a dimension that are printed."""


def dry_run(bench: Bench, options: Options, plan: coordinator.Estimate) -> Answer:
    """Say what a campaign would do; nothing is measured and nothing recorded.

    Args:
        bench: where it would run.
        options: its rules.
        plan: what it takes and can prove.
    """
    space = Space(bench.geometry, bench.device, options.pins, bench.settings())
    compiles = _compiles(space)
    data = {
        "space": _space(space),
        "trials": min(options.trials, space.size),
        "compiles": {"space": compiles, "most": min(compiles, options.trials)},
        "enqueued": [setting.as_dict() for setting in options.enqueued],
        "incumbents": {str(bucket): setting.as_dict() for bucket, setting in options.incumbents.items()},
        "instances": plan.instances,
        "seconds": round(plan.seconds, 1),
        "search_seconds": round(plan.search_seconds, 1),
        "smallest_gain": plan.smallest_gain,
    }
    return Answer(data, _words(space, data))


def _compiles(space: Space) -> int:
    """Binaries that the settings of the space need together."""
    members = (space.setting(space.member(index)) for index in range(space.size))
    variants = {Variant.of(setting, space.geometry, space.device) for setting in members}
    return len(variants)


def _space(space: Space) -> dict[str, Any]:
    return {
        "size": space.size,
        "dimensions": {
            d.name: {"knobs": list(d.knobs), "values": [list(v) for v in d.values]} for d in space.dimensions
        },
        "excluded": dict(space.excluded),
        "pins": dict(space.pins),
    }


def _words(space: Space, data: dict[str, Any]) -> str:
    lines = [f"{space.size} settings after constraints"]
    for dimension in space.dimensions:
        values = [" ".join(map(str, value)) for value in dimension.values]
        more = f", and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
        lines.append(f"  {' and '.join(dimension.knobs)}: {', '.join(values[:MOST_LISTED])}{more}")
    lines += [f"  not {value}: {reason}" for value, reason in space.excluded.items()]
    compiles = data["compiles"]
    more = minutes(data["seconds"] - data["search_seconds"])
    first = len(data["enqueued"]) + len(data["incumbents"]) + 1
    lines += [
        f"at most {data['trials']} trials, of which {first} are the default, rows in force and what was good nearby",
        f"at most {compiles['most']} compiles ({compiles['space']} binaries serve all settings), ahead of the device",
        f"the search takes {minutes(data['search_seconds'])} at most",
        f"noise before it and up to {data['instances']} instances to prove gains after it take {more} at most",
        f"smallest gain that can be proven: about {data['smallest_gain']:.1%}",
        "nothing was recorded",
    ]
    return "\n".join(lines)
