"""The emulator: right by the f64 reference on the gate's cases, and rounding where the engines round."""

import math
from dataclasses import replace

import pytest
import torch

from mjolnir.kernel.cases import Case, expected, gate_cases, make_inputs
from mjolnir.kernel.emulator import _merge, emulate
from mjolnir.kernel.engine import WARP, WGMMA, Engine, engine_for
from mjolnir.kernel.formats import FORMATS
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.plan import Chunk, Plan, make_plan
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.softmax import Softmax, State
from mjolnir.kernel.tolerance import excess, lse_excess
from tests.kernel.problems import problem

GEOMETRIES = (
    ("32/8xd128", None),
    ("16/1xd128,page=16,dtype=f16", WGMMA),
    ("4/4xd128,page=128,dtype=f16", None),
    ("15/5xd256,page=32,q=2", None),
    ("24/2xd128,page=16,q=3,query=fp8", None),
    ("24/2xd128,q=3,causal=no,dtype=f16", WARP),
    ("6/2xd256,q=16,query=fp8", None),
    ("7/1xd256,page=128,q=5", WARP),
)


def engine_of(geometry: Geometry, name: str | None = None) -> Engine:
    return engine_for(geometry, "sm_90a", name)


def cases_of(text: str, name: str | None, *, merge: bool = True) -> list[tuple[Case, Engine]]:
    geometry = Geometry.parse(text)
    engine, many = engine_of(geometry, name), geometry.q_len > 1
    return [(case, engine) for case in gate_cases(geometry, 132, merge=merge, q_mul=many, o_mul=many, engine=engine)]


CASES = [
    pytest.param(case, engine, id=f"{case.geometry}-{engine.name}-{case.name}-{case.max_splits}")
    for case, engine in (
        *(pair for which in GEOMETRIES for pair in cases_of(*which)),
        *cases_of("32/8xd128", None, merge=False),
    )
]


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_the_gates_cases_are_met(case: Case, engine: Engine) -> None:
    inputs = make_inputs(case)
    exact, exact_lse = attention_f64(**inputs.arguments())
    given = expected(case, 132, engine)
    assert given.out.dtype == inputs.q.dtype
    assert given.out.shape == inputs.q.shape
    assert given.lse.dtype == torch.float32
    assert excess(given.out, exact, case.geometry, inputs.o_mul) < 0.9
    assert lse_excess(given.lse, exact_lse) < 0.5


