"""What each knob does to time, from the trials of a campaign: effects with intervals, importance, dead knobs.

Where at least `LEAST_PAIRS` pairs of settings differ in one knob alone, the effect is the median of their log ratios,
with the interval of the sign test. Elsewhere a model is fitted, log ratio = level of knob 1 + level of knob 2 ...,
and the interval is the percentile bootstrap over settings. A search visits good regions more often than others, so an
effect is that over the settings visited. Numbers are rounded, so that they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.tuner.additive import Model
from mjolnir.tuner.statistics import median_interval

LEAST_PAIRS = 6
"""Fewer pairs give no interval of 95 %: 1 - 2 x 2^-5 is 0.94."""

LEAST_SETTINGS = 8
"""Of fewer settings no model is fitted."""

DIGITS = 4
"""Decimals of effects and shares: hundredths of a percent, far below any noise floor."""

Trial = Mapping[str, Any]
Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What one value of a knob does, against the default's value.

    Attributes:
        value: the value.
        change: time relative to that with the default's value, minus 1: below 0 is faster.
        low, high: its interval.
        pairs: pairs of settings that differ in this alone.
        method: "pairs" or "model".
    """

    value: int
    change: float
    low: float
    high: float
    pairs: int
    method: str


@dataclass(frozen=True, slots=True)
class _Setting:
    """The trials of one resolved setting: knob values, mean log ratio by response, binary and plans."""

    values: Values
    logs: Mapping[str, float]
    binary: str
    plans: tuple[str, ...]


def effects(trials: Sequence[Trial], default: Mapping[str, int], floors: Mapping[str, float]) -> dict[str, Any]:
    """The effect of every knob that varied, over all points and by bucket.

    Args:
        trials: trial bodies of one epoch.
        default: the built-in default, resolved: what effects are against.
        floors: noise floor, a fraction, by response: "all", and each bucket as text.

    Returns:
        `settings`, the number of them; `knobs`: for each knob its `default`, whether it is `dead` (None where nothing
        tells), `pairs`, `binary_changed` (None where binaries are not known), `importance` and `effects`, both by
        response; `explained`: by response, the share of the spread of log ratios that the model explains.
    """
    settings = _settings(trials)
    responses = [name for name in floors if sum(name in setting.logs for setting in settings) >= 2]
    models = _models(settings, responses)
    knobs = {}
    for place, knob in enumerate(KNOBS):
        if len({setting.values[place] for setting in settings}) > 1:
            knobs[knob.name] = _knob(place, settings, default[knob.name], floors, models)
    explained = {name: round(model.explained, DIGITS) for name, model in models.items() if model}
    return {"settings": len(settings), "knobs": knobs, "explained": explained}


def _settings(trials: Sequence[Trial]) -> list[_Setting]:
    grouped: dict[Values, list[Trial]] = {}
    for trial in trials:
        if trial.get("ratio") is not None:
            resolved = Setting.from_dict(trial["resolved"]).as_dict()
            grouped.setdefault(tuple(resolved.values()), []).append(trial)
    found = []
    for values, group in grouped.items():
        ratios = [{"all": trial["ratio"], **trial["ratios"]} for trial in group]
        logs = {
            name: float(np.mean([np.log(row[name]) for row in ratios if name in row]))
            for name in dict.fromkeys(name for row in ratios for name in row)
        }
        last = group[-1]
        # The digest of the compiled code where it is known: a variant's key differs whenever a baked knob does.
        binary = str((last.get("facts") or {}).get("binary", ""))
        found.append(_Setting(values, logs, binary, tuple(last.get("plans") or ())))
    return found


def _models(settings: Sequence[_Setting], responses: Sequence[str]) -> dict[str, Model | None]:
    """A model for each response; those that the same settings have are fitted together."""
    groups: dict[tuple[bool, ...], list[str]] = {}
    for name in responses:
        groups.setdefault(tuple(name in setting.logs for setting in settings), []).append(name)
    models: dict[str, Model | None] = dict.fromkeys(responses)
    for has, names in groups.items():
        rows = [setting for setting, there in zip(settings, has, strict=True) if there]
        if len(rows) >= LEAST_SETTINGS:
            logs = np.array([[row.logs[name] for name in names] for row in rows])
            models |= zip(names, Model.fit(np.array([row.values for row in rows]), logs), strict=True)
    return models


def _knob(
    place: int,
    settings: Sequence[_Setting],
    default: int,
    floors: Mapping[str, float],
    models: Mapping[str, Model | None],
) -> dict[str, Any]:
    pairs = _pairs(place, settings)
    values = sorted({setting.values[place] for setting in settings} - {default})
    found: dict[str, list[dict[str, Any]]] = {}
    for name, model in models.items():
        row = [_effect(place, value, default, pairs, name, model) for value in values]
        found[name] = [asdict(effect) for effect in row if effect]
    importance = {name: round(model.importance(place), DIGITS) for name, model in models.items() if model}
    return {
        "default": default,
        "pairs": len(pairs),
        "dead": _dead(pairs, floors),
        "binary_changed": _binary_changed(pairs),
        "importance": importance,
        "effects": found,
    }


def _pairs(place: int, settings: Sequence[_Setting]) -> list[tuple[_Setting, _Setting]]:
    """All pairs of settings that differ in the knob at `place` alone, the smaller value first."""
    groups: dict[Values, list[_Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.values[:place] + setting.values[place + 1 :], []).append(setting)
    found = []
    for group in groups.values():
        ordered = sorted(group, key=lambda setting: setting.values)
        found += [(a, b) for number, a in enumerate(ordered) for b in ordered[number + 1 :]]
    return found


def _effect(
    place: int,
    value: int,
    default: int,
    pairs: Sequence[tuple[_Setting, _Setting]],
    response: str,
    model: Model | None,
) -> Effect | None:
    """The effect of `value` against `default`; None where nothing tells. Such pairs share no setting."""
    logs = []
    for first, second in pairs:
        ends = {first.values[place]: first.logs, second.values[place]: second.logs}
        if ends.keys() == {value, default} and all(response in log for log in ends.values()):
            logs.append(ends[value][response] - ends[default][response])
    if len(logs) >= LEAST_PAIRS:
        interval = median_interval(logs)
        numbers = float(np.median(logs)), interval.low, interval.high
        method = "pairs"
    else:
        contrast = model.contrast(place, value, default) if model else None
        if contrast is None:
            return None
        numbers, method = contrast, "model"
    change, low, high = (round(float(np.expm1(number)), DIGITS) for number in numbers)
    return Effect(value, change, low, high, len(logs), method)


def _dead(pairs: Sequence[tuple[_Setting, _Setting]], floors: Mapping[str, float]) -> bool | None:
    """Whether no pair differs: not in its binary, not in its plans, and in time by no more than the noise."""
    if not pairs:
        return None
    for first, second in pairs:
        if first.plans != second.plans or (first.binary and second.binary and first.binary != second.binary):
            return False
        for name, floor in floors.items():
            if name in first.logs and name in second.logs and abs(first.logs[name] - second.logs[name]) > floor:
                return False
    return True


def _binary_changed(pairs: Sequence[tuple[_Setting, _Setting]]) -> bool | None:
    known = [(a.binary, b.binary) for a, b in pairs if a.binary and b.binary]
    return any(a != b for a, b in known) if known else None
