"""What a cubin says of its kernels: registers and stack frame, read from the ELF sections `.nv.info.*`.

An attribute is (format byte, attribute byte, 16-bit size, payload); format 4 has a payload of that size. Attribute
0x2f is the register count and 0x11 the frame size, each with the payload (symbol, value) of two 32-bit words. A frame
of zero bytes means that nothing is spilled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

REGISTERS = 0x2F
FRAME = 0x11
SIZED = 4


@dataclass(frozen=True, slots=True)
class Resources:
    """The most that any kernel of a cubin takes.

    Attributes:
        registers: 32-bit registers a thread.
        frame_bytes: bytes of local memory a thread, zero when nothing spills.
    """

    registers: int
    frame_bytes: int


def read_resources(cubin: bytes) -> Resources:
    """Registers and frame of the kernels in `cubin`.

    Raises:
        ValueError: not a 64-bit little-endian ELF file, or no register count in it.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no cubin: not a 64-bit little-endian ELF file")
    found: dict[int, list[int]] = {REGISTERS: [], FRAME: []}
    for name, content in _sections(cubin):
        if name == b".nv.info":
            for attribute, payload in _attributes(content):
                if attribute in found and len(payload) == 8:
                    found[attribute].append(struct.unpack("<II", payload)[1])
    if not found[REGISTERS]:
        raise ValueError("this cubin names no register count")
    return Resources(max(found[REGISTERS]), max(found[FRAME], default=0))


def _sections(elf: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of each section (ELF-64 specification, section header table)."""
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + size * i) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, start, length in headers:
        end = elf.index(b"\0", strings + name)
        # a section of type NOBITS has no content in the file
        yield elf[strings + name : end], b"" if kind == 8 else elf[start : start + length]


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if form == SIZED:
            yield attribute, content[position : position + size]
            position += size
