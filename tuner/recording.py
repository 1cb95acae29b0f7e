"""A recording: the timings of a whole knob grid on a real card, format `mjolnir.recording/1`.

A folder of two files. `recording.json` says what was measured where: device, geometry, placement, workload,
environment, knob names, binaries, reasons of failures, windows, chunks (the sittings in which it was taken) and
canaries, and holds the sha256 of the other file. `cells.npz` holds the numbers; `cells.ARRAYS` describes them. All
times are whole nanoseconds of a chain, as in `Timing`.

A recording outlives the kernel that it was taken with: see `earlier`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import CANARIES, Status
from mjolnir.tuner.cells import LARGEST_FILE, RecordingError, check_shapes, read_cells, write_cells
from mjolnir.tuner.earlier import as_of_now
from mjolnir.tuner.windows import pack, unpack
from mjolnir.tuner.workload import Workload

__all__ = ["SCHEMA", "Recording", "RecordingError", "packaged", "packaged_names"]

SCHEMA = "mjolnir.recording/1"
LONGEST_SAMPLE = 2_000_000_000
"""Two seconds in ns: a chain that took longer was not a decode step."""

PACKAGED = Path(__file__).parent / "recordings"
SAMPLES = ("candidate", "baseline", "empty")


@dataclass(frozen=True)
class Recording:
    """One recording, checked.

    Attributes:
        name: its name, by which `--recording` asks for it.
        device: where it was taken.
        geometry: the problem.
        placement: how the KV caches lay.
        workload: the points.
        environment: as `Bench.environment` of the bench that took it.
        binaries: keys of the compiled variants.
        reasons: why a setting has no timings, by its index.
        windows: what was seen of the device, by window id.
        chunks: the sittings.
        canaries: gate outcomes of faulty kernels: fault, setting, status, reason, correctness.
        arrays: see `cells.ARRAYS`.

    Raises:
        RecordingError: the parts contradict one another.
    """

    name: str
    device: Device
    geometry: Geometry
    placement: Placement
    workload: Workload
    environment: Mapping[str, Any]
    binaries: tuple[str, ...]
    reasons: Mapping[int, str]
    windows: tuple[Mapping[str, Any], ...]
    chunks: tuple[Mapping[str, Any], ...]
    canaries: tuple[Mapping[str, Any], ...]
    arrays: Mapping[str, npt.NDArray[Any]]

    def __post_init__(self) -> None:
        check_shapes(self.name, self.arrays)
        self._check_indices()
        self._check_settings()
        self._check_samples()
        for canary in self.canaries:
            if canary.get("fault") not in CANARIES or canary.get("status") not in list(Status):
                raise RecordingError(f"{self.name}: canary {canary!r:.80} names no known fault and status")

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The settings, resolved, in the order of the arrays."""
        return tuple(Setting(*row) for row in self.arrays["setting"].tolist())

    @cached_property
    def index(self) -> Mapping[Setting, int]:
        """Place of each setting."""
        return {setting: place for place, setting in enumerate(self.settings)}

    @cached_property
    def default(self) -> Setting:
        """The built-in default, resolved."""
        return resolve(Setting(), self.geometry, self.device)

    def status(self, place: int) -> Status:
        """How the setting at `place` ended."""
        return list(Status)[int(self.arrays["setting_status"][place])]

    def _check_settings(self) -> None:
        try:
            settings = self.settings
        except (TypeError, ValueError) as error:
            raise RecordingError(f"{self.name}: setting: {error}") from error
        if self.arrays["setting"].shape[1] != len(KNOBS):
            raise RecordingError(f"{self.name}: setting has {self.arrays['setting'].shape[1]} knobs, not {len(KNOBS)}")
        if len(self.index) != len(settings):
            raise RecordingError(f"{self.name}: a setting is there twice")
        for setting in settings:
            if resolve(setting, self.geometry, self.device) != setting:
                raise RecordingError(f"{self.name}: {setting} is not resolved")
        measured = self.arrays["setting_status"] == list(Status).index(Status.MEASURED)
        if self.default not in self.index or not measured[self.index[self.default]]:
            raise RecordingError(f"{self.name}: the default ({self.default}) was not measured")
        if ((self.arrays["cell"] >= 0).all(axis=(0, 2)) != measured).any():
            raise RecordingError(f"{self.name}: cell: measured settings, and they alone, have a cell at every point")
        if (self.arrays["setting_binary"][measured] < 0).any():
            raise RecordingError(f"{self.name}: setting_binary: a measured setting has no binary")

    def _check_indices(self) -> None:
        limits = {
            "setting_status": (0, len(Status)),
            "setting_binary": (-1, len(self.binaries)),
            "cell": (-1, len(self.arrays["candidate"])),
            "cell_window": (0, len(self.windows)),
            "cell_chunk": (0, len(self.chunks)),
        }
        for name, (low, end) in limits.items():
            array = self.arrays[name]
            if int(array.min()) < low or int(array.max()) >= end:
                raise RecordingError(f"{self.name}: {name} runs to {int(array.max())}, allowed are {low} to {end - 1}")
        if len(self.arrays["binary_ms"]) != len(self.binaries):
            raise RecordingError(
                f"{self.name}: binary_ms has {len(self.arrays['binary_ms'])}, not {len(self.binaries)}"
            )
        if self.arrays["cell"].shape[2] != len(self.workload.points):
            raise RecordingError(
                f"{self.name}: cell has {self.arrays['cell'].shape[2]} points, the workload another number"
            )
        for name in ("setting_ms", "binary_ms"):
            if int(self.arrays[name].min()) < 0:
                raise RecordingError(f"{self.name}: {name} has a negative time")

    def _check_samples(self) -> None:
        for prefix in ("", "pair_", "rebuild_"):
            for name in SAMPLES:
                array = self.arrays[prefix + name]
                if int(array.min()) < 1 or int(array.max()) > LONGEST_SAMPLE:
                    raise RecordingError(f"{self.name}: {prefix + name} has a time outside 1 to {LONGEST_SAMPLE} ns")
            empty = np.median(self.arrays[prefix + "empty"], axis=-1)
            for name in SAMPLES[:2]:
                if (np.median(self.arrays[prefix + name], axis=-1) <= empty).any():
                    raise RecordingError(f"{self.name}: {prefix + name} has a median not above that of its empty chain")

    def save(self, folder: Path) -> None:
        """Write both files; the folder is made where it is missing.

        Raises:
            RecordingError: a file would be larger than a recording may be.
        """
        folder.mkdir(parents=True, exist_ok=True)
        cells = folder / "cells.npz"
        write_cells(cells, self.arrays)
        header = self._header(hashlib.sha256(cells.read_bytes()).hexdigest())
        lines = (f"{json.dumps(name)}: {_line(header[name])}" for name in sorted(header))
        (folder / "recording.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        for path in (cells, folder / "recording.json"):
            if path.stat().st_size > LARGEST_FILE:
                raise RecordingError(f"{path}: {path.stat().st_size} bytes, a recording may have {LARGEST_FILE}")

    def _header(self, digest: str) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "device": asdict(self.device),
            "geometry": self.geometry.as_dict(),
            "placement": asdict(self.placement),
            "workload": self.workload.as_dict(),
            "environment": dict(self.environment),
            "knobs": [item.name for item in KNOBS],
            "statuses": [str(status) for status in Status],
            "binaries": list(self.binaries),
            "reasons": {str(place): text for place, text in self.reasons.items()},
            "windows": pack(self.windows),
            "chunks": [dict(chunk) for chunk in self.chunks],
            "canaries": [dict(canary) for canary in self.canaries],
            "cells_sha256": digest,
        }

    @classmethod
    def load(cls, folder: Path) -> Recording:
        """Read and check a recording.

        Raises:
            RecordingError: a file is missing, too large, of another schema, damaged, or contradicts itself.
        """
        path = Path(folder) / "recording.json"
        header = _read_json(path)
        try:
            arrays = read_cells(path.parent / "cells.npz", header["cells_sha256"])
            device, geometry = Device(**header["device"]), Geometry.from_dict(header["geometry"])
            rows = [
                as_of_now(dict(zip(header["knobs"], row, strict=True)), geometry, device)
                for row in arrays["setting"].tolist()
            ]
            table = np.array([list(setting.as_dict().values()) for setting in rows], dtype=arrays["setting"].dtype)
            return cls(
                name=str(header["name"]),
                device=device,
                geometry=geometry,
                placement=Placement(**header["placement"]),
                workload=Workload.from_dict(header["workload"]),
                environment=dict(header["environment"]),
                binaries=tuple(map(str, header["binaries"])),
                reasons={int(place): str(text) for place, text in header["reasons"].items()},
                windows=unpack(header["windows"]),
                chunks=tuple(map(dict, header["chunks"])),
                canaries=tuple(map(dict, header["canaries"])),
                arrays={**arrays, "setting": table},
            )
        except RecordingError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            raise RecordingError(f"{path}: {type(error).__name__}: {error}") from error


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _read_json(path: Path) -> dict[str, Any]:
    """The header, of the right schema and with knobs and statuses that this version knows."""
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise RecordingError(f"{path}: more than {LARGEST_FILE} bytes")
        header = json.loads(data)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{path}: not JSON ({error})") from error
    expected = {"schema": SCHEMA, "statuses": [str(status) for status in Status]}
    for name, value in expected.items():
        found = header.get(name) if isinstance(header, dict) else None
        if found != value:
            raise RecordingError(f"{path}: {name} is {found!r:.80}, this version reads {value!r}")
    names, known = header.get("knobs"), [item.name for item in KNOBS]
    if not isinstance(names, list) or not all(name in known for name in names) or len(set(names)) < len(names):
        raise RecordingError(f"{path}: knobs is {names!r:.80}, this version reads some of {known!r}")
    return dict(header)


def packaged_names() -> list[str]:
    """Names of the recordings that come with the package."""
    return sorted(path.parent.name for path in PACKAGED.glob("*/recording.json"))


def packaged(name: str) -> Recording:
    """A recording that comes with the package.

    Raises:
        RecordingError: no such recording; the message lists them.
    """
    if name not in packaged_names():
        raise RecordingError(f"no recording {name!r} is packaged; there are {', '.join(packaged_names()) or 'none'}")
    return Recording.load(PACKAGED / name)
