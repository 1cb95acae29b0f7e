"""One small case of each class of kernel, and the process in which a tool watches it: `python -m ... CLASS`.

The cases are small because a watched kernel is some hundred times slower, and yet such that the ring goes round, items
are split (one of them over so many CTAs that it is merged in two levels), and the memory around is hostile. `PLANTED`
are no kernels of ours: each does what its tool has to find, so that a tool that sees nothing is not taken for a clean
kernel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mjolnir.kernel.case import Case
from mjolnir.kernel.device import Device, current_device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.matrix import Probe
from mjolnir.kernel.tolerance import excess, lse_excess

MODULE = "mjolnir.research.sanitizer_cases"
ANSWER = "mjolnir-case "
"""What the line begins with that tells how the case went."""

PLANTED = {"memcheck": "planted-overrun", "initcheck": "planted-unset", "racecheck": "planted-race"}
"""By tool; there is none for synccheck: a barrier that is used wrongly may hang instead of being told."""


def _probe(
    name: str,
    geometry: Geometry,
    lengths: tuple[int, ...],
    setting: Setting = Setting(),  # noqa: B008 (frozen)
    *,
    lse: bool = False,
    engine: str | None = None,
    **of_case: Any,
) -> Probe:
    case = Case(name, geometry, lengths, setting.max_splits, seed=len(name) + sum(lengths), **of_case)
    return Probe(case, setting, engine, lse, "plain")


def _all() -> tuple[Probe, ...]:
    overlapping = Setting(ctas_per_sm=1, pdl=1)
    eight_warps = Setting(ctas_per_sm=1, consumer_warps=8, max_splits=2)
    ragged, block = (700, 65, 0, 1), (331, 130, 0, 5)
    return (
        # the tiles are fewer than the CTAs, so that each is a chunk of its own: 79 of the first sequence's items
        _probe("warp-d128", Geometry(8, 2), (5000, 130, 0, 1), scales="head"),
        _probe("warp-unsplit", Geometry(8, 2), (1500, 331, 64), Setting(max_splits=1, kv_stages=2), scales="sequence"),
        _probe("warp-eight-warps", Geometry(8, 2), (3000, 700, 5), eight_warps),
        _probe("warp-d256", Geometry(8, 2, head_dim=256), ragged, engine="warp"),
        _probe("warp-d256-eight-warps", Geometry(8, 2, head_dim=256), ragged, eight_warps),
        _probe("wgmma-d256", Geometry(8, 2, head_dim=256), (1400, 65, 0, 1), Setting(kv_stages=2), engine="wgmma"),
        _probe("warp-16-rows", Geometry(32, 2), ragged, engine="warp"),
        _probe("wgmma-32-rows", Geometry(8, 2, q_len=8), block, engine="wgmma"),
        _probe("wgmma-64-rows", Geometry(16, 2, q_len=8, causal=False), block, engine="wgmma"),
        _probe("wgmma-d256-blocks", Geometry(16, 2, head_dim=256, q_len=8), block, engine="wgmma"),
        _probe(
            "wgmma-unsplit", Geometry(8, 2, q_len=8), (1000, 64), Setting(max_splits=1, kv_stages=2), engine="wgmma"
        ),
        _probe("fp8-query", Geometry(8, 2, q_len=2, q_format="fp8"), ragged, lse=True, q_mul=True, o_mul=True),
        _probe(
            "pages-16",
            Geometry(8, 2, page_size=16),
            (1400, 65, 0, 1),
            Setting(l2_prefetch=3, max_splits=2),
            block_gap=256,
        ),
        _probe("many-items", Geometry(16, 8), tuple(37 * b % 131 for b in range(60)), overlapping),
        _probe("margin", Geometry(8, 2), (700, 90, 20, 63), overlapping, margin=16, lse=True),
        _probe("f16", Geometry(8, 2, dtype="f16"), ragged, query="fused", layout="2BNHD"),
    )


CLASSES: Mapping[str, Probe] = {probe.case.name: probe for probe in _all()}


def check(probe: Probe, device: Device) -> dict[str, float]:
    """Plan and run a case once, and compare it with the emulator: errors over their bounds, right up to 1.

    Nothing but our own kernels and torch's fills and copies runs on the GPU: what a tool reports is about them.
    """
    from mjolnir.research.correctness_gpu import WHERE, Launch
    from mjolnir.research.correctness_truth import make_truth

    truth = make_truth(probe, device)
    launch = Launch.of(probe, truth.inputs.to(WHERE), device)
    launch.plan()
    launch.run()
    out, lse = launch.results()
    errors = {"excess": excess(out.cpu(), truth.out, probe.case.geometry, truth.inputs.o_mul)}
    return errors if lse is None else {**errors, "lse_excess": lse_excess(lse.cpu(), truth.lse)}


class _Overrun:
    """A buffer that claims to be longer than it is."""

    def __init__(self) -> None:
        import torch

        self.buffer = torch.zeros(16, dtype=torch.int32, device="cuda")
        pointer = self.buffer.data_ptr()
        self.__cuda_array_interface__ = {"shape": (32,), "typestr": "<i4", "data": (pointer, False), "version": 3}


def read_beyond() -> None:
    """Read behind the end of an allocation."""
    import torch

    torch.as_tensor(_Overrun(), device="cuda").add(1)
    torch.cuda.synchronize()


def read_unset() -> None:
    """Read memory that was never written."""
    import torch

    torch.empty(1024, dtype=torch.int32, device="cuda").add(1)
    torch.cuda.synchronize()


def race() -> None:
    """Read what another warp writes to shared memory, without waiting for it."""
    import torch

    from mjolnir.research.sanitizer_planted import racing

    racing(current_device().arch)(torch.zeros(64, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()


FAULTS: Mapping[str, Callable[[], None]] = {
    "planted-overrun": read_beyond, "planted-unset": read_unset, "planted-race": race,
}  # fmt: skip


def main(name: str) -> int:
    """Run a case or a planted fault, and print one line about it; returns the exit code, 0 where it is right."""
    import torch

    torch.set_num_threads(1)
    if name in FAULTS:
        FAULTS[name]()
        errors: dict[str, float] = {}
    else:
        errors = check(CLASSES[name], current_device())
    print(ANSWER + json.dumps(errors), flush=True)
    return 0 if all(error <= 1 for error in errors.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
