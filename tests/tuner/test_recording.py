"""The recording format: what is written comes back, and a hostile file is turned away with a precise error."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner import synthetic
from mjolnir.tuner.bench import Status
from mjolnir.tuner.cells import ARRAYS
from mjolnir.tuner.recording import Recording, RecordingError, packaged, packaged_names
from mjolnir.tuner.space import Space


def rewrite(folder: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> None:
    """Replace `cells.npz`, with a header that vouches for it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    (folder / "cells.npz").write_bytes(data.getvalue())
    edit(folder, lambda header: header.update(cells_sha256=hashlib.sha256(data.getvalue()).hexdigest()))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header."""
    path = folder / "recording.json"
    header = json.loads(path.read_text())
    change(header)
    path.write_text(json.dumps(header))


def members(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(folder / "cells.npz") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def npy(array: np.ndarray[Any, Any]) -> bytes:
    data = io.BytesIO()
    np.save(data, array, allow_pickle=True)
    return data.getvalue()


@pytest.fixture
def folder(modelled: Recording, tmp_path: Path) -> Path:
    modelled.save(tmp_path / "r")
    return tmp_path / "r"


def test_a_recording_comes_back_as_it_was(modelled: Recording, folder: Path) -> None:
    read = Recording.load(folder)
    for name in (
        "name",
        "device",
        "geometry",
        "placement",
        "workload",
        "environment",
        "binaries",
        "reasons",
        "windows",
    ):
        assert getattr(read, name) == getattr(modelled, name)
    assert (read.chunks, read.canaries, read.settings) == (modelled.chunks, modelled.canaries, modelled.settings)
    for name in ARRAYS:
        assert np.array_equal(read.arrays[name], modelled.arrays[name])
        assert read.arrays[name].dtype == np.dtype(ARRAYS[name][0])


def test_equal_recordings_have_equal_bytes(modelled: Recording, folder: Path, tmp_path: Path) -> None:
    Recording.load(folder).save(tmp_path / "again")
    for name in ("cells.npz", "recording.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_equal_binaries_and_plans_share_cells(modelled: Recording) -> None:
    assert len(modelled.arrays["candidate"]) < modelled.arrays["cell"].size
    one, eight = (modelled.index[Setting(2, 4, max_splits=splits)] for splits in (0, 64))
    cells = modelled.arrays["cell"][0]
    assert (cells[one] == cells[eight]).any()


def test_a_thousand_settings_stay_small(tmp_path: Path) -> None:
    recording = synthetic.make()
    recording.save(tmp_path)
    assert len(recording.settings) > 1000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000


def test_pickles_are_never_opened(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (trap,)

    pickle.loads(pickle.dumps(Trap()))
    assert trap.exists()
    trap.unlink()
    rewrite(folder, {**members(folder), "candidate.npy": npy(np.array([Trap()], dtype=object))})
    with pytest.raises(RecordingError, match=r"candidate: \|O with 1 dimensions, expected <i4 with 2"):
        Recording.load(folder)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("empty.npy"), r"'empty\.npy' is missing"),
        (lambda m: m.update({"../evil.npy": b""}), r"'\.\./evil\.npy' is not an array of a recording"),
        (lambda m: m.update({"empty.npy": b"garbage"}), "empty: no npy header"),
        (lambda m: m.update({"empty.npy": m["empty.npy"][:-1]}), "empty: shape .* takes .* but there are"),
        (lambda m: m.update({"empty.npy": m["empty.npy"] + b"x"}), "empty: shape .* takes .* but there are"),
        (lambda m: m.update({"empty.npy": m["empty.npy"].replace(b"<i4", b"<i8")}), "empty: <i8 with 2 dim"),
        (lambda m: m.update({"empty.npy": m["empty.npy"].replace(b"False", b"True ")}), "C order"),
        (lambda m: m.update({"setting_ms.npy": m["setting_ms.npy"].replace(b"2)", b"3)")}), "setting_ms: shape"),
        (lambda m: m.update({"binary_ms.npy": npy(np.zeros((1, 1), "<i4"))}), "binary_ms: <i4 with 2 dimensions"),
        (lambda m: m.update({"empty.npy": b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118}), "header cannot be read"),
        (lambda m: m.update({"empty.npy": b"\x93NUMPY\x02\x00" + m["empty.npy"][8:]}), "no npy header of version 1.0"),
    ],
)
def test_damaged_members_are_named(folder: Path, change: Callable[[dict[str, bytes]], Any], message: str) -> None:
    content = members(folder)
    change(content)
    rewrite(folder, content)
    with pytest.raises(RecordingError, match=message):
        Recording.load(folder)


def test_a_bomb_is_not_unpacked(folder: Path) -> None:
    rewrite(folder, {**members(folder), "empty.npy": b"\0" * 65_000_000})
    assert (folder / "cells.npz").stat().st_size < 1_000_000
    with pytest.raises(RecordingError, match=r"empty\.npy has 65000000 bytes, more than"):
        Recording.load(folder)


def test_a_huge_shape_is_refused_before_memory_is_taken(folder: Path) -> None:
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999, 9999999999), }".ljust(117) + b"\n"
    rewrite(folder, {**members(folder), "empty.npy": b"\x93NUMPY\x01\x00\x76\x00" + header})
    with pytest.raises(RecordingError, match=r"empty: shape \(9999999999, 9999999999\) takes"):
        Recording.load(folder)


def change_array(name: str, change: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Recording], Recording]:
    def apply(recording: Recording) -> Recording:
        array = recording.arrays[name].copy()
        changed = change(array)
        return replace(recording, arrays={**recording.arrays, name: array if changed is None else changed})

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_array("candidate", lambda a: a.__setitem__((0, 0), 0)), "candidate has a time outside"),
        (
            change_array("pair_empty", lambda a: a.__setitem__(slice(None), 10**9)),
            "pair_candidate has a median not above",
        ),
        (change_array("cell", lambda a: a.__setitem__((0, 0, 0), 10**6)), "cell runs to 1000000"),
        (change_array("cell", lambda a: a.__setitem__((0, 0, 0), -1)), "measured settings, and they alone"),
        (change_array("setting", lambda a: a.__setitem__(0, a[1])), "a setting is there twice"),
        (change_array("setting", lambda a: a.__setitem__((0, 0), 9)), "ctas_per_sm = 9 is not allowed"),
        (change_array("setting", lambda a: a.__setitem__((0, 1), 0)), "is not resolved"),
        (change_array("setting_status", lambda a: a.__setitem__(0, 200)), "setting_status runs to 200"),
        (change_array("setting_binary", lambda a: a.__setitem__(0, -1)), "a measured setting has no binary"),
        (change_array("cell_window", lambda a: a.__setitem__(0, -3)), "cell_window runs to"),
        (change_array("setting_ms", lambda a: a.__setitem__((0, 0), -1)), "setting_ms has a negative time"),
        (change_array("baseline", lambda a: a[:, :-1]), "baseline has 11 along R, candidate has 12"),
        (change_array("rebuild_empty", lambda a: a[:, :0]), "rebuild_empty has 0 along G"),
        (lambda r: replace(r, binaries=r.binaries[1:]), "setting_binary runs to|binary_ms has"),
        (lambda r: replace(r, canaries=({"fault": "odd", "status": "measured"},)), "names no known fault"),
    ],
)
def test_contradictions_are_named(modelled: Recording, change: Callable[[Recording], Recording], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        change(modelled)


def test_the_default_has_to_be_measured(modelled: Recording) -> None:
    place = modelled.index[modelled.default]
    arrays = {name: array.copy() for name, array in modelled.arrays.items()}
    arrays["setting_status"][place] = list(Status).index(Status.CRASHED)
    arrays["cell"][:, place] = -1
    with pytest.raises(RecordingError, match=r"the default .* was not measured"):
        replace(modelled, arrays=arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(schema="mjolnir.recording/2"), "schema is 'mjolnir.recording/2', this version reads"),
        (lambda h: h.update(knobs=["a"]), r"knobs is \['a'\]"),
        (lambda h: h.update(statuses=[]), r"statuses is \[\]"),
        (lambda h: h.pop("device"), "KeyError: 'device'"),
        (lambda h: h["device"].update(arch="sm_1"), "architecture 'sm_1' is not supported"),
        (lambda h: h.update(cells_sha256="0" * 64), "its sha256 is not the one"),
        (lambda h: h.update(windows=3), "TypeError"),
        (lambda h: h.update(reasons=[]), "AttributeError"),
    ],
)
def test_a_wrong_header_is_named(folder: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    edit(folder, change)
    with pytest.raises(RecordingError, match=message):
        Recording.load(folder)


def test_files_that_are_missing_too_large_or_not_json(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"recording\.json: cannot be read"):
        Recording.load(tmp_path / "nowhere")
    header = (folder / "recording.json").read_text()
    for text, message in (
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        ("[]", "schema is None"),
        (" " * 4_000_001, "more"),
    ):
        (folder / "recording.json").write_text(text)
        with pytest.raises(RecordingError, match=message):
            Recording.load(folder)
    (folder / "recording.json").write_text(header)
    (folder / "cells.npz").write_bytes(b"\0" * 4_000_001)
    with pytest.raises(RecordingError, match=r"cells\.npz: more than the 4000000 bytes"):
        Recording.load(folder)
    (folder / "cells.npz").unlink()
    with pytest.raises(RecordingError, match=r"cells\.npz: cannot be read"):
        Recording.load(folder)


@given(st.data())
def test_no_flipped_byte_gets_past_the_reader_unnoticed(saved: Path, data: st.DataObject) -> None:
    """Damaged content either has no effect on the arrays or is a `RecordingError`, even with a matching sha256."""
    original = members(saved)
    name = data.draw(st.sampled_from(sorted(original)))
    content = bytearray(original[name])
    place = data.draw(st.integers(0, min(len(content), 200) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    keep = (saved / "cells.npz").read_bytes(), (saved / "recording.json").read_bytes()
    try:
        rewrite(saved, {**original, name: bytes(content)})
        try:
            read = Recording.load(saved)
        except RecordingError:
            return
        assert all(read.arrays[n].dtype == np.dtype(ARRAYS[n][0]) for n in ARRAYS)
    finally:
        (saved / "cells.npz").write_bytes(keep[0])
        (saved / "recording.json").write_bytes(keep[1])


def test_packaged_recordings_load_and_an_unknown_one_is_named() -> None:
    with pytest.raises(RecordingError, match="no recording 'nothing' is packaged; there are"):
        packaged("nothing")
    for name in packaged_names():
        assert packaged(name).name == name


def test_a_recording_from_before_a_knob_is_read_with_its_default(folder: Path, modelled: Recording) -> None:
    place = [knob.name for knob in KNOBS].index("consumer_warps")
    files = members(folder)
    settings = np.load(io.BytesIO(files["setting.npy"]))
    rewrite(folder, {**files, "setting.npy": npy(np.delete(settings, place, axis=1))})
    edit(folder, lambda header: header["knobs"].remove("consumer_warps"))
    read = Recording.load(folder)
    assert read.settings == modelled.settings
    assert {setting.consumer_warps for setting in read.settings} == {4}
    edit(folder, lambda header: header["knobs"].append("pdl"))
    with pytest.raises(RecordingError, match="knobs is"):
        Recording.load(folder)


def test_a_ring_that_no_longer_fits_is_read_as_the_deepest_that_does(folder: Path, modelled: Recording) -> None:
    """As an earlier kernel left it, which had room for one stage more with two CTAs per SM."""
    files = members(folder)
    settings = np.load(io.BytesIO(files["setting.npy"]))
    deepest = (settings[:, 0] == 2) & (settings[:, 1] == modelled.default.kv_stages)
    assert deepest.any()
    settings[deepest, 1] += 1
    rewrite(folder, {**files, "setting.npy": npy(settings)})
    assert Recording.load(folder).settings == modelled.settings


def test_the_packaged_recording_replays_with_the_kernel_as_it_is() -> None:
    recording = packaged("h200-32x8-d128-p64")
    assert {setting.consumer_warps for setting in recording.settings} == {4, 8}
    assert recording.default == resolve(Setting(), recording.geometry, recording.device)
    assert recording.status(recording.index[recording.default]) is Status.MEASURED
    assert len(set(recording.settings)) == 3960
    space = Space(recording.geometry, recording.device, allowed=recording.settings)
    assert space.size == prod(len(dimension.values) for dimension in space.dimensions) == 3960
