"""The gate's small cases, kept beside the binaries: their inputs, what must come out, and by how much it may differ.

Drawing and emulating them takes seconds, and each fresh process needs all of it at once. So a process of the compile
pool makes them once and device workers only read. Expectations of one problem have most of their inputs in common
(a grid decides one case, warps and merges none), which lie in files of their own for that reason.

A file is an archive of torch's, and its sha256 behind it. One that is damaged is made anew; a folder that others may
write to is refused, since who writes there decides what passes.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjolnir import kernel
from mjolnir.kernel.cache import open_folder
from mjolnir.kernel.geometry import Geometry
from mjolnir.tuner.gpu.expectation import Expectation

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.kernel.cases import Case, Inputs

EXPECTED_BY = (
    "case.py", "case_inputs.py", "cases.py", "emulator.py", "engine.py", "formats.py", "geometry.py", "layouts.py",
    "minifloat.py", "plan.py", "softmax.py", "tolerance.py",
)  # fmt: skip
"""Modules of the kernel's room that decide what a gate's cases are, what comes out, and how far off it may be."""

TENSORS = ("q", "cache", "block_table", "seq_lens", "k_scale", "v_scale", "q_mul", "o_mul")
"""What a file of inputs holds; all else of them follows from the case."""

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeptCase:
    """A small case as it lies on disk.

    Attributes:
        case: the case.
        inputs: the file of its inputs, which other cases may share.
        out: the emulator's output, in the dtype that the kernel writes.
        allowed: the most by which each element may differ, f32 of the same shape.
    """

    case: Case
    inputs: Path
    out: Tensor
    allowed: Tensor


def expected_outputs(geometry: Geometry, expectation: Expectation, folder: Path) -> Path:
    """Emulate the gate's cases and keep in `folder` what a gate takes, as far as it is not there whole.

    Returns:
        The file for `load_expected`.

    Raises:
        PermissionError: others may write to the folder.
    """
    from mjolnir.kernel.cases import expected
    from mjolnir.kernel.tolerance import bound

    place, cases, engine = open_folder(folder), cases_of(geometry, expectation), expectation.engine(geometry)
    inputs = {case: _kept_inputs(case, place) for case in cases}
    path = _outputs(geometry, expectation, cases, place)
    if _whole(path) is None:
        outs = [expected(case, expectation.grid, engine, expectation.warps, inputs[case][1]).out for case in cases]
        allowed = [bound(out, geometry) for out in outs]
        _keep(path, {"inputs": [inputs[case][0].name for case in cases], "out": outs, "allowed": allowed})
    return path


def find(geometry: Geometry, expectation: Expectation, folder: Path) -> Path | None:
    """The file of `expected_outputs`, if that would find it and all inputs there; draws and emulates nothing.

    Raises:
        PermissionError: others may write to the folder.
    """
    place, cases = open_folder(folder), cases_of(geometry, expectation)
    path = _outputs(geometry, expectation, cases, place)
    there = all(_inputs(case, place).exists() for case in cases)  # a damaged one is drawn anew by who reads it
    return path if there and _whole(path) is not None else None


def cases_of(geometry: Geometry, expectation: Expectation) -> tuple[Case, ...]:
    """The cases of a gate."""
    from mjolnir.kernel.cases import gate_cases

    engine = expectation.engine(geometry)
    return gate_cases(geometry, expectation.grid, merge=expectation.merge, engine=engine)


def load_expected(path: Path, geometry: Geometry, expectation: Expectation) -> list[KeptCase]:
    """The cases of the file that `expected_outputs` returned.

    Raises:
        ValueError: the file is missing or damaged; making it anew mends that.
        PermissionError: others may write to its folder.
    """
    folder, kept = open_folder(path.parent), _read(path)
    if kept is None:
        raise ValueError(f"{path}, which holds what the gate expects, is missing or damaged: start the run again")
    parts = zip(cases_of(geometry, expectation), kept["inputs"], kept["out"], kept["allowed"], strict=True)
    return [KeptCase(case, folder / name, out, allowed) for case, name, out, allowed in parts]


def load_inputs(case: Case, path: Path) -> Inputs:
    """The inputs of a case from their file, or, where that is not there whole, drawn anew; on the CPU."""
    from mjolnir.kernel.cases import make_inputs

    return _read_inputs(case, path) or make_inputs(case)


def drawn(case: Case) -> Case:
    """The case with all taken out that its inputs do not depend on."""
    return replace(case, name="", max_splits=0, margin=0)


def _outputs(geometry: Geometry, expectation: Expectation, cases: Sequence[Case], folder: Path) -> Path:
    return folder / f"expected-{_digest(geometry, expectation, cases)}.pt"


def _inputs(case: Case, folder: Path) -> Path:
    return folder / f"case-{_digest(drawn(case))}.pt"


def _kept_inputs(case: Case, folder: Path) -> tuple[Path, Inputs]:
    """The inputs of a case and their file, made where it is missing or damaged."""
    from mjolnir.kernel.cases import make_inputs

    path = _inputs(case, folder)
    inputs = _read_inputs(case, path)
    if inputs is None:
        inputs = make_inputs(case)
        _keep(path, {name: getattr(inputs, name) for name in TENSORS})
    return path, inputs


def _read_inputs(case: Case, path: Path) -> Inputs | None:
    from mjolnir.kernel.cases import Inputs
    from mjolnir.kernel.layouts import views

    tensors = _read(path)
    if tensors is None:
        return None
    k, v = views(tensors["cache"], case.geometry, case.layout)
    return Inputs(**tensors, k=k, v=v, scale=case.scale, geometry=case.geometry, layout=case.layout)


def _keep(path: Path, value: Any) -> None:
    """Put a file there in one step."""
    import torch

    archive = io.BytesIO()
    torch.save(value, archive)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(archive.getbuffer())
        file.write(hashlib.sha256(archive.getbuffer()).digest())
    Path(file.name).replace(path)


def _read(path: Path) -> Any:
    """What a file holds; None where it is missing or damaged."""
    import torch

    whole = _whole(path)
    if whole is None:
        return None
    return torch.load(io.BytesIO(whole), weights_only=True)  # an archive ends where its directory says, not the file


def _whole(path: Path) -> bytes | None:
    """The bytes of a file, its digest among them; None where it is missing or damaged."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    right = hashlib.sha256(memoryview(whole)[:-DIGEST_BYTES]).digest() == whole[-DIGEST_BYTES:]
    return whole if right else None


def _digest(*parts: Geometry | Expectation | Case | Sequence[Case]) -> str:
    """Names the parts, the sources that cases and outputs come from, and the packages that draw them, by release."""
    import numpy as np
    import torch

    digest = hashlib.sha256(repr((parts, np.__version__, str(torch.__version__).split("+")[0])).encode())
    for name in EXPECTED_BY:
        digest.update((Path(str(kernel.__file__)).parent / name).read_bytes())
    return digest.hexdigest()[:32]
