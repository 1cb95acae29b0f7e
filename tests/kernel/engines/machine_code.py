"""Compile variants without a GPU and read what came out: PTX, machine code, resources.

Compiling takes seconds, so each variant is compiled once in a test run, whichever of its processes wants it first.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock

from mjolnir.kernel.cache import compile_only
from mjolnir.kernel.cubin import Resources, read_resources
from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import Variant

SMALL = Geometry(32, 8)


@dataclass(frozen=True, slots=True)
class Code:
    """What the compiler made of a variant."""

    variant: Variant
    ptx: str
    cubin: bytes

    @property
    def resources(self) -> Resources:
        """Registers and local memory."""
        return read_resources(self.cubin)

    def opcodes(self) -> Counter[str]:
        """Opcodes of the machine code, with modifiers, and how often each occurs."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            text = subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True, check=True).stdout
        return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", text))


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles variants, or finds what a process of this test run made of them.

    Attributes:
        folder: where the test run keeps code.
    """

    folder: Path

    def __call__(
        self,
        setting: Setting,
        arch: str = "sm_90a",
        geometry: Geometry = SMALL,
        *,
        engine: str | None = None,
        fault: str = "none",
        lse: bool = False,
        q_mul: bool = False,
        o_mul: bool = False,
    ) -> Code:
        """The code of a setting."""
        device = Device(arch, "any", 132)
        return self.of(
            Variant.of(setting, geometry, device, engine=engine, fault=fault, lse=lse, q_mul=q_mul, o_mul=o_mul)
        )

    def of(self, variant: Variant) -> Code:
        """The code of a variant."""
        path = self.folder / variant.key()
        with FileLock(f"{path}.lock"):
            if not path.exists():
                from mjolnir.kernel.engines import step

                artifacts = compile_only(step.Step(variant), step.arguments(variant), variant.arch).artifacts
                path.write_bytes(pickle.dumps(Code(variant, artifacts.PTX, artifacts.CUBIN)))
            found: Code = pickle.loads(path.read_bytes())
            return found


@cache
def disassembler() -> str:
    """`nvdisasm` as its wheel brings it."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for place in spec.submodule_search_locations:
        for path in Path(place).glob("cu*/bin/nvdisasm"):
            return str(path)
    return "nvdisasm"
