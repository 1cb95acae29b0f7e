"""The sources of base and change, each laid out in a folder of its own as the package `mjolnir`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mjolnir.research.answer import Failure
from mjolnir.research.checkout import Checkout
from mjolnir.research.source.allowed import MAY_CHANGE
from mjolnir.research.source.change import own_index

ROOMS = ("kernel", "tuner", "ledger", "research", "backend")


def lay_out(checkout: Checkout, commit: str, folder: Path) -> None:
    """Write the files of `commit` to `folder`/mjolnir; nothing of the user's is touched, and git forgets about them.

    Raises:
        Failure: git failed.
    """
    from git import GitCommandError

    place = folder / "mjolnir"
    place.mkdir(parents=True)
    try:
        with own_index(checkout):
            checkout.git.read_tree(commit)
            checkout.git.checkout_index("--all", "--force", f"--prefix={place}/")
    except GitCommandError as error:
        raise Failure(f"git could not lay out {commit[:12]}: {str(error.stderr).strip()}") from error


def require_same_judge(tree: Path, commit: str) -> None:
    """See that the code that runs now is the base's, but for what may change and is not imported by it.

    Args:
        tree: where the base is laid out.
        commit: the base, for the message.

    Raises:
        Failure: it is not; the message names the first file.
    """
    for room in ROOMS:
        spec = find_spec(f"mjolnir.{room}")
        running = Path(next(iter((spec.submodule_search_locations if spec else None) or ["nowhere"])))
        for path in sorted((tree / "mjolnir" / room).rglob("*.py")):
            name = path.relative_to(tree / "mjolnir").as_posix()
            if name.startswith(MAY_CHANGE):
                continue
            found = running / path.relative_to(tree / "mjolnir" / room)
            if not found.is_file() or found.read_bytes() != path.read_bytes():
                raise Failure(
                    f"the mjolnir that runs is not that of the base {commit[:12]}, which judges: {name} differs; run "
                    "the mjolnir of this checkout (`make install`), with everything but the change as in the base"
                )
