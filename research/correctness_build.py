"""Compiling the binaries of the matrix ahead, in parallel, and finding what each case can be run with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from mjolnir.kernel.device import Device
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.matrix import Probe
from mjolnir.kernel.variant import Variant
from mjolnir.research.answer import Failure


def build(job: tuple[Variant, Path | None]) -> str:
    """Compile a variant into the cache; returns why it cannot run, or nothing."""
    from mjolnir.kernel.cache import CompileError
    from mjolnir.kernel.cache import build as compile_variant

    try:
        built = compile_variant(*job)
    except CompileError as error:
        return f"{error}: {error.log[:300]}"
    return f"spills {built.spill_bytes} bytes" if built.spill_bytes else ""


@dataclass(frozen=True, slots=True)
class Settled:
    """What the matrix is run with.

    Attributes:
        probes: each as it was, or plainer where that does not run.
        refused: why variants were left, by variant.
        faults: geometries that the best engine does not run with default knobs, and why: they have to.
    """

    probes: list[Probe]
    refused: dict[str, str]
    faults: dict[str, str]


def settle(probes: Sequence[Probe], device: Device, executor: Executor, folder: Path | None = None) -> Settled:
    """Compile all, and where registers spill take plainer probes: default knobs, then the best engine, then one CTA.

    Raises:
        Failure: nothing runs a geometry.
    """
    chosen, refused, faults, known = list(probes), dict[str, str](), dict[str, str](), dict[Variant, str]()
    while True:
        variants = [probe.variant(device) for probe in chosen]
        known |= _built({v for v in variants if v not in known}, executor, folder)
        wrong = [number for number, variant in enumerate(variants) if known[variant]]
        if not wrong:
            return Settled(chosen, refused, faults)
        for number in wrong:
            probe, reason = chosen[number], known[variants[number]]
            refused[_words(variants[number])] = reason
            if probe.setting == _plain(probe) and probe.engine is None:
                faults[str(probe.case.geometry)] = reason
            chosen[number] = _plainer(probe, reason)


def _plain(probe: Probe) -> Setting:
    return Setting(max_splits=probe.setting.max_splits)


def _plainer(probe: Probe, reason: str) -> Probe:
    plain = _plain(probe)
    alone = replace(plain, ctas_per_sm=1)
    if probe.setting == alone and probe.engine is None:
        raise Failure(f"{probe.case.geometry} does not run, with {alone} neither: {reason}")
    if probe.setting not in (plain, alone):
        return replace(probe, setting=plain)
    return replace(probe, engine=None) if probe.engine is not None else replace(probe, setting=alone)


def _built(variants: Iterable[Variant], executor: Executor, folder: Path | None) -> dict[Variant, str]:
    ordered = sorted(variants, key=lambda variant: variant.key())
    return dict(zip(ordered, executor.map(build, [(variant, folder) for variant in ordered]), strict=True))


def _words(variant: Variant) -> str:
    knobs = f"ctas_per_sm={variant.ctas_per_sm} kv_stages={variant.kv_stages} pdl={variant.pdl}"
    return f"{variant.geometry} engine={variant.engine} {knobs} l2_prefetch={variant.l2_prefetch}"
