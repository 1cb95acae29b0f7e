"""The search space: independent ranges, every feasible setting once, refusals with a reason."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import infeasible, resolve
from mjolnir.tuner.space import RING, Space, grid

GEOMETRY = Geometry(32, 8)
WHOLE = Space(GEOMETRY, H200)


def brute_force() -> set[Setting]:
    """Every feasible setting of the search values, resolved."""
    settings = (Setting(*values) for values in product(*(item.search for item in KNOBS)))
    return {resolve(s, GEOMETRY, H200) for s in settings if not infeasible(s, GEOMETRY, H200)}


def test_the_space_holds_every_feasible_setting_once() -> None:
    members = [WHOLE.setting(WHOLE.member(index)) for index in range(WHOLE.size)]
    assert len(set(members)) == len(members)
    assert set(members) == brute_force()


def test_no_range_depends_on_another_knob() -> None:
    assert [dimension.name for dimension in WHOLE.dimensions] == [
        "ring", "max_splits", "pdl", "l2_prefetch", "kv_evict_first",
    ]  # fmt: skip
    for coordinates in product(*((0, len(d.values) - 1) for d in WHOLE.dimensions)):
        assert WHOLE.unmeasurable(WHOLE.setting(coordinates)) is None
    assert [value for (value,) in WHOLE.dimensions[1].values] == [0, *(1 << i for i in range(10))]


@given(st.integers(0, WHOLE.size - 1))
def test_coordinates_and_settings_are_inverse(index: int) -> None:
    coordinates = WHOLE.member(index)
    assert WHOLE.coordinates(WHOLE.setting(coordinates)) == coordinates


def test_zero_stages_fold_to_the_depth_they_stand_for() -> None:
    deepest = resolve(Setting(ctas_per_sm=1), GEOMETRY, H200)
    assert deepest.kv_stages > 2
    assert WHOLE.coordinates(Setting(ctas_per_sm=1)) == WHOLE.coordinates(deepest)
    assert WHOLE.default == resolve(Setting(), GEOMETRY, H200)


def test_what_cannot_run_is_refused_with_the_kernels_reason() -> None:
    setting = Setting(ctas_per_sm=4, kv_stages=12)
    assert WHOLE.unmeasurable(setting) == infeasible(setting, GEOMETRY, H200)
    assert "shared memory" in (WHOLE.unmeasurable(setting) or "")
    assert WHOLE.coordinates(setting) is None


def test_values_that_never_fit_are_reported() -> None:
    space = Space(GEOMETRY, H200, {"ctas_per_sm": 2})
    assert "shared memory" in space.excluded["kv_stages=12"]
    assert "kv_stages=2" not in space.excluded
    assert all(setting[0] == 2 for setting in space.dimensions[0].values)


def test_pins_hold() -> None:
    space = Space(GEOMETRY, H200, {"kv_stages": 4, "pdl": 1, "max_splits": 5})
    for index in range(space.size):
        setting = space.setting(space.member(index))
        assert (setting.kv_stages, setting.pdl, setting.max_splits) == (4, 1, 5)
    assert space.coordinates(Setting(kv_stages=4)) is None
    assert space.default == WHOLE.default


def test_pinning_zero_stages_means_the_deepest_ring_of_each_cta_count() -> None:
    ring = Space(GEOMETRY, H200, {"kv_stages": 0}).dimensions[0].values
    expected = {resolve(Setting(ctas_per_sm=c), GEOMETRY, H200).kv_stages for c in (1, 2)}
    assert expected <= {stages for _, _, stages in ring}
    assert len(ring) == len({(ctas, warps) for ctas, warps, _ in ring})


def test_computing_warps_are_searched_with_the_ring_that_they_leave_room_for() -> None:
    assert RING == ("ctas_per_sm", "consumer_warps", "kv_stages")
    assert WHOLE.dimensions[0].knobs == RING
    found = {(ctas, warps) for ctas, warps, _ in WHOLE.dimensions[0].values}
    assert found == {(1, 4), (1, 8), (2, 4), (3, 4)}
    pinned = Space(GEOMETRY, H200, {"consumer_warps": 8})
    assert "registers: 2 CTAs of 8 computing warps per SM" in pinned.excluded["ctas_per_sm=2"]
    wide = Space(Geometry(64, 8, q_len=8), H200)
    assert wide.excluded["consumer_warps=8"] == "consumer_warps = 8: engine wgmma computes with 4 warps"
    assert {setting[1] for setting in wide.dimensions[0].values} == {4}


def test_pins_that_leave_nothing_say_why() -> None:
    with pytest.raises(ValueError, match=r"ctas_per_sm=4 kv_stages=12 can run: shared memory"):
        Space(GEOMETRY, H200, {"ctas_per_sm": 4, "kv_stages": 12})
    with pytest.raises(ValueError, match="kv_stages = 13 is not allowed"):
        Space(GEOMETRY, H200, {"kv_stages": 13})


def test_a_recording_limits_the_space_to_what_it_holds() -> None:
    held = grid(GEOMETRY, H200, {"ctas_per_sm": (1, 2), "kv_stages": (4, 12), "pdl": (0, 1)})
    space = Space(GEOMETRY, H200, allowed=held)
    assert {space.setting(space.member(index)) for index in range(space.size)} == set(held)
    assert space.unmeasurable(Setting(ctas_per_sm=2, kv_stages=3)) == "the recording does not hold this setting"
    rng = np.random.default_rng(0)
    assert all(space.setting(space.random(rng)) in held for _ in range(50))
    with pytest.raises(ValueError, match="holds no setting with max_splits=8"):
        Space(GEOMETRY, H200, {"max_splits": 8}, held)


def test_a_recording_with_holes_is_walked_around() -> None:
    full = grid(GEOMETRY, H200, {"ctas_per_sm": (1, 2), "pdl": (0, 1), "l2_prefetch": (0, 1, 2)})
    held = [setting for setting in full if not (setting.pdl and setting.l2_prefetch == 1)]
    space = Space(GEOMETRY, H200, allowed=held)
    assert space.size == len(held)
    for index in range(space.size):
        for near in space.neighbours(space.member(index)):
            assert space.setting(near) in held
    whole = list(product(*(range(len(dimension.values)) for dimension in space.dimensions)))
    missing = [place for place in whole if not space.holds(place)]
    assert len(missing) == len(full) - len(held)
    assert all(space.holds(space.nearest(place)) for place in missing)


@given(st.integers(0, WHOLE.size - 1))
def test_neighbours_differ_in_one_dimension_by_one(index: int) -> None:
    here = WHOLE.member(index)
    for near in WHOLE.neighbours(here):
        assert sum(abs(a - b) for a, b in zip(here, near, strict=True)) == 1


def test_a_grid_is_feasible_resolved_and_without_duplicates() -> None:
    settings = grid(GEOMETRY, H200, {"ctas_per_sm": (1, 4), "kv_stages": (0, 3, 12)})
    assert settings == sorted(set(settings))
    assert all(infeasible(s, GEOMETRY, H200) is None and s.kv_stages for s in settings)
    assert Setting(ctas_per_sm=1, kv_stages=12) in settings
    assert Setting(ctas_per_sm=4, kv_stages=12) not in settings
    with pytest.raises(ValueError, match="unknown knob 'stages'"):
        grid(GEOMETRY, H200, {"stages": (1,)})
