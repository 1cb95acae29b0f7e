"""Running cases on the GPU: outputs, and everything around them that must stay as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mjolnir.kernel.case import Case
from mjolnir.kernel.case_inputs import Inputs, place
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.layouts import allocate, views
from mjolnir.kernel.matrix import Probe
from mjolnir.kernel.reference import attention_f32, attention_f64
from mjolnir.kernel.runner import Runner
from mjolnir.kernel.timing import capture, random_inputs
from mjolnir.kernel.tolerance import excess, lse_excess
from mjolnir.research.correctness_truth import Truth

WHERE = "cuda"
SPARE_ROWS = 3
"""Rows of Q, O and LSE behind the batch's, which must not be touched."""

FAR_BYTES = 5 << 30
"""A pool beyond 4 GB and 2^31 elements."""

FAR_LAYOUTS = ("BHN2D", "2BNHD")
MILLION = 1_000_037


@dataclass(frozen=True, slots=True)
class Launch:
    """One case on the GPU, with outputs full of NaN."""

    runner: Runner
    inputs: Inputs
    planned: Tensor
    margin: int
    query: Tensor
    out: Tensor
    lse: Tensor | None

    @classmethod
    def of(cls, probe: Probe, inputs: Inputs, device: Device) -> Launch:
        """Place a case's inputs (on the GPU) with spare rows behind Q and O."""
        case, geometry = probe.case, probe.case.geometry
        runner = Runner(
            probe.setting, geometry, device, max_batch=len(case.lengths), capacity=case.capacity, lse=probe.lse,
            q_mul=case.q_mul, o_mul=case.o_mul, engine=probe.engine,
        )  # fmt: skip
        spare = torch.full((SPARE_ROWS, *inputs.q.shape[1:]), torch.nan, dtype=inputs.q.dtype, device=WHERE)
        query = place(torch.cat([inputs.q, spare]), case.query, geometry)
        out = place(torch.full_like(query, torch.nan, memory_format=torch.contiguous_format), probe.out, geometry)
        lse = torch.full(query.shape[:2], torch.nan, device=WHERE) if probe.lse else None
        planned = torch.tensor(case.planned, dtype=torch.int32, device=WHERE)
        return cls(runner, inputs, planned, case.margin, query, out, lse)

    def plan(self) -> None:
        """Plan with the lengths before they grew."""
        self.runner.plan(self.planned, self.margin)

    def run(self) -> None:
        """Attend."""
        it = self.inputs
        self.runner.run(
            self.query, it.k, it.v, it.block_table, it.seq_lens, self.out, it.k_scale, it.v_scale, it.scale, self.lse,
            it.q_mul, it.o_mul,
        )  # fmt: skip

    def run_otherwise(self) -> None:
        """The same launch, its arguments in the other forms that the contract allows.

        Q and O have two dimensions, the cache is e4m3 in name, rows of the block table lie further apart, and scales
        are spread without a copy.
        """
        it = self.inputs
        k, v = (part.view(torch.float8_e4m3fn) for part in (it.k, it.v))
        batch, width = it.block_table.shape
        table = torch.full((batch, width + 3), -1, dtype=torch.int32, device=WHERE)[:, :width].copy_(it.block_table)
        k_scale, v_scale = (x.expand(batch, self.runner.geometry.heads_kv) for x in (it.k_scale, it.v_scale))
        self.runner.run(
            self.query.flatten(1), k, v, table, it.seq_lens, self.out.flatten(1), k_scale, v_scale, it.scale, self.lse,
            it.q_mul, it.o_mul,
        )  # fmt: skip

    def poison(self) -> None:
        """Fill outputs with NaN again."""
        self.out.fill_(torch.nan)
        if self.lse is not None:
            self.lse.fill_(torch.nan)

    def results(self) -> tuple[Tensor, Tensor | None]:
        """Copies of the batch's rows of output and log-sum-exp."""
        tokens = len(self.inputs.q)
        return self.out[:tokens].clone(), None if self.lse is None else self.lse[:tokens].clone()

    def untouched(self) -> bool:
        """Whether what lies behind and between the batch's rows is still NaN."""
        memory = torch.empty(0, dtype=self.out.dtype, device=WHERE).set_(self.out.untyped_storage())
        rows = self.lse is None or bool(self.lse[len(self.inputs.q) :].isnan().all())
        return rows and int((~memory.isnan()).sum()) <= self.inputs.q.numel()


