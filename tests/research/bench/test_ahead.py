"""What a search begins with is compiled ahead; what cannot be is no matter."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant
from mjolnir.research.bench import ahead
from mjolnir.research.bench.points import MAIN
from mjolnir.research.bench.tuning import first_binaries, search

DEEP = Geometry(16, 2, 256)


def test_the_binaries_of_a_search_are_there() -> None:
    made = ahead.variants([MAIN, DEEP], H200, 16)
    assert len(made) == len(set(made))
    assert {variant.geometry for variant in made} == {MAIN, DEEP}
    timed: list[Setting] = []

    def timer(setting: Setting) -> float:
        timed.append(setting)
        return float(len(timed))

    search([Setting()], MAIN, H200, timer, 16)
    wanted = {Variant.of(setting, MAIN, H200) for setting in timed[:8] if setting.max_splits in (0, 1)}
    assert len(wanted) >= 6
    assert wanted <= set(made)
    assert ahead.variants([MAIN], H200, 0) == []
    assert len(first_binaries(MAIN, H200, 16)) == len(first_binaries(DEEP, H200, 16)) == 8


@pytest.mark.parametrize("wanted", [True, False])
def test_builds_are_waited_for_and_flashinfer_may_lack(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    seen: list[Any] = []

    class Pool:
        def __init__(self, folder: Any) -> None:
            self.closed = False

        def variant(self, variant: Variant) -> Future[None]:
            done: Future[None] = Future()
            done.set_exception(RuntimeError("does not compile"))
            seen.append(variant)
            return done

        def close(self) -> None:
            seen.append("closed")

    def build(geometries: Any) -> None:
        raise ModuleNotFoundError("No module named 'flashinfer'")

    monkeypatch.setattr("mjolnir.tuner.gpu.pool.CompilePool", Pool)
    monkeypatch.setattr("mjolnir.research.bench.peers.flashinfer.build", build)
    told = ahead.compile_ahead([MAIN], H200, limit=4, flashinfer=wanted)
    assert told == ("ModuleNotFoundError: No module named 'flashinfer'" if wanted else "")
    assert seen == [*ahead.variants([MAIN], H200, 4), "closed"]
