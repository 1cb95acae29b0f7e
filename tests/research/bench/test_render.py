"""The results are told as text, as Markdown and as a plot."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePath
from typing import Any

import pytest
from typer.testing import CliRunner

from mjolnir.research import documentation
from mjolnir.research.bench import markdown, plot, rows, table
from mjolnir.research.bench.figures import TARGETS, figures
from mjolnir.research.bench.kernel import assemble
from mjolnir.research.bench.points import MAIN, spot
from mjolnir.research.bench.rows import TOKEN_MAJOR
from mjolnir.research.cli.app import app
from tests.research.bench.made import ceiling_us, row, whole

PLACE = spot(MAIN, 64, 8192)
ROOT = Path(__file__).parents[3]


def results(date: str = "2026-11-29", made: Any = None, **not_run: str) -> dict[str, Any]:
    versions = {"flashinfer-python": "0.6.12", "vllm": "0.31.0", "cuda": "13.0"}
    part = {"device": "NVIDIA H200", "date": date, "versions": versions, "kernels": ["fa3"], "not_run": not_run}
    return assemble([], whole() if made is None else made, part)


def test_a_row_is_told_in_a_line() -> None:
    told = table.line(row("fa3", PLACE, 250.0, way="num_splits=8"))
    assert told.split() == [
        "32/8xd128,p=64,q=1", "64x8192", "fa3", "250.00", "245.00", "255.00", "4295", "0.01000", "B2NHD",
        "num_splits=8",
    ]  # fmt: skip
    assert " wrong " in table.line(row("fa3", PLACE, 250.0, error=float("nan")))
    assert "mjolnir (chain)" in table.line(row("mjolnir", PLACE, 250.0, timing="chain"))
    assert len(table.lines(whole())) == len(whole()) + 1


def test_figures_stand_beside_their_targets() -> None:
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in table.figure_lines(figures(whole()))[1:]}
    assert list(told)[: len(TARGETS)] == list(TARGETS)
    assert re.fullmatch(r"1\.500 +>= 1\.4 met", told["geomean_vs_best_peer"])
    assert re.fullmatch(r"0\.800 +>= 0\.94 missed by 0\.14", told["ceiling_share_1gb"])
    assert told["us_1x4096"].endswith("<= 7.5 met")
    assert re.fullmatch(r"44\.000", told["points_compared"].strip())
    assert table.figure_lines({})[1].split() == ["geomean_vs_best_peer", "absent", ">=", "1.4"]


def test_the_page_shows_the_eight_points_with_the_best_peer() -> None:
    made = rows.merge(whole(), [row("vllm-triton", PLACE, 1.0, error=5.0)])
    lines = markdown.eight_points(made).splitlines()
    assert len(lines) == 2 + 8 + 0
    ours = 1.25 * ceiling_us(PLACE)
    (line,) = [line for line in lines if line.startswith("| 64 x 8192")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:8] == [
        f"{1.7 * ours:.1f}", f"**{1.5 * ours:.1f}**", f"{1.6 * ours:.1f}", "wrong", f"{ceiling_us(PLACE):.1f}",
        f"{1.1 * ours:.1f}", f"{ours:.1f}",
    ]  # fmt: skip
    assert cells[8].startswith("1.50 [1.4")
    assert cells[9] == "80%"


def test_the_page_shows_every_geometry_and_every_target() -> None:
    data = results(**{"flashinfer-xqa": "it is absent"})
    page = markdown.page(data, PurePath("research/bench/results/kernel-peers-h200.json"))
    assert page.count("\n| 64/8 heads, size 128, page 64, 8 queries | 2 | 1.50 | ") == 1
    assert page.count("\n| 16/2 heads, size 256, page 64 | 8 | 1.50 |") == 1
    assert page.count(" | 80% at ") == 8
    assert "| `ceiling_share_1gb` | 0.800 | at least 0.94 | missed by 0.14 |" in page
    assert "| `us_1x4096` | 7.200 | at most 7.5 | met |" in page
    assert "](research/bench/results/kernel-peers-h200.svg)" in page
    assert "NVIDIA H200, FlashInfer 0.6.12, vLLM (FA3, Triton) 0.31.0, CUDA 13.0." in page
    assert "Not run: flashinfer-xqa." in page, "the last run that asked for it could not have it"
    few = results(made=[row("mjolnir", PLACE, 300.0)], fa3="No module named 'vllm'")
    page = markdown.page(few, PurePath("kernel-peers-h200.json"))
    assert "Not run: fa3." in page
    assert "| `geomean_vs_best_peer` | not measured | at least 1.4 |  |" in page


def test_the_newest_results_are_rendered(tmp_path: Path) -> None:
    folder = tmp_path / documentation.RESULTS
    folder.mkdir(parents=True)
    (tmp_path / documentation.TABLE).parent.mkdir()
    for source in (documentation.KERNEL_RESULTS, documentation.TABLE):
        (tmp_path / source).write_bytes((ROOT / source).read_bytes())
    assert documentation.speed_table(tmp_path) == documentation.main_table(ROOT)
    for name, date in (("h200", "2026-12-03"), ("b200", "2026-12-01"), ("a100", "2026-12-03")):
        rows.write(folder / f"kernel-peers-{name}.json", results(date))
    found = documentation.newest(tmp_path)
    assert found is not None
    assert found[0].name == "kernel-peers-h200.json"
    wanted = markdown.page(results("2026-12-03"), documentation.RESULTS / "kernel-peers-h200.json")
    assert documentation.speed_table(tmp_path) == wanted


def test_the_plot_has_the_same_bytes_again(tmp_path: Path) -> None:
    made = rows.merge(whole(), [row("mjolnir", PLACE, 2.0, layout=TOKEN_MAJOR)])
    first = plot.write(tmp_path / "kernel-peers-h200.json", made)
    assert [path.name for path in first] == ["kernel-peers-h200.svg", "kernel-peers-h200.png"]
    bytes_of = [path.read_bytes() for path in first]
    assert [path.read_bytes() for path in plot.write(tmp_path / "kernel-peers-h200.json", made)] == bytes_of
    assert all(data for data in bytes_of)
    assert plot.write(tmp_path / "none.json", [row("fa3", PLACE, 1.0)]) == []


def test_the_command_merges(tmp_path: Path) -> None:
    one, two, out = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "kernel-peers-h200.json"
    rows.write(one, results(made=[row("mjolnir", PLACE, 300.0), row("fa3", PLACE, 500.0)]))
    rows.write(two, results(made=[row("fa3", PLACE, 450.0)]))
    words = ["bench", "kernel", "--append", str(one), "--append", str(two), "--out", str(out), "--merge-only", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["figures"]["worst_vs_best_peer"] == 1.5
    assert out.with_suffix(".svg").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--point", "8"], "--point '8' is not of the form"),
        (["--geometry", "none"], "is not a geometry"),
        (["--kernel", "fa9"], "--kernel 'fa9' is none of"),
        (["--merge-only"], "--merge-only needs --append"),
    ],
)
def test_the_command_tells_what_is_wrong(words: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["bench", "kernel", *words])
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())
