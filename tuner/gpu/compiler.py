"""What a process of the compile pool does: build variants, and make the gate's expected outputs on the CPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mjolnir.kernel.cache import Built
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.gpu.child import Handler, Report
from mjolnir.tuner.gpu.expectation import Expectation


def create() -> Handler:
    """The handler of a compile process; imports the compiler first, so that its jobs' times are their own."""
    with contextlib.suppress(ImportError):  # a job will say what is missing
        import cutlass.cute  # noqa: F401
    return handle


def handle(request: dict[str, Any], report: Report) -> dict[str, Any]:
    """Answer one job: {"op": "build" | "plan" | "expected" | "warm", ...}."""
    folder = Path(request["folder"]) if request.get("folder") else None
    if request["op"] == "warm":
        import mjolnir.kernel.cases
        import mjolnir.tuner.gpu.expected  # noqa: F401

        return {}
    if request["op"] == "expected":
        import torch

        from mjolnir.tuner.gpu.expected import expected_outputs

        report("compile")
        torch.set_num_threads(1)
        assert folder is not None
        return {"path": str(expected_outputs(*expectation_of(request), folder))}
    from mjolnir.kernel import cache

    report("compile")
    begin = time.perf_counter()
    try:
        if request["op"] == "plan":
            built = cache.build_plan(request["arch"], folder)
        else:
            built = cache.build(variant_of(request["variant"]), folder)
    except cache.CompileError as error:
        return {"failed": str(error), "log": str(getattr(error, "log", ""))}
    return {"built": facts_of(built), "seconds": time.perf_counter() - begin}


def expectation_of(job: Mapping[str, Any]) -> tuple[Geometry, Expectation]:
    """What a job of op "expected" is about."""
    return Geometry.from_dict(job["geometry"]), Expectation(**job["expectation"])


def facts_of(built: Built) -> dict[str, Any]:
    """What the cache tells of a binary, as JSON takes it."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(built).items()}


def variant_of(values: Mapping[str, Any]) -> Variant:
    """The variant that `Variant.as_dict` was of."""
    return Variant(**{**values, "geometry": Geometry.from_dict(values["geometry"])})
