"""What the computing warps of a CTA are made of, whichever engine they compute with."""

from __future__ import annotations

from dataclasses import dataclass

from mjolnir.kernel.engine import Engine
from mjolnir.kernel.engines.masking import Masking
from mjolnir.kernel.engines.output import Output
from mjolnir.kernel.engines.query import Query
from mjolnir.kernel.engines.ring import Ring
from mjolnir.kernel.geometry import Geometry


@dataclass(frozen=True)
class Consumer:
    """The computing warps of one variant; an engine adds `allocate` and `attend`.

    Attributes:
        geometry: the problem.
        engine: rows of an item.
        ring: where tiles come from.
        query, masking, output: how rows begin, what they see, how they end.
        warps: how many compute, 4 or 8.
        ctas_per_sm: resident CTAs, on which it depends how many registers there are.
    """

    geometry: Geometry
    engine: Engine
    ring: Ring
    query: Query
    masking: Masking
    output: Output
    warps: int
    ctas_per_sm: int
