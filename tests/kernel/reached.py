"""Which modules of the kernel's room a module needs, as paths within the room."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from mjolnir import kernel

FOLDER = Path(str(kernel.__file__)).parent
PREFIX = "mjolnir.kernel."


def reached(names: Iterable[str]) -> set[str]:
    """Modules, and whatever they import."""
    waiting, found = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports(FOLDER / name)
    return found


def imports(path: Path) -> Iterator[str]:
    """What one module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            found = f"{name.removeprefix(PREFIX).replace('.', '/')}.py"
            if name.startswith(PREFIX) and (FOLDER / found).is_file():
                yield found
