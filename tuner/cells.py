"""`cells.npz`, the numbers of a recording: which arrays there are, and a reader that trusts nothing.

A recording may come from anywhere, so nothing in it decides how much memory is taken: members are checked against the
list below and against limits before they are read, are read up to the limit alone, and are never unpickled.
"""

from __future__ import annotations

import ast
import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

LARGEST_FILE = 4_000_000
"""Bytes of `cells.npz`, and of `recording.json`."""

LARGEST_MEMBER = 64_000_000
"""Bytes of one array."""

LONGEST_HEADER = 512
"""Bytes of an array's header; what numpy writes for these arrays takes 118."""

ARRAYS: Mapping[str, tuple[str, str]] = {
    "setting": ("<i2", "SK"),
    "setting_status": ("|u1", "S"),
    "setting_binary": ("<i4", "S"),
    "setting_ms": ("<i4", "S2"),
    "binary_ms": ("<i4", "B"),
    "cell": ("<i4", "ISP"),
    "cell_plan": ("<u8", "C"),
    "cell_window": ("<i4", "C"),
    "cell_chunk": ("<i4", "C"),
    "candidate": ("<i4", "CR"),
    "baseline": ("<i4", "CR"),
    "empty": ("<i4", "CE"),
    "pair_candidate": ("<i4", "PA"),
    "pair_baseline": ("<i4", "PA"),
    "pair_empty": ("<i4", "PF"),
    "rebuild_candidate": ("<i4", "PGQ"),
    "rebuild_baseline": ("<i4", "PGQ"),
    "rebuild_empty": ("<i4", "PGH"),
}
"""Every array, with its type and the letters of its dimensions; equal letters are equal lengths.

S settings, K knobs, B binaries, P points, I instances, C cells with R rounds and E empty chains each; A pairs and F
empty chains of the A/A comparison; G rebuilds with Q rounds and H empty chains each. `setting_ms`: gate, measuring.
`cell[i, s, p]` is the cell of a setting at a point, -1 where there is none; equal binary and plan share one. A cell
with fewer instances than another has those that it has repeated in turn: a mean over I is one over its instances.
"""


class RecordingError(ValueError):
    """A recording that cannot be used: what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class _Header:
    dtype: str
    shape: tuple[int, ...]


def read_cells(path: Path, digest: str) -> dict[str, npt.NDArray[Any]]:
    """Read and check all arrays.

    Args:
        path: the file.
        digest: the sha256 in hex that it has to have.

    Raises:
        RecordingError: missing, too large, changed, not an npz of these arrays, or shapes that contradict one another.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > LARGEST_FILE:
        raise RecordingError(f"{path}: more than the {LARGEST_FILE} bytes that a recording may have")
    if hashlib.sha256(data).hexdigest() != digest:
        raise RecordingError(f"{path}: its sha256 is not the one that recording.json names")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_members(path, archive)
            arrays = {name: _read_member(path, archive, name) for name in ARRAYS}
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise RecordingError(f"{path}: not a readable npz file ({error})") from error
    check_shapes(str(path), arrays)
    return arrays


def write_cells(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write all arrays, in the types of `ARRAYS`; equal arrays give equal bytes."""
    check_shapes(str(path), arrays)
    members: dict[str, Any] = {name: np.ascontiguousarray(arrays[name], dtype=ARRAYS[name][0]) for name in ARRAYS}
    np.savez_compressed(path, **members)


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    names = [member.filename for member in archive.infolist()]
    expected = {f"{name}.npy" for name in ARRAYS}
    if len(names) != len(set(names)):
        raise RecordingError(f"{path}: an array is there twice")
    if set(names) != expected:
        wrong = sorted(set(names) ^ expected)[0]
        raise RecordingError(
            f"{path}: {wrong!r} is {'missing' if wrong in expected else 'not an array of a recording'}"
        )
    for member in archive.infolist():
        if member.file_size > LARGEST_MEMBER:
            raise RecordingError(f"{path}: {member.filename} has {member.file_size} bytes, more than {LARGEST_MEMBER}")


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    where = f"{path}: {name}"
    with archive.open(f"{name}.npy") as stream:
        header = _read_header(where, stream)
        dtype, letters = ARRAYS[name]
        if header.dtype != dtype or len(header.shape) != len(letters):
            raise RecordingError(
                f"{where}: {header.dtype} with {len(header.shape)} dimensions, expected {dtype} with {len(letters)}"
            )
        wanted = math.prod(header.shape) * np.dtype(dtype).itemsize
        if wanted > LARGEST_MEMBER:
            raise RecordingError(f"{where}: shape {header.shape} takes {wanted} bytes, more than {LARGEST_MEMBER}")
        data = stream.read(wanted + 1)
    if len(data) != wanted:
        raise RecordingError(f"{where}: shape {header.shape} takes {wanted} bytes, but there are {len(data)} or more")
    return np.frombuffer(data, dtype=dtype).reshape(header.shape)


def _read_header(where: str, stream: IO[bytes]) -> _Header:
    """Parse the header of an npy member, format 1.0, C order."""
    start = stream.read(10)
    length = int.from_bytes(start[8:10], "little")
    if start[:8] != b"\x93NUMPY\x01\x00" or length > LONGEST_HEADER:
        raise RecordingError(f"{where}: no npy header of version 1.0 and at most {LONGEST_HEADER} bytes")
    try:
        fields = ast.literal_eval(stream.read(length).decode("latin-1").strip())
        dtype, order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    except (SyntaxError, ValueError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise RecordingError(f"{where}: the npy header cannot be read ({type(error).__name__})") from error
    if order is not False or not isinstance(dtype, str) or not isinstance(shape, tuple):
        raise RecordingError(f"{where}: the npy header must say a plain type, a shape and C order")
    if not all(isinstance(length, int) and not isinstance(length, bool) and length >= 0 for length in shape):
        raise RecordingError(f"{where}: {shape!r} is no shape")
    return _Header(dtype, shape)


def check_shapes(where: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check that equal letters are equal lengths, and that only binaries and cells may be few.

    Raises:
        RecordingError: the message names the array and both lengths.
    """
    lengths: dict[str, tuple[int, str]] = {"2": (2, "the format")}
    for name, (_, letters) in ARRAYS.items():
        for letter, length in zip(letters, arrays[name].shape, strict=True):
            known, source = lengths.setdefault(letter, (length, name))
            if known != length:
                raise RecordingError(f"{where}: {name} has {length} along {letter}, {source} has {known}")
            if length < 1:
                raise RecordingError(f"{where}: {name} is empty along {letter}")
