"""Where vLLM looks the backend up: `MjolnirBackend` chooses the fallback, `MjolnirOn<NAME>` is the class over one.

Settings are read when the class is loaded, and what is wrong in them is raised there.
"""

from __future__ import annotations

import logging
import os

from mjolnir.backend import logs, versions
from mjolnir.backend.fallback import Choice, choose, refusal
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.settings import Settings, unknown
from mjolnir.backend.stock import subclass

log = logging.getLogger(__name__)

CHOSEN, OVER = "MjolnirBackend", "MjolnirOn"


def __getattr__(name: str) -> type:
    """The class of that name.

    Raises:
        AttributeError: no such name.
        ValueError: a setting that is not allowed; the message names the variable, the value, and what is.
    """
    if name == CHOSEN:
        return _chosen()
    if name.startswith(OVER):
        return _over(Choice(name.removeprefix(OVER), named=Settings.read().fallback is not None), Settings.read())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _chosen() -> type:
    settings = Settings.read()
    Overrides.read(os.environ)
    choice = choose(settings.fallback, refusal, versions.stock_names(), cpu=versions.on_cpu())
    if not versions.first_rank():
        return _over(choice, settings)
    logs.once(log, f"Mjolnir's fallback is {choice}")
    if names := unknown(os.environ):
        logs.once(log, f"not a setting of this version of Mjolnir, and left alone: {', '.join(names)}")
    return _over(choice, settings)


_classes: dict[tuple[str, Settings], type] = {}


def _over(choice: Choice, settings: Settings) -> type:
    """The class over a fallback, one for each set of settings."""
    key = choice.name, settings
    if key not in _classes:
        base = versions.stock_class(choice.name)
        _classes[key] = subclass(base, choice.name, settings, cpu=versions.on_cpu(), shown=str(choice), module=__name__)
        _quieten(settings)
    return _classes[key]


def _quieten(settings: Settings) -> None:
    """Notes on every kernel and every row are for those who ask; the start-up line has what they come to."""
    logging.getLogger("mjolnir.kernel").setLevel(logging.DEBUG if settings.verbose else logging.WARNING)
    logging.getLogger("mjolnir.backend.lookup").setLevel(logging.DEBUG if settings.verbose else logging.ERROR)
