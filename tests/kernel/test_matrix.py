"""The matrix: all pairs, few binaries, and cases that are what they say."""

import random
from dataclasses import replace

import pytest

from mjolnir.kernel.case_inputs import make_inputs
from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.engine import ENGINES
from mjolnir.kernel.matrix import (
    BINARY_AXES,
    CASE_AXES,
    LEAST_CASES,
    binary_geometry,
    binary_rows,
    matrix_cases,
    matrix_rows,
)
from mjolnir.kernel.pairwise import all_pairs, pairs_of

MOST_BINARIES = 120
SEEDS = (0, 1, 2026)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pair_that_can_be_is_there(seed: int) -> None:
    rows = matrix_rows(seed, LEAST_CASES, H200)
    missing = all_pairs({**BINARY_AXES, **CASE_AXES}) - set().union(*map(pairs_of, rows))
    unsplit = {(("merge", False), ("max_splits", n)) for n in CASE_AXES["max_splits"] if n != 1}
    _, impossible = binary_rows(H200, random.Random(seed))
    assert missing == {(("merge", True), ("max_splits", 1)), *unsplit} | impossible
    assert (("q_len", 1), ("causal", False)) in impossible
    knobs = {pair for pair in impossible if {"setting", "engine"} & dict(pair).keys()}
    assert len(impossible - knobs) == 1
    assert len(knobs) < 20


@pytest.mark.parametrize("seed", SEEDS)
def test_there_are_enough_cases_of_few_binaries(seed: int) -> None:
    probes = matrix_cases(seed)
    assert len(probes) >= LEAST_CASES
    variants = {probe.variant(H200) for probe in probes}
    assert len(variants) <= MOST_BINARIES
    assert len({probe.case.seed for probe in probes}) == len(probes)
    assert {variant.engine for variant in variants} == set(ENGINES)
    assert all(
        variant.merge == (probe.setting.max_splits != 1) for probe in probes for variant in [probe.variant(H200)]
    )


def test_a_matrix_is_made_again_from_its_seed() -> None:
    assert matrix_cases(5, 50) == matrix_cases(5, 60)[:50]
    assert matrix_cases(5, 50) != matrix_cases(6, 50)


def test_other_architectures_have_no_engine_that_is_not_theirs() -> None:
    thor = Device("sm_110a", "Thor", 20)
    probes = matrix_cases(0, 100, thor)
    assert {probe.shape(thor).name for probe in probes} == {"warp"}


def test_cases_are_what_they_are_called() -> None:
    probes = matrix_cases(0)
    named = {name: [probe.case for probe in probes if probe.case.name == name] for name in CASE_AXES["shape"]}
    assert all(len(cases) > 10 for cases in named.values())
    assert all(max(case.lengths) > case.capacity for case in named["clamped"])
    assert all(min(case.lengths) < case.geometry.q_len for case in named["drafts"] if case.geometry.q_len > 1)
    assert all(len(case.lengths) == 1 for case in named["alone"])
    assert all(case.query_gain > 1 for case in named["loud"])
    assert all(probe.case.max_splits == probe.setting.max_splits for probe in probes)
    assert all(sum(case.tokens) <= 4096 for case in (probe.case for probe in probes))
    grown = [case for case in (probe.case for probe in probes) if case.planned != case.lengths]
    assert len(grown) > 100


def test_a_probe_makes_inputs_of_its_geometry() -> None:
    for probe in matrix_cases(0, 30)[::6]:
        case = replace(probe.case, lengths=probe.case.lengths[:3])
        inputs = make_inputs(case)
        tokens = len(case.lengths) * case.geometry.q_len
        assert inputs.q.shape == (tokens, case.geometry.heads_q, case.geometry.head_dim)
        assert (inputs.q_mul is not None, inputs.o_mul is not None) == (case.q_mul, case.o_mul)


def test_a_row_names_its_geometry() -> None:
    row = {
        "gqa": 5, "heads_kv": 3, "head_dim": 256, "page_size": 16, "q_len": 4, "causal": False, "q_format": "fp8",
        "dtype": "f16",
    }  # fmt: skip
    assert str(binary_geometry(row)) == "15/3xd256,page=16,q=4,causal=no,kv=fp8,query=fp8,dtype=f16"
