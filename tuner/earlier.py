"""What was measured with an earlier kernel, in the terms of the kernel as it is now.

Knobs that were not there then had their default. A ring that was as deep as fitted then, and is too deep now, is read
as the one that is as deep as fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import stages_that_fit


def as_of_now(setting: Setting | Mapping[str, int], geometry: Geometry, device: Device) -> Setting:
    """A recorded setting as it is read now.

    Raises:
        ValueError: an unknown knob, or a value outside its domain.
    """
    recorded = setting if isinstance(setting, Setting) else Setting.from_dict(setting)
    fit = stages_that_fit(recorded, geometry, device)
    return replace(recorded, kv_stages=fit) if 2 <= fit < recorded.kv_stages else recorded
