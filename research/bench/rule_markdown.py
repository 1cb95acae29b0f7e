"""The built-in rule and what it costs as Markdown, for the README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mjolnir.research.bench.targets import line_of

HEADS = ("measured in", "places", "rule", "at worst", "without the places", "every knob's default", "at worst")


def page(results: Mapping[str, Any]) -> str:
    """What a result file of `mjolnir bench rule` says: the rule in words, its regret, and a line for each group."""
    return "\n".join([_rule(results["rule"]), "", table(results), "", _sum(results["figures"]), ""])


def table(results: Mapping[str, Any]) -> str:
    """One line for each group of places: regrets of the rule and of the knobs' defaults."""
    lines = [line_of(HEADS), line_of(["---"] * len(HEADS))]
    for group, facts in results["groups"].items():
        names = ("rule", "rule_worst", "held_out", "default", "default_worst")
        lines.append(line_of([group, str(facts["places"]), *(f"{facts[name]:.3f}" for name in names)]))
    return "\n".join(lines)


def _rule(rule: Mapping[str, Any]) -> str:
    return (
        f"The rule: up to {rule['full']:g} item an SM (a sequence's KV head and row block), one CTA of 8 warps and "
        f"{rule['wide']} stages; where the rows are too many for that one of 4 warps and {rule['narrow']} stages, at "
        f"D 128 only up to {rule['few']:g} item an SM; else two CTAs of {rule['shared']} stages, {rule['more']} with "
        f"pages below 64 or more than 8 rows at D 128."
    )


def _sum(figures: Mapping[str, Any]) -> str:
    return (
        f"Time over that of the fastest on record, geometric means: {figures['rule_regret']:.3f} with the rule, "
        f"{figures['default_regret']:.3f} with every knob at its default, over {figures['places']} places "
        f"(`mjolnir bench rule`). *Without the places*: with numbers that the other groups alone would choose."
    )
