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

from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.variant import Variant
from mjolnir.tuner.gpu.child import Handler, Report

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.kernel.cases import Case


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
        return {"path": str(expected_outputs(geometry, request["grid"], merge=request["merge"], folder=folder))}
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


def expected_outputs(geometry: Geometry, grid: int, *, merge: bool, folder: Path) -> Path:
    """Emulate the gate's cases and keep the outputs in `folder`; made once.

    Returns:
        A .npz file with the arrays `out0`, `out1`, ... (f32, exact), in the order of `gate_cases`.
    """
    import numpy as np

    from mjolnir.kernel.cases import expected, gate_cases

    cases = gate_cases(geometry, grid, merge=merge)
    path = folder / f"expected-{_digest(geometry, grid, cases)}.npz"
    if path.is_file():
        return path
    arrays: dict[str, Any] = {
        f"out{number}": expected(case, grid).out.float().numpy() for number, case in enumerate(cases)
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as file:
        np.savez(file, **arrays)
    return Path(file.name).replace(path)


def load_expected(path: Path, geometry: Geometry, grid: int, *, merge: bool) -> list[tuple[Case, Tensor]]:
    """The cases with the outputs that `expected_outputs` kept, in the dtype that the kernel writes.

    Raises:
        OSError, ValueError: the file is missing or no such archive.
    """
    import numpy as np
    import torch

    from mjolnir.kernel.cases import gate_cases

    dtype = torch.bfloat16 if geometry.dtype == "bf16" else torch.float16
    with np.load(path, allow_pickle=False) as arrays:
        return [
            (case, torch.from_numpy(arrays[f"out{number}"]).to(dtype))
            for number, case in enumerate(gate_cases(geometry, grid, merge=merge))
        ]


def _digest(geometry: Geometry, grid: int, cases: Sequence[Case]) -> str:
    """Names the cases and the sources that their outputs come from."""
    from mjolnir.kernel import cases as cases_module
    from mjolnir.kernel import emulator, formats, layouts, plan

    digest = hashlib.sha256(repr((geometry, grid, tuple(cases))).encode())
    for module in (cases_module, emulator, formats, layouts, plan):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:32]
