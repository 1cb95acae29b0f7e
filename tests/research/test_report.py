"""What plots and page show, worked out by hand."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.research.findings import bucket_cells
from mjolnir.research.naming import Names
from mjolnir.research.progress import decision_line, kept_line, status_line
from mjolnir.research.report import charts, series

NAMES = Names(Geometry(32, 8), H200)


def trial(number: int, ratio: float | None, **knobs: int) -> dict[str, object]:
    ratios = {} if ratio is None else {"8": ratio, "32": 2 * ratio}
    return {
        "trial": number,
        "clock": 30.0 * number,
        "ratio": ratio,
        "ratios": ratios,
        "resolved": Setting(**knobs).as_dict(),
    }


TRIALS = [trial(1, 1.0), trial(2, None), trial(3, 0.8, pdl=1), trial(4, 0.9, pdl=1), trial(5, 0.5)]


def test_convergence_is_the_best_so_far():
    lines = series.convergence(TRIALS, [8, 32, 64])
    assert lines[8] == [(1, 1.0), (2, 1.0), (3, 0.8), (4, 0.8), (5, 0.5)]
    assert lines[32] == [(x, 2 * y) for x, y in lines[8]]
    assert 64 not in lines
    assert series.convergence(TRIALS, [8], "clock")[8][2] == (1.5, 0.8)


def test_knobs_that_varied_are_grouped_by_value():
    assert series.knob_groups(TRIALS) == {"pdl": {"0": [1.0, 0.5], "1": [0.8, 0.9]}}


def test_a_line_chart_places_its_points():
    chart = str(charts.lines({"a<b": [(0, 1.0), (10, 0.0)]}, x_title="trial", y_title="ratio"))
    frame = charts.Frame(420, 260, (0, 10), (-0.06, 1.06))
    (x0, y0), (x1, y1) = frame.at(0, 1.0), frame.at(10, 0.0)
    assert f"M{x0:.1f} {y0:.1f}H{x1:.1f}V{y1:.1f}" in chart
    assert (x0, x1) == (46, 408)
    assert re.findall(r'text-anchor="middle">([^<]+)<', chart) == ["0", "5", "10", "trial"]
    assert re.findall(r'text-anchor="end">([^<]+)<', chart) == ["0.00", "0.50", "1.00"]
    assert "a&lt;b" in chart
    assert charts.lines({}, x_title="", y_title="") == ""


def test_an_interval_chart_draws_each_span_from_low_to_high():
    spans = [charts.Span("<4", -0.5, 0.0, 0.5), charts.Span("<4", 0.25, 0.5, 1.0, color=1), charts.Span("8", 1, 1, 1)]
    chart = str(charts.intervals("effect", spans, same=0.0, label="{:+.1f}".format))
    bars = [tuple(map(float, bar)) for bar in re.findall(r'<path d="M([\d.]+) ([\d.]+)H([\d.]+)" stroke="#', chart)]
    dots = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', chart)]
    (same,) = re.findall(r'class="same" d="M([\d.]+) ', chart)
    assert [low < dot < high for (low, _, high), dot in zip(bars[:2], dots, strict=False)] == [True, True]
    assert bars[2][2] == bars[2][0] + 1, "an interval without width is seen all the same"
    assert dots[0] == float(same)
    assert dots[1] == pytest.approx((dots[0] + dots[2]) / 2, abs=0.1)
    assert [y for _, y, _ in bars] == sorted(y for _, y, _ in bars), "from top to bottom"
    assert bars[0][0] - dots[0] == pytest.approx(dots[0] - bars[0][2], abs=0.2)
    assert chart.count("&lt;4") == 1, "equal labels are written once"
    assert charts.intervals("effect", [], same=0.0, label=str) == ""


def test_a_dot_chart_has_a_bar_at_the_median():
    chart = str(charts.dots("pdl", {"0": [1.0, 4.0], "1": [2.0]}))
    assert chart.count("<circle") == 3
    bars = re.findall(r'<path d="M[\d.]+ ([\d.]+)h18', chart)
    assert bars[0] == bars[1], "on a logarithmic axis 2 lies midway between 1 and 4"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(), "the built-in default"),
        (resolve(Setting(), NAMES.geometry, H200), "the built-in default"),
        (Setting(ctas_per_sm=1, kv_stages=3), "ctas_per_sm=1 kv_stages=3"),
        (resolve(Setting(ctas_per_sm=1, pdl=1), NAMES.geometry, H200), "ctas_per_sm=1 pdl=1"),
    ],
)
def test_settings_are_named_by_what_differs(setting, words):
    assert NAMES(setting) == words
    assert NAMES(setting.as_dict()) == words


def progress(record: dict[str, Any], **values: Any) -> Any:
    defaults = {
        "phase": "search",
        "done": 3,
        "total": 9,
        "trials_per_minute": 40.0,
        "seconds_left": 65.0,
        "record": record,
    }
    return SimpleNamespace(**{**defaults, **values})


def test_plain_lines_say_what_is_new():
    kept = {
        "trial": 3,
        "verdict": "keep",
        "kept_buckets": [8],
        "ratios": {"8": 0.8},
        "setting": Setting(pdl=1).as_dict(),
    }
    news = progress({"kind": "trial", "body": kept})
    assert kept_line(news, NAMES) == "trial 3: new best for batch 8 0.800: pdl=1"
    assert status_line(news) == "searching: 3 of 9, 40 trials/min, 1:05 left"
    assert kept_line(progress({"kind": "trial", "body": {**kept, "verdict": "discard"}}), NAMES) == ""
    body = {"bucket": 8, "decision": "not-proven", "reason": "too noisy"}
    assert decision_line(progress({"kind": "promotion", "body": body})) == "batch 8: not proven: too noisy"


def decided(decision: str, setting: Setting, incumbent: Setting | None = None, **certificate: Any) -> dict[str, Any]:
    promotion = {"decision": decision, "setting": setting.as_dict(), "certificate": certificate, "reason": ""}
    row = incumbent and incumbent.as_dict()
    best = {"trial": 2, "setting": Setting(pdl=1).as_dict(), "ratio": 0.7}
    return {"bucket": 8, "best": best, "promotion": promotion, "found": None, "incumbent": row}


def test_a_line_of_the_table_is_about_the_setting_that_was_decided_on():
    ratio = {"value": 0.9, "low": 0.88, "high": 0.91}
    row, other = Setting(kv_stages=3), Setting(kv_stages=2)
    cells = bucket_cells(decided("promote", other, row, ratio_default=ratio, instances=12), NAMES)
    assert cells == ("8", "kv_stages=2", "-", "0.900 [0.880, 0.910]", "proven faster")
    cells = bucket_cells(decided("not-proven", other, row, ratio_default=ratio, instances=1), NAMES)
    assert cells[3:] == ("0.900 in 1 instance", "not proven")
    assert bucket_cells(decided("not-proven", row, row), NAMES)[2:] == ("-", "-", "what is in force stays")
    open_bucket = {**decided("promote", other), "promotion": None}
    assert bucket_cells(open_bucket, NAMES) == ("8", "pdl=1", "0.700", "-", "not decided")
