"""Compile variants without a GPU and read what came out: PTX, machine code, resources."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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

    ptx: str
    cubin: bytes
    resources: Resources

    def opcodes(self) -> Counter[str]:
        """Opcodes of the machine code, with modifiers, and how often each occurs."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            text = subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True, check=True).stdout
        return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", text))


@cache
def code(
    setting: Setting, arch: str = "sm_90a", geometry: Geometry = SMALL, fault: str = "none", lse: bool = False
) -> Code:
    """The code of a setting, compiled once in a test run."""
    from mjolnir.kernel.engines import step

    variant = Variant.of(setting, geometry, Device(arch, "any", 132), fault=fault, lse=lse)
    artifacts = compile_only(step.Step(variant), step.arguments(variant), arch).artifacts
    return Code(artifacts.PTX, artifacts.CUBIN, read_resources(artifacts.CUBIN))


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