def run(plan: Plan, arguments: dict[str, object], name: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    geometry = arguments["geometry"]
    assert isinstance(geometry, Geometry)
    out, lse = emulate(plan=plan, engine=engine_of(geometry, name), lse=True, **arguments)  # type: ignore[arg-type]
    assert lse is not None
    return out, lse


def plan_of(arguments: dict[str, object], lengths: list[int], grid: int, max_splits: int) -> Plan:
    geometry, table = arguments["geometry"], arguments["block_table"]
    assert isinstance(geometry, Geometry)
    assert isinstance(table, torch.Tensor)
    return make_plan(lengths, geometry.heads_kv, grid, max_splits, capacity=table.shape[1] * geometry.page_size)


def test_splits_change_rounding_alone() -> None:
    geometry = Geometry(8, 2, dtype="f16")
    lengths = [900, 300, 64]
    arguments = problem(geometry, lengths)
    outputs = [run(plan_of(arguments, lengths, 16, splits), arguments)[0] for splits in (0, 1, 3)]
    assert all(0 < excess(out, outputs[0], geometry) <= 0.7 for out in outputs[1:])


def test_lengths_may_differ_from_the_planned_ones() -> None:
    geometry = Geometry(4, 2)
    arguments = problem(geometry, [200, 200, 200])
    plan = make_plan([190, 200, 256], 2, 7, capacity=256, margin=16)
    exact, _ = attention_f64(**arguments)
    assert excess(run(plan, arguments)[0], exact, geometry) < 0.9


def test_tokens_beyond_the_planned_tiles_are_not_read() -> None:
    geometry = Geometry(4, 2)
    arguments = problem(geometry, [200])
    out, _ = run(make_plan([100], 2, 3, capacity=256), arguments)
    exact, _ = attention_f64(**{**arguments, "seq_lens": torch.tensor([128], dtype=torch.int32)})
    assert excess(out, exact, geometry) < 0.9


def test_a_zero_key_scale_gives_the_mean() -> None:
    geometry = Geometry(2, 1)
    arguments = {**problem(geometry, [150]), "k_scale": torch.tensor(0.0)}
    out, lse = run(make_plan([150], 1, 2, capacity=192), arguments)
    assert torch.allclose(lse, torch.tensor(math.log(150)))
    assert excess(out, attention_f64(**arguments)[0], geometry) < 0.9


def test_a_plan_of_another_batch_is_refused() -> None:
    arguments = problem(Geometry(2, 1), [10, 10])
    with pytest.raises(ValueError, match="a plan of 1 x 1 items for a batch of 2 x 1"):
        run(make_plan([10], 1, 2, capacity=64), arguments)


def test_row_blocks_of_a_head_are_items_of_the_plan() -> None:
    geometry = Geometry(24, 2, q_len=2)
    arguments = problem(geometry, [100])
    assert engine_of(geometry, WARP).blocks == 2
    with pytest.raises(ValueError, match="a plan of 1 x 2 items for a batch of 1 x 4"):
        run(make_plan([100], 2, 3, capacity=128), arguments, WARP)
    exact, _ = attention_f64(**arguments)
    assert excess(run(make_plan([100], 4, 3, capacity=128), arguments, WARP)[0], exact, geometry) < 0.9


def state(engine: str = WARP) -> State:
    return State.fresh(1, Softmax.of(engine), torch.ones(1, 1), 128)


def test_p_is_rounded_for_the_output_and_not_for_the_sum() -> None:
    scores = torch.full((1, 4, 1, 16), -torch.inf)
    scores[..., 0], scores[..., 1] = 0.0, -0.3
    values = torch.zeros(1, 4, 16, 128)
    values[:, :, 1] = 1.0
    one = state()
    one.update(scores, scores.isfinite(), values)
    p = torch.exp2(torch.tensor(-0.3))
    assert p.half().float() != p
    assert (one.out == p.half().float()).all()
    assert (one.total == 1 + p).all()


def test_each_warp_has_a_maximum_of_its_own() -> None:
    scores = torch.arange(4.0).neg()[None, :, None, None].expand(1, 4, 1, 16).clone()
    seen = torch.ones_like(scores, dtype=torch.bool)
    seen[:, 3] = False
    one = state()
    one.update(scores, seen, torch.ones(1, 4, 16, 128))
    one.update(scores - 9, torch.zeros_like(seen), torch.ones(1, 4, 16, 128))
    assert one.peak.flatten().tolist() == [0, -1, -2, -math.inf]
    assert one.total.flatten().tolist() == [16, 16, 16, 0]
    out, lse2 = one.combine()
    assert torch.allclose(out, torch.ones(()))
    assert torch.allclose(lse2, torch.tensor(math.log2(16 * 1.75)))


def test_a_rising_maximum_shrinks_what_was_summed() -> None:
    one, values = state(), torch.ones(1, 4, 16, 128)
    for score in (0.0, 3.0, 1.0):
        scores = torch.full((1, 4, 1, 16), score)
        one.update(scores, torch.ones_like(scores, dtype=torch.bool), values)
    assert (one.peak == 3).all()
    assert torch.equal(one.total, torch.full((1, 4, 1), 16 * (1 + 2**-3 + 2**-2)))
    assert torch.equal(one.out[..., 0], one.total)


def test_the_query_is_rounded_row_by_row() -> None:
    """Scores of rows above 2^15 come from f16 codes: an element that underflows there is lost."""
    geometry = Geometry(1, 1)
    arguments = problem(geometry, [2])
    arguments["k"].zero_()
    arguments["k"][0, 1, 0, 1] = 0x7E
    arguments["q"].zero_()
    arguments["q"][0, 0, 0], arguments["q"][0, 0, 1] = 2.0**60, 2.0**-3
    arguments["scale"] = 1.0
    _, lse = run(make_plan([2], 1, 1, capacity=64), arguments)
    assert torch.allclose(lse, torch.tensor(math.log(2)))
    arguments["q"][0, 0, 0] = 2.0**10
    _, lse = run(make_plan([2], 1, 1, capacity=64), arguments)
    assert torch.allclose(lse, torch.tensor(448 / 8.0))


def test_the_log_sum_exp_is_only_made_when_asked_for() -> None:
    case = replace(gate_cases(Geometry(2, 1), 8)[0], lengths=(5, 0))
    out, lse = emulate(plan=case.plan(8), engine=engine_of(case.geometry), **make_inputs(case).arguments())
    assert lse is None
    assert (out[1] == 0).all()


def tile(score: float, engine: str = WGMMA) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tile of equal scores, all of them seen, whose values are one."""
    states = Softmax.of(engine).states
    scores = torch.full((1, states, 1, 64 // states), score)
    return scores, torch.ones_like(scores, dtype=torch.bool), torch.ones(1, states, 64 // states, 128)


def test_wgmma_has_one_maximum_that_is_raised_when_outgrown_by_more_than_2_to_the_8() -> None:
    one = state(WGMMA)
    assert one.peak.shape == (1, 1, 1)
    peaks, totals = [], []
    for score in (1.0, 9.0, 9.5, 5.0):
        one.update(*tile(score))
        peaks.append(one.peak.item())
        totals.append(one.total.item())
    assert peaks == [1, 1, 9.5, 9.5]
    raised = 64 * (1 + 2.0**8) * 2.0**-8.5 + 64
    assert totals == pytest.approx([64, 64 * (1 + 2.0**8), raised, raised + 64 * 2.0**-4.5])
    assert torch.allclose(one.out[..., 0], one.total, rtol=1e-3)


def test_an_unseen_tile_raises_no_maximum() -> None:
    for engine in (WARP, WGMMA):
        one = state(engine)
        scores, seen, values = tile(50.0, engine)
        one.update(scores, ~seen, values)
        assert (one.peak == -torch.inf).all()
        assert (one.total == 0).all()
        one.update(*tile(-3.0, engine))
        assert (one.peak == -3).all()
        one.update(scores, ~seen, values)
        out, lse2 = one.combine()
        assert (out == 1).all()
        assert torch.allclose(lse2, torch.tensor(-3 + 6.0))


def test_eight_warps_take_every_other_tile_each_four() -> None:
    geometry, lengths = Geometry(4, 2, dtype="f16"), [64 * 6, 64 * 3 + 7, 0]
    arguments = problem(geometry, lengths)
    exact, exact_lse = attention_f64(**arguments)
    for grid in (1, 2, 3, 5, 7):
        plan = plan_of(arguments, lengths, grid, 0)
        four, eight = (
            emulate(plan=plan, engine=engine_of(geometry), warps=warps, lse=True, **arguments) for warps in (4, 8)
        )
        assert eight[1] is not None
        assert excess(eight[0], exact, geometry) < 0.9
        assert lse_excess(eight[1], exact_lse) < 0.5
        assert not torch.equal(four[0], eight[0])
    assert Softmax.of(WARP, 8) == Softmax(8, 2, 0.0)
    assert Softmax.of(WGMMA, 8) == Softmax.of(WGMMA)


def test_many_ctas_are_merged_in_groups_of_sixteen_from_the_items_first() -> None:
    """Each group is rounded to f32 before the groups are merged, and empty CTAs count."""
    ctas = [7, *range(9, 23), 23, 24, 40]
    chunks = [Chunk(cta, 0, i, i + 1, 2 * cta) for i, cta in enumerate(ctas)]
    draw = torch.Generator().manual_seed(0)
    out, lse2 = torch.randn(len(ctas), 1, 128, generator=draw), 3 * torch.randn(len(ctas), 1, generator=draw)

    def merged(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        peak = torch.stack([lse for _, lse in parts]).amax(0)
        total, sums = torch.zeros(1), torch.zeros(1, 128)
        for part, lse in parts:
            weight = torch.exp2(lse - peak)
            total, sums = total + weight, sums + weight[:, None] * part
        return sums / total[:, None], peak + total.log2()

    parts = list(zip(out, lse2, strict=True))
    groups = [parts[:15], parts[15:17], parts[17:]]
    assert [(cta - 7) // 16 for cta in ctas] == [0] * 15 + [1] * 2 + [2]
    wanted = merged([merged(group) for group in groups])
    got = _merge(chunks, 1, out, lse2)
    assert torch.equal(got[0][0], wanted[0])
    assert torch.equal(got[1][0], wanted[1])
    at_once = merged(parts)
    assert torch.allclose(at_once[0], wanted[0], atol=1e-6)
    assert not torch.equal(at_once[0], wanted[0])


def test_up_to_sixteen_ctas_are_merged_at_once() -> None:
    draw = torch.Generator().manual_seed(0)
    out, lse2 = torch.randn(16, 1, 128, generator=draw), torch.randn(16, 1, generator=draw)
    chunks = [Chunk(cta, 0, cta, cta + 1, 2 * cta) for cta in range(16)]
    weights = torch.exp2(lse2 - lse2.amax())
    total, sums = torch.zeros(1), torch.zeros(1, 128)
    for weight, part in zip(weights, out, strict=True):
        total, sums = total + weight, sums + weight[:, None] * part
    assert torch.equal(_merge(chunks, 1, out, lse2)[0][0], sums / total[:, None])


def test_the_output_is_multiplied_by_v_scale_and_then_by_o_mul_before_it_is_rounded() -> None:
    geometry = Geometry(2, 1, dtype="f16")
    arguments = problem(geometry, [1])
    arguments["v_scale"], arguments["o_mul"] = torch.tensor(0.1), torch.linspace(-2, 2, 256).view(2, 128)
    value = FORMATS["fp8"].dequantise(arguments["v"][0, 0])
    out, _ = run(make_plan([1], 1, 1, capacity=64), arguments)
    assert torch.equal(out[0], (value * torch.tensor(0.1) * arguments["o_mul"]).half())
    rounded_twice = ((value * torch.tensor(0.1)).half() * arguments["o_mul"]).half()
    assert not torch.equal(out[0], rounded_twice)