def judge(probe: Probe, truth: Truth, device: Device) -> dict[str, Any]:
    """Run one case twice, the second time with arguments in other forms, and compare it with its truth.

    Returns:
        Errors over their bounds, and what else is wrong in words.
    """
    inputs = truth.inputs.to(WHERE)
    before = {name: getattr(inputs, name).clone() for name in ("cache", "block_table", "seq_lens")}
    launch = Launch.of(probe, inputs, device)
    launch.plan()
    launch.run()
    (out, lse), problems = launch.results(), []
    if not launch.untouched():
        problems.append("memory beyond the batch's rows was written")
    launch.poison()
    launch.run_otherwise()
    second, second_lse = launch.results()
    if not same(out, second) or (lse is not None and second_lse is not None and not same(lse, second_lse)):
        problems.append("two launches differ")
    if not all(same(getattr(inputs, name), value) for name, value in before.items()):
        problems.append("inputs were written to")
    geometry, o_mul = probe.case.geometry, truth.inputs.o_mul
    errors = {
        "excess": excess(out, truth.exact, geometry, o_mul),
        "excess_emulator": excess(out, truth.out, geometry, o_mul),
    }
    if lse is not None:
        errors["lse_excess"] = lse_excess(lse, truth.exact_lse)
        errors["lse_excess_emulator"] = lse_excess(lse, truth.lse)
    return {**errors, "problems": problems}


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    kinds = {2: torch.int16, 4: torch.int32}
    if one.dtype.is_floating_point:
        one, other = (x.contiguous().view(kinds[x.element_size()]) for x in (one, other))
    return torch.equal(one, other)


def judge_graph(probe: Probe, truth: Truth, device: Device) -> dict[str, Any]:
    """Capture plan and launch at the case's lengths, and replay them with others: against the f32 reference."""
    launch = Launch.of(probe, truth.inputs.to(WHERE), device)
    launch = replace(launch, planned=launch.inputs.seq_lens, margin=0)

    def step(_: int) -> None:
        launch.plan()
        launch.run()

    graph, problems, worst = capture(step, 1), [], 0.0
    seen = torch.tensor(probe.case.tokens, dtype=torch.int32, device=WHERE)
    for lengths in (seen // 3, seen.roll(1).minimum(seen), (seen - 1).clamp(min=0), seen):
        launch.inputs.seq_lens.copy_(lengths)
        launch.poison()
        graph.replay()
        (out, _), wanted = launch.results(), attention_f32(**launch.inputs.arguments())[0]
        worst = max(worst, excess(out, wanted, probe.case.geometry, launch.inputs.o_mul))
        launch.poison()
        step(0)
        if not same(out, launch.results()[0]):
            problems.append("a replay differs from a launch")
    return {"excess": worst, "problems": problems}


def far_probes(seed: int) -> tuple[Probe, ...]:
    """Cases whose pages are to lie at the end of a pool beyond 4 GB."""
    geometry = Geometry(16, 8, page_size=128, q_len=2)
    lengths = (1500, 0, 333, 129)
    cases = [Case("far", geometry, lengths, 0, layout=layout, scales="head", seed=seed) for layout in FAR_LAYOUTS]
    return tuple(Probe(case, Setting(), None, True, "plain") for case in cases)


def far_away(inputs: Inputs, case: Case) -> Inputs:
    """The same inputs, on the GPU, with their pages moved to the end of a large pool."""
    geometry = case.geometry
    block = 2 * geometry.heads_kv * geometry.page_size * geometry.head_dim
    pages, used = FAR_BYTES // block, inputs.k.shape[0]
    cache = allocate(case.layout, pages, geometry, WHERE, fill=None)
    k, v = views(cache, geometry, case.layout)
    k[pages - used :], v[pages - used :] = inputs.k.to(WHERE), inputs.v.to(WHERE)
    mine = torch.arange(case.width) * geometry.page_size < torch.tensor(case.tokens)[:, None]
    table = torch.where(mine, inputs.block_table + (pages - used), inputs.block_table).to(torch.int32)
    return replace(inputs.to(WHERE), cache=cache, k=k, v=v, block_table=table.to(WHERE))


def judge_far(probe: Probe, truth: Truth, device: Device) -> dict[str, Any]:
    """A case at the end of a large pool."""
    launch = Launch.of(probe, far_away(truth.inputs, probe.case), device)
    launch.plan()
    launch.run()
    out, _ = launch.results()
    errors = {"excess": truth.exact, "excess_emulator": truth.out}
    return {name: excess(out, x, probe.case.geometry) for name, x in errors.items()} | {"problems": []}


def judge_million(geometry: Geometry, device: Device, seed: int) -> dict[str, Any]:
    """One sequence of a million tokens, against f64."""
    inputs = random_inputs(geometry, 1, MILLION, "BHN2D", seed, device=WHERE)
    capacity = inputs.block_table.shape[1] * geometry.page_size
    runner = Runner(Setting(), geometry, device, max_batch=1, capacity=capacity)
    out = torch.full_like(inputs.q, torch.nan)
    runner.plan(inputs.seq_lens)
    runner.run(inputs.q, inputs.k, inputs.v, inputs.block_table, inputs.seq_lens, out, inputs.k_scale, inputs.v_scale)
    return {"excess": excess(out, attention_f64(**inputs.arguments())[0], geometry), "problems": []}
