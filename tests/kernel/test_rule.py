"""What the built-in rule says, by geometry and batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mjolnir.kernel.device import H200, Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import BUILT_IN, Rule, answers, built_in
from mjolnir.kernel.variant import infeasible, resolve

MAIN = Geometry(32, 8)
LONG_HEAD = Geometry(16, 2, head_dim=256)


@pytest.mark.parametrize(
    ("geometry", "batch", "expected"),
    [
        (MAIN, 16, Setting(1, 4, 8)),
        (MAIN, 17, Setting(2, 2)),
        (replace(MAIN, page_size=16), 17, Setting(2, 3)),
        (replace(MAIN, q_len=4), 16, Setting(1, 4, 8)),
        (replace(MAIN, q_len=4), 17, Setting(2, 3)),
        (LONG_HEAD, 66, Setting(1, 4, 8)),
        (LONG_HEAD, 67, Setting(2, 2)),
        (replace(LONG_HEAD, page_size=16), 67, Setting(2, 2)),
        (replace(LONG_HEAD, q_len=4), 66, Setting(1, 3)),
        (replace(LONG_HEAD, q_len=4), 67, Setting(2, 2)),
        (Geometry(64, 8, q_len=4), 2, Setting(1, 3)),
        (Geometry(64, 8, q_len=4), 3, Setting(2, 3)),
        (Geometry(64, 8, q_len=8), 3, Setting(2, 3)),
    ],
)
def test_one_cta_where_an_sm_has_at_most_one_item(geometry: Geometry, batch: int, expected: Setting) -> None:
    assert (
        built_in(geometry, H200, batch) == BUILT_IN.setting(geometry, H200, batch) == resolve(expected, geometry, H200)
    )


def test_eight_warps_do_not_round_the_query_of_a_long_head() -> None:
    rounding = replace(LONG_HEAD, q_format="fp8")
    assert built_in(rounding, H200, 66) == resolve(Setting(1, 3), rounding, H200)
    short = replace(MAIN, q_format="fp8")
    assert built_in(short, H200, 16) == resolve(Setting(1, 4, 8), short, H200)


def test_every_answer_fits_and_is_there_once_and_the_first_is_what_the_rule_says() -> None:
    for geometry, batch in ((MAIN, 1), (MAIN, 256), (LONG_HEAD, 1), (replace(LONG_HEAD, q_len=4), 256)):
        said = answers(geometry, H200, batch)
        assert said[0] == built_in(geometry, H200, batch)
        assert len(set(said)) == len(said) > 1
        assert not any(infeasible(setting, geometry, H200) for setting in said)
        assert resolve(Setting(), geometry, H200) in said


def test_what_does_not_fit_is_left_to_the_knobs_own_defaults() -> None:
    deep = Rule(wide=12, narrow=12, shared=12, more=12)
    for batch in (1, 64):
        assert deep.setting(LONG_HEAD, H200, batch) == resolve(Setting(), LONG_HEAD, H200)


@pytest.mark.parametrize("heads", [(8, 1), (32, 8), (64, 8), (128, 8), (16, 16)])
@pytest.mark.parametrize("q_len", [1, 3, 8])
@pytest.mark.parametrize("device", [H200, Device("sm_110a", "NVIDIA Thor", 20), Device("sm_100a", "NVIDIA B200", 148)])
def test_what_the_rule_says_can_run(heads: tuple[int, int], q_len: int, device: Device) -> None:
    for head_dim in (128, 256):
        geometry = Geometry(*heads, head_dim=head_dim, q_len=q_len)
        for batch in (1, 5, 64, 256):
            said = built_in(geometry, device, batch)
            assert infeasible(said, geometry, device) is None
            assert said.max_splits == said.pdl == said.l2_prefetch == 0
