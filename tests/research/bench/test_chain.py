"""The kernel in its chain, on a card that is none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.research.bench.chain import Served
from mjolnir.research.bench.points import Spot
from mjolnir.tuner.gpu.chain import LaunchError
from mjolnir.tuner.gpu.measure import Policy
from tests.fakes import gpu

SPOT = Spot(Geometry(4, 2, page_size=16), (70, 33))
POLICY = Policy(replay_seconds=1e-9, rotating_bytes=1)


def served(**options: object) -> Served:
    return Served(gpu.FakeCard(options, SPOT.geometry, Path()), SPOT, POLICY)


def test_the_empty_chain_is_taken_off() -> None:
    chain = served()
    settings = [Setting(kv_stages=stages) for stages in (2, 4)]
    slow, fast = (min(times) for times in reversed(chain.samples(settings, 5)))
    assert all(len(times) == 5 for times in chain.samples(settings, 5))
    assert fast == pytest.approx((gpu.CHAIN_NS + 200) / 1e3, abs=0.02)
    assert slow - fast == pytest.approx(0.2, abs=0.02)
    assert chain.window["dirty"] in ("", [], (), None)


def test_outputs_are_compared() -> None:
    assert 0 < served().error(Setting()) < 0.05
    silent = served(trouble={"1": "silent when timed"}).error(replace(Setting(), l2_prefetch=1))
    assert math.isnan(silent)
    wrong = served(trouble={"1": "wrong"}).error(replace(Setting(), l2_prefetch=1))
    assert wrong > 0.2


def test_a_setting_that_cannot_run_is_none_and_a_lost_device_raises() -> None:
    bad = replace(Setting(), l2_prefetch=1)
    assert served(trouble={"1": "refuses"}).quick(bad) is None
    assert served().quick(Setting(kv_stages=2)) == pytest.approx(20.2, abs=0.05)
    with pytest.raises(LaunchError):
        served(trouble={"1": "refuses"}).samples([bad], 3)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        served(trouble={"1": "sticky"}).quick(bad)
