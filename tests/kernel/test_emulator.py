"""The emulator: right by the f64 reference on the gate's cases, and rounding where the engine rounds."""

import math
from dataclasses import replace

import pytest
import torch

from mjolnir.kernel.cases import Case, expected, gate_cases, make_inputs
from mjolnir.kernel.emulator import _State, emulate
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.plan import Plan, make_plan
from mjolnir.kernel.reference import attention_f64
from mjolnir.kernel.tolerance import excess, lse_excess
from tests.kernel.problems import problem

GEOMETRIES = (
    Geometry(32, 8),
    Geometry(16, 1, page_size=16, dtype="f16"),
    Geometry(4, 4, page_size=128, dtype="f16"),
    Geometry(15, 5, page_size=32),
)
CASES = [
    pytest.param(case, id=f"{case.geometry.heads_q}-{case.geometry.heads_kv}-{case.name}-{case.max_splits}")
    for case in (
        *(case for geometry in GEOMETRIES for case in gate_cases(geometry, 132)),
        *gate_cases(GEOMETRIES[0], 132, merge=False),
    )
]


@pytest.mark.parametrize("case", CASES)
def test_the_gates_cases_are_met(case: Case) -> None:
    inputs = make_inputs(case)
    exact, exact_lse = attention_f64(**inputs.arguments())
    given = expected(case, 132)
    assert given.out.dtype == inputs.q.dtype
    assert given.lse.dtype == torch.float32
    assert excess(given.out, exact, case.geometry) < 0.9
    assert lse_excess(given.lse, exact_lse) < 0.5


def plan_of(arguments: dict[str, object], lengths: list[int], grid: int, max_splits: int) -> Plan:
    geometry, table = arguments["geometry"], arguments["block_table"]
    assert isinstance(geometry, Geometry)
    assert isinstance(table, torch.Tensor)
    return make_plan(lengths, geometry.heads_kv, grid, max_splits, capacity=table.shape[1] * geometry.page_size)


def test_splits_change_rounding_alone() -> None:
    geometry = Geometry(8, 2, dtype="f16")
    lengths = [900, 300, 64]
    arguments = problem(geometry, lengths)
    outputs = [emulate(plan=plan_of(arguments, lengths, 16, splits), **arguments)[0] for splits in (0, 1, 3)]
    assert all(0 < excess(out, outputs[0], geometry) <= 0.7 for out in outputs[1:])


def test_lengths_may_differ_from_the_planned_ones() -> None:
    geometry = Geometry(4, 2)
    arguments = problem(geometry, [200, 200, 200])
    plan = make_plan([190, 200, 256], 2, 7, capacity=256, margin=16)
    exact, _ = attention_f64(**arguments)
    assert excess(emulate(plan=plan, **arguments)[0], exact, geometry) < 0.9


def test_tokens_beyond_the_planned_tiles_are_not_read() -> None:
    geometry = Geometry(4, 2)
    arguments = problem(geometry, [200])
    out, _ = emulate(plan=make_plan([100], 2, 3, capacity=256), **arguments)
    exact, _ = attention_f64(**{**arguments, "seq_lens": torch.tensor([128], dtype=torch.int32)})
    assert excess(out, exact, geometry) < 0.9


def test_a_zero_key_scale_gives_the_mean() -> None:
    geometry = Geometry(2, 1)
    arguments = {**problem(geometry, [150]), "k_scale": torch.tensor(0.0)}
    out, lse = emulate(plan=make_plan([150], 1, 2, capacity=192), lse=True, **arguments)
    assert lse is not None
    assert torch.allclose(lse, torch.tensor(math.log(150)))
    assert excess(out, attention_f64(**arguments)[0], geometry) < 0.9


def test_a_plan_of_another_batch_is_refused() -> None:
    arguments = problem(Geometry(2, 1), [10, 10])
    with pytest.raises(ValueError, match="a plan of 1 x 1 items for a batch of 2 x 1"):
        emulate(plan=make_plan([10], 1, 2, capacity=64), **arguments)


def state(rows: int = 1) -> _State:
    shape = (1, 4, rows)
    return _State(torch.full(shape, -torch.inf), torch.zeros(shape), torch.zeros(*shape, 128), torch.ones(1, 1, 1))


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
    _, lse = emulate(plan=make_plan([2], 1, 1, capacity=64), lse=True, **arguments)
    assert lse is not None
    assert torch.allclose(lse, torch.tensor(math.log(2)))
    arguments["q"][0, 0, 0] = 2.0**10
    _, lse = emulate(plan=make_plan([2], 1, 1, capacity=64), lse=True, **arguments)
    assert lse is not None
    assert torch.allclose(lse, torch.tensor(448 / 8.0))


def test_the_log_sum_exp_is_only_made_when_asked_for() -> None:
    case = replace(gate_cases(Geometry(2, 1), 8)[0], lengths=(5, 0))
    out, lse = emulate(plan=case.plan(8), **make_inputs(case).arguments())
    assert lse is None
    assert (out[1] == 0).all()
