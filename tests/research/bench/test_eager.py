"""The eager bench with a host that is not there: a clock that calls move, launches that are only kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mjolnir.kernel import operator
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.runners import Runners
from mjolnir.research.answer import MissingFailure, UsageFailure
from mjolnir.research.bench import eager
from tests.fakes import launches as fake
from tests.fakes.launches import Launches

GEOMETRY = Geometry(8, 2, page_size=64)


class FakeHost:
    def __init__(self) -> None:
        self.device, self.torch_device = fake.DEVICE, "cpu"
        self.waits = 0
        self.made = 10, 1000

    def wait(self) -> None:
        self.waits += 1

    def allocations(self) -> tuple[int, int]:
        self.made = self.made[0] + 2, self.made[1] + 512
        return self.made


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    monkeypatch.setattr(eager, "LAYERS", 4)
    monkeypatch.setattr(eager, "WARM", 8)
    monkeypatch.setattr(operator, "_facts", lambda device: fake.DEVICE)
    monkeypatch.setattr(operator, "RUNNERS", Runners(4))
    return fake.install(monkeypatch)


def test_a_call_is_timed_by_itself(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(eager, "perf_counter_ns", lambda: now[0])
    host, given = FakeHost(), eager.layers(GEOMETRY, "cpu")
    seen = []

    def prepare(layer: eager.Layer) -> Any:
        now[0] += 1_000_000  # no part of any time

        def call() -> None:
            seen.append(layer)
            now[0] += 3_000 + len(seen) % 2 * 4_000

        return call

    found = eager.times(host, 130, prepare, given)
    assert found == [7.0, 3.0] * 65
    assert [layer is given[number % 4] for number, layer in enumerate(seen[8:])] == [True] * 130
    assert host.waits == 4


def test_figures_come_from_the_rows(launches: Launches, tmp_path: Path) -> None:
    out = tmp_path / "eager-fake.json"
    answer = eager.measured(FakeHost(), GEOMETRY, 40, out)
    data = json.loads(out.read_text())
    assert data == answer.data
    rows = {(row["call"], row["tensors"]): row for row in data["rows"]}
    assert set(rows) == {("plan", "kept"), ("run", "kept"), ("run", "new"), ("run", "odd"), ("decode", "kept")}
    assert all(0 < row["us_p10"] <= row["us"] <= row["us_p90"] for row in rows.values())
    figures = data["figures"]
    assert figures["eager_us_run"] == rows["run", "new"]["us"]
    assert figures["eager_us_decode"] == rows["decode", "kept"]["us"]
    assert (figures["eager_allocations"], figures["eager_allocated_bytes"]) == (2, 512)
    assert data["taken"]["device"] == "Fake"


def test_each_kind_of_call_reaches_the_kernel_as_it_says(launches: Launches) -> None:
    eager.measured(FakeHost(), GEOMETRY, 40, None)
    assert len(launches.layers) == 3 * 48 + 12 + 48  # run of three kinds, its warm-up, and decode
    assert len(launches.plans) == 2 * 48
    assert {launch["query"].stride() for launch in launches.layers} == {(1024, 128, 1)}
    assert len({launch["query"].data_ptr() for launch in launches.layers}) == 4 + 1  # odd queries are packed into one
    assert len({launch["k_cache"].data_ptr() for launch in launches.layers}) == 4


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingFailure, match="no CUDA device"):
        eager.eager()
    with pytest.raises(UsageFailure, match="--calls 3"):
        eager.eager(calls=3)


@pytest.mark.gpu
def test_a_layer_costs_the_host_less_than_25_us_and_allocates_nothing() -> None:
    figures = eager.eager().data["figures"]
    assert figures["eager_us_run"] <= 25
    assert figures["eager_allocations"] == 0
