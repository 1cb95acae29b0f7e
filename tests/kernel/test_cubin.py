from __future__ import annotations

from pathlib import Path

import pytest

from mjolnir.kernel.cubin import read_resources


def test_what_is_no_elf_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF"):
        read_resources(b"MZ" + bytes(100))


def test_an_elf_file_without_kernels_is_refused() -> None:
    header = bytearray(64 + 64)
    header[:6] = b"\x7fELF\x02\x01"
    header[0x28:0x30] = (64).to_bytes(8, "little")
    header[0x3A:0x40] = (64).to_bytes(2, "little") + (1).to_bytes(2, "little") + (0).to_bytes(2, "little")
    with pytest.raises(ValueError, match="names no register count"):
        read_resources(bytes(header))


def test_registers_of_a_real_kernel(tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
    from mjolnir.kernel.knobs import Setting
    from tests.kernel.engines.machine_code import Compiler

    resources = Compiler(tmp_path)(Setting()).resources
    assert 64 < resources.registers <= 255
    assert resources.frame_bytes == 0
