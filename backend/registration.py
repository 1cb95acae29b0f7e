"""The door that `register` opens when Mjolnir is to serve."""

from __future__ import annotations

from mjolnir.backend import versions

PATH = "mjolnir.backend.selected.MjolnirBackend"


def register() -> None:
    """Put the backend's class, by its path, where vLLM looks it up; it is loaded when a server asks for it."""
    versions.share_log()
    versions.register(PATH)
    if versions.on_cpu():
        versions.accept_on_cpu(PATH)
