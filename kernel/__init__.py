"""The kernel: paged decode attention, what it is checked with, and what it is served by.

`mjolnir.kernel.decode` is the call for users without a serving engine; importing this package alone imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mjolnir.kernel.operator import decode

__all__ = ["decode"]


def __getattr__(name: str) -> object:
    """`decode`, imported when it is first asked for, as torch is imported with it."""
    if name != "decode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mjolnir.kernel.operator import decode

    globals()[name] = decode  # from here on found without this function, also by torch.compile
    return decode
