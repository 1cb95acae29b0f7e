"""The kernel hash: it misses no module whose code reaches the device."""

from __future__ import annotations

from mjolnir.kernel.sources import DEVICE_SOURCES, hash_sources, kernel_hash
from tests.kernel.reached import FOLDER, reached

NOT_CODE = {"knobs.py"}
"""Domains, defaults and help: what of a setting reaches the device is a field of `Variant`, which `variant.py` uses."""


def test_every_module_that_reaches_the_device_is_listed() -> None:
    engines = [f"engines/{path.name}" for path in (FOLDER / "engines").glob("*.py") if path.name != "__init__.py"]
    found = reached(engines)
    assert {"engines/warp.py", "engine.py", "plan.py", "device.py"} <= found
    assert set(DEVICE_SOURCES) == found - NOT_CODE
    assert list(DEVICE_SOURCES) == sorted(DEVICE_SOURCES)


def test_every_byte_of_every_module_counts() -> None:
    contents = {name: (FOLDER / name).read_bytes() for name in DEVICE_SOURCES}
    assert hash_sources(contents) == kernel_hash()
    changed = {hash_sources({**contents, name: contents[name] + b"#"}) for name in DEVICE_SOURCES}
    assert len(changed | {kernel_hash()}) == len(DEVICE_SOURCES) + 1
