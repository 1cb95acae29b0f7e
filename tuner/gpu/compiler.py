"""What a process of the compile pool does: build variants, and make the gate's expected outputs on the CPU."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir import kernel
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.gpu.child import Handler, Report
from mjolnir.tuner.gpu.expectation import Expectation

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.kernel.cases import Case

EXPECTED_BY = (
    "case.py", "case_inputs.py", "cases.py", "emulator.py", "engine.py", "formats.py", "geometry.py", "layouts.py",
    "minifloat.py", "plan.py", "softmax.py",
)  # fmt: skip
"""Modules of the kernel's room that decide what a gate's cases are and what comes out."""


def create() -> Handler:
    """The handler of a compile process; imports the compiler first, so that its jobs' times are their own."""
    with contextlib.suppress(ImportError):  # a job will say what is missing
        import cutlass.cute  # noqa: F401
    return handle


def handle(request: dict[str, Any], report: Report) -> dict[str, Any]:
    """Answer one job: {"op": "build" | "plan" | "expected", ...}."""
    folder = Path(request["folder"]) if request.get("folder") else None
    if request["op"] == "expected":
        import torch

        report("compile")
        torch.set_num_threads(1)
        geometry = Geometry.from_dict(request["geometry"])
        assert folder is not None
        return {"path": str(expected_outputs(geometry, Expectation(**request["expectation"]), folder))}
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
    facts = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(built).items()}
    return {"built": facts, "seconds": time.perf_counter() - begin}


def variant_of(values: Mapping[str, Any]) -> Variant:
    """The variant that `Variant.as_dict` was of."""
    return Variant(**{**values, "geometry": Geometry.from_dict(values["geometry"])})


def expected_outputs(geometry: Geometry, expectation: Expectation, folder: Path) -> Path:
    """Emulate the gate's cases and keep the outputs in `folder`; made once.

    Returns:
        A .npz file with the arrays `out0`, `out1`, ... (f32, exact), in the order of `cases_of`.
    """
    import numpy as np

    from mjolnir.kernel.cases import expected

    cases, engine = cases_of(geometry, expectation), expectation.engine(geometry)
    path = folder / f"expected-{_digest(geometry, expectation, cases)}.npz"
    if path.is_file():
        return path
    arrays: dict[str, Any] = {
        f"out{number}": expected(case, expectation.grid, engine, expectation.warps).out.float().numpy()
        for number, case in enumerate(cases)
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as file:
        np.savez(file, **arrays)
    return Path(file.name).replace(path)


def cases_of(geometry: Geometry, expectation: Expectation) -> tuple[Case, ...]:
    """The cases of a gate."""
    from mjolnir.kernel.cases import gate_cases

    engine = expectation.engine(geometry)
    return gate_cases(geometry, expectation.grid, merge=expectation.merge, engine=engine)


def load_expected(path: Path, geometry: Geometry, expectation: Expectation) -> list[tuple[Case, Tensor]]:
    """The cases with the outputs that `expected_outputs` kept, in the dtype that the kernel writes.

    Raises:
        OSError, ValueError: the file is missing or no such archive.
    """
    import numpy as np
    import torch

    dtype = torch.bfloat16 if geometry.dtype == "bf16" else torch.float16
    with np.load(path, allow_pickle=False) as arrays:
        return [
            (case, torch.from_numpy(arrays[f"out{number}"]).to(dtype))
            for number, case in enumerate(cases_of(geometry, expectation))
        ]


def _digest(geometry: Geometry, expectation: Expectation, cases: Sequence[Case]) -> str:
    """Names the cases and the sources that their outputs come from."""
    digest = hashlib.sha256(repr((geometry, expectation, tuple(cases))).encode())
    for name in EXPECTED_BY:
        digest.update((Path(str(kernel.__file__)).parent / name).read_bytes())
    return digest.hexdigest()[:32]
