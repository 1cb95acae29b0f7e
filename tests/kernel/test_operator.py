"""`decode` on the CPU: the launch functions are replaced by the reference, all else is what runs on a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mjolnir.kernel import cache, decode, operator
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.layouts import LAYOUTS, allocate, views
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.rule import answers
from mjolnir.kernel.runners import Runners
from mjolnir.kernel.variant import Variant
from tests.fakes import launches as fake
from tests.fakes.launches import Launches
from tests.kernel.problems import problem

GEOMETRY = Geometry(8, 2, page_size=16)
LENGTHS = (37, 0, 100)
LOG2_E = 1.4426950408889634


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Launch functions that compute the reference of what they are given."""
    launches = fake.install(monkeypatch)
    monkeypatch.setattr(operator, "RUNNERS", Runners(operator.MAX_RUNNERS))
    monkeypatch.setattr(operator, "_facts", lambda device: fake.DEVICE)

    def attend(given: dict[str, Any]) -> None:
        entries = operator.RUNNERS._kept.values()
        (runner,) = (entry.runner for entry in entries if entry.runner.cuts is given["cuts"])
        optional = runner.variant.q_mul, runner.variant.o_mul
        out, lse = attention_f64(
            given["query"], given["k_cache"], given["v_cache"], given["table"], given["lengths"],
            geometry=runner.geometry, scale=given["scale"] / LOG2_E, k_scale=given["k_scale"],
            v_scale=given["v_scale"], q_mul=given["q_mul"] if optional[0] else None,
            o_mul=given["o_mul"] if optional[1] else None,
        )  # fmt: skip
        given["out"].copy_(out)
        given["lse"].copy_(lse)

    launches.body = attend
    return launches


