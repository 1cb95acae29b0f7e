"""The built-in rule: what a launch is set to where no table has a row for it.

A launch is an amount of items, one for each sequence, KV head and row block. Where there is at most one for each SM,
every item is split, and a CTA that has its SM for itself streams fastest: with eight computing warps where the engine
has so many, else with four. Where there are more items, two CTAs of four warps hide each other's ends. A short head
whose rows are too many for eight warps is bound by computing, and wants two CTAs but for the fewest items. Two stages
suffice two CTAs, three where pages are short or rows are many, though not with a long head, whose stages are large.
Splits are left to the planner, dependent launch, prefetch and eviction to `Setting()`.

Eight warps that round a long head's query to e4m3 themselves run out of registers. What spills is known for certain
only once it is compiled, so there are several answers, best first.

The numbers were chosen by `mjolnir bench rule` from what was timed on the H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mjolnir.kernel.device import Device
from mjolnir.kernel.engine import TILE_WARPS, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import infeasible, resolve

WIDE = 2 * TILE_WARPS
"""Computing warps of a CTA that has an SM for itself, where the engine has so many."""

FEW_ROWS = 8
"""Query rows up to which a tile's work hides behind its load with two stages."""

LONG_PAGE = 64
"""Tokens of a page that holds a whole tile."""

LONG_HEAD = 256
"""Head size of which two stages fill what two CTAs have of shared memory."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The numbers of the rule.

    Attributes:
        full: items for each SM up to which one CTA has it for itself.
        few: the same where four warps compute on many rows of a short head.
        wide: stages of such a CTA of eight warps.
        narrow: stages of such a CTA of four warps.
        shared: stages of each of two.
        more: stages of each of two where pages are short or rows are many.
    """

    full: float = 1.0
    few: float = 0.125
    wide: int = 4
    narrow: int = 3
    shared: int = 2
    more: int = 3

    def setting(self, geometry: Geometry, device: Device, batch: int) -> Setting:
        """The setting for a batch, resolved; `Setting()` where what the rule says does not fit."""
        return self.settings(geometry, device, batch)[0]

    def settings(self, geometry: Geometry, device: Device, batch: int) -> tuple[Setting, ...]:
        """What may serve a batch, best first: all that fits, resolved and each once, `Setting()` where nothing does.

        Args:
            geometry, device: the problem.
            batch: sequences.
        """
        wanted = (
            self._alone(geometry, device, batch), self._shared(geometry), Setting(), Setting(1, self.narrow),
        )  # fmt: skip
        fits = [setting for setting in wanted if setting and not infeasible(setting, geometry, device)]
        return tuple(dict.fromkeys(resolve(setting, geometry, device) for setting in fits or [Setting()]))

    def _alone(self, geometry: Geometry, device: Device, batch: int) -> Setting | None:
        """One CTA an SM, where items are few enough."""
        wide = Setting(1, self.wide, WIDE)
        rounds = geometry.head_dim == LONG_HEAD and geometry.q_format == "fp8"
        has_wide = not rounds and not infeasible(wide, geometry, device)
        chosen = wide if has_wide else Setting(1, self.narrow)
        most = self.full if has_wide or geometry.head_dim == LONG_HEAD else self.few
        blocks = engine_for(geometry, device.arch, warps=chosen.consumer_warps).blocks
        return chosen if batch * geometry.heads_kv * blocks <= most * device.sm_count else None

    def _shared(self, geometry: Geometry) -> Setting:
        many = geometry.rows > FEW_ROWS or geometry.page_size < LONG_PAGE
        return Setting(2, self.more if many and geometry.head_dim != LONG_HEAD else self.shared)


BUILT_IN = Rule()
"""The rule in force."""

FITTED_ON = ("NVIDIA H200",)
"""The devices that it was fitted on."""


def built_in(geometry: Geometry, device: Device, batch: int) -> Setting:
    """What the rule in force says."""
    return answers(geometry, device, batch)[0]


@lru_cache(maxsize=4096)
def answers(geometry: Geometry, device: Device, batch: int) -> tuple[Setting, ...]:
    """What the rule in force says, and what to take instead where that spills."""
    return BUILT_IN.settings(geometry, device, batch)
