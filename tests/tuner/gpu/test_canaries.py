"""What a canary serves in the place of the binary that was asked for."""

from __future__ import annotations

import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, infeasible
from mjolnir.tuner.gpu.canaries import stand_in


@pytest.mark.parametrize("q_len", [1, 4])
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("heads", ["32/8xd128", "64/8xd128", "16/2xd256"])
def test_every_geometry_has_another_binary_to_serve(heads: str, page: int, q_len: int) -> None:
    geometry = Geometry.parse(f"{heads},page={page},q={q_len}")
    other = stand_in(Setting(), geometry, H200)
    assert infeasible(other, geometry, H200) is None
    assert Variant.of(other, geometry, H200) != Variant.of(Setting(), geometry, H200)