def call(geometry: Geometry = GEOMETRY, layout: str = "BHN2D", **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `decode`, and those of the reference for the same problem."""
    wanted = problem(geometry, LENGTHS, **options)
    cache = allocate(layout, wanted["k"].shape[0], geometry)
    k, v = views(cache, geometry, layout)
    k.copy_(wanted["k"])
    v.copy_(wanted["v"])
    wanted |= {"k_scale": torch.tensor(0.5), "v_scale": torch.rand(geometry.heads_kv)}
    given = {
        "query": wanted["q"], "kv_cache": cache, "block_table": wanted["block_table"], "seq_lens": wanted["seq_lens"],
        "k_scale": wanted["k_scale"], "v_scale": wanted["v_scale"], "q_mul": wanted["q_mul"],
        "o_mul": wanted["o_mul"], "q_len": geometry.q_len, "causal": geometry.causal, "q_format": geometry.q_format,
    }  # fmt: skip
    return given, wanted


def right(out: torch.Tensor, lse: torch.Tensor, wanted: dict[str, Any]) -> None:
    expected, expected_lse = attention_f64(**wanted)
    torch.testing.assert_close(out, expected.to(out.dtype))
    torch.testing.assert_close(lse, expected_lse.float())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_told_from_its_shape(launches: Launches, layout: str) -> None:
    given, wanted = call(layout=layout)
    right(*decode(**given, return_lse=True), wanted)


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(8, 2, page_size=16, q_len=3),
        Geometry(8, 2, page_size=16, q_len=3, causal=False),
        Geometry(4, 4, 256, page_size=32, dtype="f16"),
        Geometry(8, 1, page_size=64, q_format="fp8"),
    ],
    ids=str,
)
def test_the_problem_is_told_from_the_arguments(launches: Launches, geometry: Geometry) -> None:
    given, wanted = call(geometry, q_mul=True, o_mul=True)
    right(*decode(**given, return_lse=True), wanted)
    (entry,) = operator.RUNNERS._kept.values()
    assert entry.runner.geometry == geometry


def test_k_and_v_may_be_apart(launches: Launches) -> None:
    given, wanted = call()
    given["kv_cache"] = wanted["k"].view(torch.float8_e4m3fn), wanted["v"].view(torch.float8_e4m3fn)
    right(*decode(**given, return_lse=True), wanted)


def test_out_is_written_and_returned(launches: Launches) -> None:
    given, wanted = call()
    out = torch.full((3, 8 * 128), torch.nan, dtype=torch.bfloat16)
    assert decode(**given, out=out) is out
    torch.testing.assert_close(out.view(3, 8, 128), attention_f64(**wanted)[0].to(torch.bfloat16))


def test_scale_and_setting_reach_the_kernel(launches: Launches) -> None:
    given, wanted = call()
    right(*decode(**given, scale=0.25, setting=Setting(max_splits=4), return_lse=True), wanted | {"scale": 0.25})
    assert launches.plans[0]["max_splits"] == 4
    assert launches.plans[0]["capacity"] == given["block_table"].shape[1] * 16


def test_numbers_may_be_numpys(launches: Launches) -> None:
    given, wanted = call()
    changed = {**given, "q_len": np.int64(1), "causal": np.bool_(True), "scale": np.float32(0.25)}
    right(*decode(**changed, return_lse=True), wanted | {"scale": 0.25})


def test_what_spills_gives_way_to_what_the_rule_says_next(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    right_one, tried = cache.build(None), []  # type: ignore[arg-type]

    def build(variant: Variant, *_: Any) -> cache.Built:
        tried.append(variant)
        return replace(right_one, spill_bytes=8) if variant.kv_stages == said[0].kv_stages else right_one

    said = answers(GEOMETRY, fake.DEVICE, 4)
    assert said[0].kv_stages != said[1].kv_stages
    monkeypatch.setattr(cache, "build", build)
    operator._works.cache_clear()
    given, wanted = call()
    right(*decode(**given, return_lse=True), wanted)
    (key,) = operator.RUNNERS._kept
    assert key.setting == said[1]
    count = len(tried)
    decode(**given, return_lse=True)
    assert len(tried) == count, "asked once"
    with pytest.raises(cache.CompileError, match=f"{said[0]} spills 8 bytes"):
        decode(**given, return_lse=True, setting=said[0])
    monkeypatch.setattr(cache, "build", lambda *_: replace(right_one, spill_bytes=16))
    operator._works.cache_clear()
    with pytest.raises(cache.CompileError, match=f"{said[0]} spills 16 bytes"):
        decode(**given)
    operator._works.cache_clear()


def test_calls_alike_share_a_runner_and_views(launches: Launches) -> None:
    given, _ = call()
    decode(**given)
    decode(**{**given, "query": given["query"].clone(), "seq_lens": given["seq_lens"] // 2})
    first, second = launches.layers
    assert len(operator.RUNNERS) == 1
    assert first["partial"] is second["partial"]
    assert first["k_cache"] is second["k_cache"]
    assert first["v_cache"] is second["v_cache"]
    for different in ({"return_lse": True}, {"setting": Setting(kv_stages=5)}, {"q_mul": torch.ones(8, 128)}):
        decode(**{**given, **different})
    assert len(operator.RUNNERS) == 4


def test_batches_up_to_a_power_of_two_share_a_runner(launches: Launches) -> None:
    made = []
    for batch in (1, 2, 3, 4, 5, 8, 9):
        given = fake.arguments(GEOMETRY, batch)
        cache = given.pop("k_cache"), given.pop("v_cache")
        decode(**given, kv_cache=cache)
        made.append(len(operator.RUNNERS))
    assert made == [1, 2, 3, 3, 4, 4, 5]


def test_the_runner_unused_for_longest_goes_but_not_one_that_was_captured(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners = Runners(2)
    monkeypatch.setattr(operator, "RUNNERS", runners)
    given, _ = call()
    stages = [Setting(kv_stages=count) for count in (2, 3, 4, 5)]

    def kept() -> list[int]:
        return sorted(key.setting.kv_stages for key in runners._kept)

    decode(**given, setting=stages[0])
    decode(**given, setting=stages[1])
    decode(**given, setting=stages[0])
    decode(**given, setting=stages[2])
    assert kept() == [2, 4]
    next(entry for key, entry in runners._kept.items() if key.setting == stages[0]).captured = True
    for setting in stages[1:]:
        decode(**given, setting=setting)
    assert kept() == [2, 4, 5]


def test_a_shape_that_reads_as_two_problems_needs_a_layout(launches: Launches) -> None:
    query = torch.zeros(1, 64, 128, dtype=torch.bfloat16)
    rest: dict[str, Any] = {
        "block_table": torch.zeros(1, 1, dtype=torch.int32),
        "seq_lens": torch.ones(1, dtype=torch.int32),
    }
    rest |= {"k_scale": torch.ones(()), "v_scale": torch.ones(())}
    cache = torch.zeros(4, 32, 64, 256, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"kv_cache of shape \(4, 32, 64, 256\) fits layouts of different heads"):
        decode(query, cache, **rest)
    for layout, heads in (("BHN2D", 32), ("BNH2D", 64)):
        decode(query, cache, **rest, layout=layout)
        assert launches.layers[-1]["k_cache"].shape[2] == heads


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "tokens": ({"q_len": 2}, ValueError, r"query has shape \(3, 8, 128\).*with q_len = 2"),
    "long lengths": ({"seq_lens": torch.zeros(3, dtype=torch.int64)}, TypeError, "seq_lens is torch.int64"),
    "number for a scale": ({"k_scale": 1.0}, TypeError, "k_scale is float; expected f32 on the GPU"),
    "no table": ({"block_table": None}, TypeError, "block_table is NoneType"),
    "no cache": ({"kv_cache": None}, TypeError, "kv_cache is NoneType; expected a tensor, or K and V apart"),
    "knobs as a dict": ({"setting": {"pdl": 1}}, TypeError, "setting is dict; expected a Setting, or None"),
    "number for a factor": ({"o_mul": 1.0}, TypeError, "o_mul is float; expected a tensor, or None"),
    "no format": ({"q_format": None}, TypeError, "q_format is NoneType; expected native or fp8"),
    "number for a layout": ({"layout": 3}, TypeError, "layout is int; expected one of BHN2D, .*, or None"),
    "text for out": ({"out": "x"}, TypeError, "out is str; expected a tensor, or None"),
    "heads over one another": (
        {"out": torch.zeros(3 * 8 * 128).bfloat16().as_strided((3, 8, 128), (1024, 64, 1))},
        ValueError,
        r"out has strides \(1024, 64, 1\): rows that are written must not share memory",
    ),
    "nobody": (
        {"query": torch.zeros(0, 8, 128).bfloat16(), "seq_lens": torch.zeros(0, dtype=torch.int32)},
        ValueError,
        "seq_lens holds 0 sequences; expected 1 to 8192",
    ),
    "flat table": ({"block_table": torch.zeros(21, dtype=torch.int32)}, ValueError, r"block_table has shape \(21,\)"),
    "f32 query": ({"query": torch.zeros(3, 8, 128)}, TypeError, "query is torch.float32; expected torch.bfloat16 or"),
    "shape": ({"kv_cache": torch.zeros(9, 2, 24, 256, dtype=torch.uint8)}, ValueError, "fits no layout"),
    "layout": ({"layout": "NHD"}, ValueError, "layout = 'NHD' is unknown; there are BHN2D"),
    "wrong layout": ({"layout": "B2NHD"}, ValueError, r"\(8|\(10"),
    "three tensors": ({"kv_cache": (torch.zeros(1),) * 3}, ValueError, "kv_cache holds 3 tensors"),
    "flat k": ({"kv_cache": (torch.zeros(9), torch.zeros(9))}, ValueError, r"k_cache has shape \(9,\)"),
    "scale": ({"scale": 0.0}, ValueError, "scale = 0.0 must be above zero"),
    "q_mul": ({"q_mul": torch.ones(8)}, ValueError, r"q_mul has shape \(8,\); expected \(8, 128\)"),
    "head size": (
        {"query": torch.zeros(3, 8, 64).bfloat16(), "kv_cache": torch.zeros(9, 2, 16, 128, dtype=torch.uint8)},
        ValueError,
        "head_dim = 64 is not supported",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_told(launches: Launches, case: str) -> None:
    changes, error, message = WRONG[case]
    given, _ = call()
    with pytest.raises(error, match=message):
        decode(**{**given, **changes})
    assert not launches.layers


def test_without_a_gpu_it_says_what_there_is_instead() -> None:
    given, _ = call()
    with pytest.raises(RuntimeError, match=r"query is on cpu; the kernel needs a GPU.*mjolnir\.kernel\.emulator"):
        decode(**given)


def test_shapes_are_known_without_data() -> None:
    given, _ = call(Geometry(8, 2, page_size=16, q_len=2))
    with FakeTensorMode():
        there: dict[str, Any] = {
            name: torch.empty(value.shape, dtype=value.dtype, device="cuda") if torch.is_tensor(value) else value
            for name, value in given.items()
        }
        out, lse = decode(**there, return_lse=True)
        assert (out.shape, out.dtype, out.device.type) == ((6, 8, 128), torch.bfloat16, "cuda")
        assert (lse.shape, lse.dtype) == ((6, 8), torch.float32)


def test_it_is_a_proper_operator(launches: Launches) -> None:
    given, _ = call()
    arguments = (
        given["query"], [given["kv_cache"]], given["block_table"], given["seq_lens"],
        torch.zeros(3, 8, 128, dtype=torch.bfloat16), torch.zeros(3, 8), given["k_scale"], given["v_scale"], None, None,
        None, 1, True, "native", None, None,
    )  # fmt: skip
    found = torch.library.opcheck(torch.ops.mjolnir.decode.default, arguments)
    assert set(found.values()) == {"SUCCESS"}


def test_it_compiles_without_a_graph_break(launches: Launches) -> None:
    given, wanted = call()
    query = given.pop("query")

    def model(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = decode(query, **given, return_lse=True, setting=Setting(max_splits=4))
        return out * 2, lse

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out, lse = compiled(query)
    assert launches.plans[0]["max_splits"] == 4
    torch.testing.assert_close(out, (attention_f64(**wanted)[0].to(torch.bfloat16) * 2))
    torch.testing.assert_close(lse, attention_f64(**wanted)[1].float())


def test_importing_the_package_imports_nothing_heavy() -> None:
    check = (
        "import sys, mjolnir.kernel as kernel; heavy = {'torch', 'cutlass'} & set(sys.modules); "
        "print(sorted(heavy), kernel.decode.__name__, hasattr(kernel, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[] decode False\n"
