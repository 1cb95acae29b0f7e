"""This kernel: with the knobs that are tuned for the spot, and with those of the built-in rule."""

from __future__ import annotations

from collections.abc import Callable

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in
from mjolnir.research.bench.peers.contender import Entry, Heats, Way
from mjolnir.research.bench.points import Spot
from mjolnir.research.bench.pool import Sets
from mjolnir.research.bench.tuning import Tuned, search

PLACEMENTS = {
    "BHN2D head-major": Placement("head-major", "together"),
    "BHN2D token-major": Placement("token-major", "together"),
}

Prepare = Callable[[Sets, Setting, Device], Entry]


class Mjolnir:
    """The kernel as it is tuned, in one layout.

    Args:
        device: what it is compiled for.
        layout: a name of `PLACEMENTS`.
        tuned: where settings are from.
        limit: how many settings a search may time at a spot that no file has a setting for; 0 searches nothing.
        prepare: makes a setting ready.
    """

    name = "mjolnir"

    def __init__(
        self, device: Device, layout: str, tuned: Tuned, limit: int = 0, prepare: Prepare | None = None
    ) -> None:
        self._device, self.layout, self._tuned, self._limit = device, layout, tuned, limit
        self._prepare = prepare or prepared

    def choose(self, spot: Spot, heats: Heats) -> None:
        """The setting that is known, or the fastest of a search that begins with it."""
        known = self._tuned.choice(spot, PLACEMENTS[self.layout])
        if not self._limit or known.origin == "file":
            heats.time(self._way(known.setting, known.origin))
            return
        search(
            [known.setting, built_in(spot.geometry, self._device, spot.batch), Setting()], spot.geometry, self._device,
            lambda setting: heats.time(self._way(setting, "search")), self._limit,
        )  # fmt: skip

    def _way(self, setting: Setting, origin: str) -> Way:
        facts = {"setting": setting.as_dict(), "setting_from": origin}
        return Way(self.layout, _label(setting), lambda sets: self._prepare(sets, setting, self._device), facts)


class MjolnirDefault:
    """The kernel as it is served where no table has a row: with what the built-in rule says."""

    name = "mjolnir-default"
    layout = "BHN2D head-major"

    def __init__(self, device: Device, prepare: Prepare | None = None) -> None:
        self._device, self._prepare = device, prepare or prepared

    def choose(self, spot: Spot, heats: Heats) -> None:
        """One way."""
        setting = built_in(spot.geometry, self._device, spot.batch)
        facts = {"setting": setting.as_dict(), "setting_from": "built-in rule"}
        heats.time(Way(self.layout, "", lambda sets: self._prepare(sets, setting, self._device), facts))


def _label(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.changed(Setting()).items()) or "default"


def prepared(sets: Sets, setting: Setting, device: Device) -> Entry:
    """A runner with its plan; all sets have the same lengths."""
    import torch

    from mjolnir.kernel.runner import Runner

    spot, outs = sets.spot, sets.outs()
    one = torch.ones((), device=outs[0].device)
    runner = Runner(setting, spot.geometry, device, max_batch=spot.batch, capacity=spot.width * spot.geometry.page_size)
    runner.plan(sets.items[0].seq_lens)

    def launch(number: int) -> None:
        item = sets.items[number]
        runner.run(item.q, item.k, item.v, item.block_table, item.seq_lens, outs[number], one, one)

    return Entry(launch, lambda: sets.error(outs))
