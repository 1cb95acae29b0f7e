"""Compiling before the clock starts: FlashInfer's modules and the binaries that a search begins with, side by side.

Nothing depends on it: what is not compiled here is compiled when it is first used, and tells there what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import replace

from mjolnir.kernel.cache import default_folder
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant, infeasible
from mjolnir.research.bench.tuning import first_binaries


def compile_ahead(geometries: Sequence[Geometry], device: Device, *, limit: int, flashinfer: bool) -> str:
    """Compile in parallel processes, and wait for them.

    Args:
        geometries: of the spots that are to be timed.
        device: what is compiled for.
        limit: settings of a search, 0 = none.
        flashinfer: whether its modules are wanted.

    Returns:
        What went wrong with FlashInfer's modules, in words; empty where nothing did.
    """
    from mjolnir.tuner.gpu.pool import CompilePool

    with closing(CompilePool(default_folder())) as pool:
        builds = [pool.variant(variant) for variant in variants(geometries, device, limit)]
        trouble = _flashinfer(geometries) if flashinfer else ""
        wait(builds)
    return trouble


def _flashinfer(geometries: Iterable[Geometry]) -> str:
    from mjolnir.research.bench.peers import flashinfer

    try:
        flashinfer.build(geometries)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def variants(geometries: Iterable[Geometry], device: Device, limit: int) -> list[Variant]:
    """What a search of `limit` settings times first, each with splits and without, as far as it is feasible."""
    found: dict[Variant, None] = {}
    for geometry in geometries if limit else ():
        for setting in (Setting(), *first_binaries(geometry, device, limit)):
            for one in (replace(setting, max_splits=splits) for splits in (0, 1)):
                if not infeasible(one, geometry, device):
                    found[Variant.of(one, geometry, device)] = None
    return list(found)
