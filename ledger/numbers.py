"""Rows of whole numbers as text: each as its least one, the step between them, and how many steps each is above it.

Samples of one kind lie close together, so that a few bits say how many steps. The text is the length of a row, the
least number of each, the step of each and the bits of each, with commas between; then `/` and the counts, row after
row, the lowest bits first, as base64 without padding: `8,14193,1,8/jmxYYQZXADc` is 14335 14301 14281 14290 14199 14280
14193 14248. What is alike of all rows lies together, so that whoever compresses the text finds it.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from itertools import chain

LIMIT = 1 << 53
"""Numbers are smaller than this, without their sign: what every reader of JSON takes."""

MOST = 1 << 12
"""Numbers of one text, at most."""

_BITS = 54
_BASE64 = re.compile("[A-Za-z0-9+/]*")


def to_text(rows: Sequence[Sequence[int]]) -> str:
    """Rows of equal length as text."""
    heads, counts, place = [], 0, 0
    for row in rows:
        least = min(row)
        offsets = [number - least for number in row]
        step = math.gcd(*offsets) or 1
        bits = (max(offsets) // step).bit_length()
        heads.append((least, step, bits))
        part = 0
        for offset in reversed(offsets):
            part = part << bits | offset // step
        counts |= part << place
        place += bits * len(row)
    head = (len(rows[0]), *chain.from_iterable(zip(*heads, strict=True)))
    return ",".join(map(str, head)) + "/" + as_base64(counts.to_bytes((place + 7) // 8, "little"))


def size(text: str) -> tuple[int, int]:
    """Number of rows and their length, of text that can be read.

    Raises:
        ValueError: it cannot.
    """
    length, leasts, steps, bits, packed = _parts(text)
    rows = len(leasts)
    if not 0 < rows * length <= MOST or len(bits) != rows:
        raise ValueError(f"{rows} rows of {length} numbers; 1 to {MOST} are allowed")
    if min(leasts) <= -LIMIT or max(leasts) >= LIMIT or max(steps) >= 2 * LIMIT:
        raise ValueError("a number or a step is too large")
    if min(steps) < 1 or min(bits) < 0 or max(bits) > _BITS:
        raise ValueError(
            f"steps from {min(steps)}, counts of {min(bits)} to {max(bits)} bits: 1, and 0 to {_BITS}, are right"
        )
    require_base64(packed, (sum(bits) * length + 7) // 8)
    return rows, length


def from_text(text: str) -> list[list[int]]:
    """The rows of text that `size` has read."""
    length, *heads, packed = _parts(text)
    counts, found = int.from_bytes(from_base64(packed), "little"), []
    for least, step, bits in zip(*heads, strict=True):
        mask, width = (1 << bits) - 1, bits * length
        part = counts & (1 << width) - 1
        counts >>= width
        places = range(0, width, bits) if bits else [0] * length
        found.append([least + step * (part >> place & mask) for place in places])
    return found


def as_base64(data: bytes) -> str:
    """Base64 without padding."""
    return base64.b64encode(data).rstrip(b"=").decode()


def from_base64(text: str) -> bytes:
    """The inverse of `as_base64`, of text that `require_base64` has passed."""
    return base64.b64decode(text + "=" * (-len(text) % 4))


def require_base64(text: str, size: int) -> None:
    """See that a text stands for so many bytes.

    Raises:
        ValueError: it does not.
    """
    if len(text) != (4 * size + 2) // 3 or not _BASE64.fullmatch(text):
        raise ValueError(f"{len(text)} characters are no base64 of {size} bytes")


def _parts(text: str) -> tuple[int, list[int], list[int], list[int], str]:
    """Length, leasts, steps, bits, and the counts as base64."""
    head, slash, packed = text.partition("/")
    if not slash:
        raise ValueError("numbers are cut off")
    length, *numbers = map(int, head.split(","))
    rows = len(numbers) // 3
    return length, numbers[:rows], numbers[rows : 2 * rows], numbers[2 * rows :], packed
