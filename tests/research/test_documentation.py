from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.knobs import KNOBS
from mjolnir.research.bench import vllm_markdown
from mjolnir.research.documentation import (
    KERNEL_RESULTS,
    SECTIONS,
    VERIFIED_RESULTS,
    VLLM_RESULTS,
    knobs_table,
    main_table,
    settings_table,
    updated,
    vllm_tables,
)  # fmt: skip

README = Path(__file__).parents[2] / "README.md"


def test_readme_shows_knobs_and_figures_as_they_are() -> None:
    text = README.read_text("utf-8")
    assert updated(text, README.parent) == text, "run `python -m mjolnir.research.documentation README.md`"


def test_table_has_a_line_for_each_knob() -> None:
    lines = knobs_table(README.parent).splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == [knob.name for knob in KNOBS]
    assert lines[0] == (
        "| `ctas_per_sm` | 1 to 4 | 2 | `MJOLNIR_ATTN_CTAS` | CTAs resident per SM: the size of the persistent grid |"
    )
    assert "| 4 or 8 | 4 | `MJOLNIR_ATTN_CONSUMER_WARPS` |" in lines[2]
    assert "| off (0), on (1) | off | `MJOLNIR_ATTN_PDL` |" in lines[4]


def test_speed_is_read_from_the_results_and_the_table() -> None:
    rows = json.loads((README.parent / KERNEL_RESULTS).read_text("utf-8"))["rows"]
    us = {row["kernel"]: row["us"] for row in rows if (row["batch"], row["context"]) == (64, 8192) and is_shown(row)}
    (line,) = [line for line in main_table(README.parent).splitlines() if line.startswith("| 64 x 8192")]
    peer, ours = us["flashinfer-tc"], us["mjolnir-default"]
    assert line.startswith(f"| 64 x 8192 | {peer:.1f} | {ours:.1f} | {peer / ours:.2f} | ")


def is_shown(row: dict[str, Any]) -> bool:
    return (row["heads_q"], row["heads_kv"], row["page_size"]) == (32, 8, 64)


def test_every_setting_but_the_knobs_has_a_line() -> None:
    lines = settings_table(README.parent).splitlines()[2:]
    names = [line.split("`")[1] for line in lines]
    assert {"MJOLNIR_ATTN_DISABLE", "MJOLNIR_ATTN_FALLBACK", "MJOLNIR_ATTN_PRECOMPILE", "MJOLNIR_DEFAULTS"} <= set(
        names
    )
    assert not any(f"`{name}`" in knobs_table(README.parent) for name in names)
    assert (
        "| `MJOLNIR_ATTN_MAX_QLEN` | 1 to 16 | 1 + num_speculative_tokens |"
        in lines[names.index("MJOLNIR_ATTN_MAX_QLEN")]
    )


def test_results_of_vllm_are_shown_where_they_are(tmp_path: Path) -> None:
    assert "No results" in vllm_tables(tmp_path)
    from mjolnir.research import verify_vllm
    from mjolnir.research.bench import vllm
    from tests.research import test_verify_vllm as made
    from tests.research.bench.test_vllm import Engines

    folder = tmp_path / "research" / "bench" / "results"
    vllm.vllm(vllm.Options(models=("qwen3-8b",), points=("1x32768", "8x4096"), out=folder / VLLM_RESULTS), Engines())
    verify_vllm.verify(replace(made.SMALL, against=("A", "B"), out=folder / VERIFIED_RESULTS), made.Engines())
    text = vllm_tables(tmp_path)
    times = "100 us, 3333/s | 110 us, 3226/s | 300 us, 2000/s | 150 us, 2857/s | 160 us, 2778/s"
    assert f"| qwen3-8b | 1 x 32768 | {times} | 1.50 | 1.17 (1.17 to 1.17) |" in text
    assert "| `attn_speedup_b1` | 1.500 | at least 1.5 | met |" in text
    assert "| `attn_speedup_b64` | not measured | at least 1.1 |  |" in text
    assert " | eager | - | - | 64 | A, B | 2 | 32 | 0.000 | 10 | right |" in text
    assert " | control | - | - | 64 | A, B | 2 | 6 | 0.000 | 10 | found wrong, as it has to be |" in text


def test_a_mode_has_one_line_that_names_what_was_wrong() -> None:
    def row(runner: str, layout: str, against: str, most: float, *problems: str, block: int = 64) -> dict[str, Any]:
        numbers = {"shared": 100, "most": most, "mjolnir_steps": 7, "problems": list(problems), "block_size": block}
        return {"model": "m", "mode": "eager", "runner": runner, "layout": layout, "against": against, **numbers}

    rows = [row("v2", "HND", "A", 0.1), row("v1", "HND", "A", 0.3, "far"), row("v2", "NHD", "B", 0.2, block=128)]
    rows += [{**rows[0], "model": "a model"}]
    text = vllm_markdown.verified({"rows": rows, "taken": {"device": "card", "vllm": "0", "torch": "2"}})
    wrong = "wrong, 1 of 3: v1 HND against A"
    assert f"| m | eager | v1, v2 | HND, NHD | 64, 128 | A, B | 3 | 300 | 0.300 | 7 | {wrong} |" in text
    assert "| a model | eager | v2 | HND | 64 | A | 1 | 100 | 0.100 | 7 | right |" in text
    assert text.count("| eager |") == 2


def test_what_is_between_the_marks_is_replaced() -> None:
    old = "".join(f"a <!-- {title} --> old <!-- end of {title.split(':')[0]} --> b" for title in SECTIONS)
    new = updated(old, README.parent)
    assert " old " not in new
    assert f"-->\n{knobs_table(README.parent)}<!--" in new
    assert updated(new, README.parent) == new


def test_missing_mark_is_told() -> None:
    with pytest.raises(ValueError, match="the text lacks"):
        updated("nothing", README.parent)


COMMANDS = sorted(set(re.findall(r"`(mjolnir [^`]+)`", README.read_text("utf-8"))))


@pytest.mark.parametrize("line", COMMANDS)
def test_command_in_the_readme_exists_with_its_options(line: str) -> None:
    from typer.main import get_command

    from mjolnir.research.cli.app import app

    command = get_command(app)
    words = shlex.split(line)[1:]
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"{line}: no command {words[0]}"
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options, line


def code_with(words: str) -> CodeType:
    """The one example in the README that holds these words."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (code,) = (example for example in examples if words in example)
    return compile(code, str(README), "exec")


def test_the_kernel_is_called_as_the_readme_shows() -> None:
    """Shapes and dtypes alone: the tensors are fakes, of a GPU that need not be there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    import_module("mjolnir.kernel.operator")  # what is made of tensors when it is imported is made of real ones

    made: dict[str, Any] = {}
    with FakeTensorMode():
        exec(code_with("import decode"), made)
    assert made["out"].shape == made["query"].shape == (4, 32, 128)
    assert made["lse"].shape == (4, 32)
    assert made["block_table"].shape[1] * made["page_size"] >= 8192
    assert made["block_table"].numel() <= made["pages"]


def test_code_in_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("mjolnir.kernel.device.current_device", lambda: H200)
    exec(code_with("Defaults.load()"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("ctas_per_sm=")
    assert "exact key" in printed
