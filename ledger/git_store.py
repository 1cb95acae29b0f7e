"""The git side of the ledger: one commit a record on `refs/mjolnir/ledger/<tag>/<writer>`.

All git commands of the ledger go through here, plumbing alone but for those that speak to a remote. They are started
with a clean environment and with every setting pinned that could change their doing; neither HEAD nor the index nor the
work tree nor a hook takes part.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mjolnir.ledger.commits import PREFIX, Commit, ref_of, stream
from mjolnir.ledger.git_run import GitError as GitError
from mjolnir.ledger.git_run import run_git
from mjolnir.ledger.record import MAX_LINE

_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.logAllRefUpdates=false",
    "core.fsync=committed",
    # Always a pack: one durable file however many records, where loose objects would be three files a record.
    "fastimport.unpackLimit=0",
    "pack.packSizeLimit=0",
    "gc.auto=0",
)
MOST_PACKS = 16
"""So many packs of flushes are let be; more are merged."""

_LARGE_PACK = 32 * 1024 * 1024
_CRASH_REPORT = re.compile("fast_import_crash_[0-9]+")
_PACK_NAME = re.compile("pack-[0-9a-f]{40,64}")
_SWEPT = re.compile("unable to (?:write file|create|open|rename) .*: No such file or directory")
_STALE_SECONDS = 10.0
_ATTEMPTS = 4
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class GitStore:
    """The ledger refs of one repository.

    Attributes:
        git: path of the git binary.
        directory: the git directory (of the work tree, where there are several).
        common: the directory that refs and objects lie in.
        home: the top of the work tree, from which git takes the place of a remote; without one the git directory.
        algorithm: the object format, "sha1" or "sha256".
    """

    git: str
    directory: Path
    common: Path
    home: Path
    algorithm: str

    @classmethod
    def discover(cls, folder: Path) -> GitStore:
        """The repository that holds `folder`, which need not exist yet.

        Raises:
            GitError: no git binary, no repository, or one that git will not use; the message says which.
        """
        git = shutil.which("git")
        if git is None:
            raise GitError("there is no git binary on the PATH")
        while not folder.is_dir():
            folder = folder.parent
        query = (
            "rev-parse", "--absolute-git-dir", "--git-common-dir", "--show-object-format", "--is-inside-work-tree",
            "--show-cdup",
        )  # fmt: skip
        try:
            answer = run_git([git, *query], folder)
        except GitError as error:
            if "not a git repository" in str(error):
                raise GitError(f"{folder} lies in no git repository") from error
            raise
        directory, common, algorithm, in_tree, *up = answer.decode().splitlines()
        home = folder.joinpath(*up).resolve() if in_tree == "true" else Path(directory)
        return cls(git, Path(directory), (folder / common).resolve(), home, algorithm)

    @property
    def shallow(self) -> bool:
        """Whether history was cut off when it was fetched, that of ledger refs perhaps with it."""
        return (self.common / "shallow").exists()

    def check_writable(self) -> None:
        """Raise GitError when nothing can be added to the repository; what it holds can be read all the same."""
        if not os.access(self.common, os.W_OK):
            raise GitError(f"the git repository {self.common} cannot be written")

    @contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the lock for moving ledger refs of this repository. Whoever holds it may flush anyone's lines.

        Commits being functions of their records, a second flush of the same lines makes the same commits.

        Raises:
            GitError: another process kept the lock for `timeout` seconds, or the git directory cannot be written.
        """
        # Here because it imports asyncio, and those who read take no lock.
        from filelock import FileLock, Timeout

        folder = self.common / "mjolnir"
        try:
            folder.mkdir(exist_ok=True)
            lock = FileLock(folder / "ledger.lock", timeout=timeout, poll_interval=0.005, thread_local=False)
            lock.acquire()
        except Timeout as error:
            raise GitError(f"another process is moving the ledger refs of {self.common}") from error
        except OSError as error:
            raise GitError(f"{folder} cannot be written: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def move(self, moves: Mapping[str, tuple[str, str]]) -> None:
        """Take refs from one commit to another, all or none: (old, new) by name; empty is a ref that is not there.

        Raises:
            GitError: a ref has moved meanwhile, or git failed; nothing was moved.
        """
        none = "0" * (64 if self.algorithm == "sha256" else 40)
        orders = (f"update {ref} {new or none} {old or none}\n".encode() for ref, (old, new) in moves.items())
        self.run("update-ref", "--stdin", source=(b"start\n", *orders, b"commit\n"))

    def heads(self, pattern: str = PREFIX) -> dict[str, str]:
        """Ref names and commit ids of the refs at or below `pattern`."""
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)", pattern).decode().splitlines()
        return {name: commit for name, _, commit in (line.partition(" ") for line in lines)}

    def write(self, commits: Sequence[Commit]) -> None:
        """Make `commits` and move their refs onto the last of each; chains in order, refs at the first one's parent.

        To be called while locked. git takes each ref from the value that it had to the new one, and only forward.
        A user's `git gc --prune=now` may sweep away what git is just writing, which then is written again.

        Raises:
            GitError: a ref has moved elsewhere, or git failed. No ref points to anything incomplete.
        """
        if not commits:
            return
        for last in (False,) * (_ATTEMPTS - 1) + (True,):
            try:
                self._import(commits)
                return
            except GitError as error:
                locks = self._clear_stale_locks({ref_of(commit.record) for commit in commits})
                keeps = self._clear_stale_keeps(commits)
                if last or not (locks or keeps or _SWEPT.search(str(error))):
                    raise

    def _import(self, commits: Sequence[Commit]) -> None:
        edges = f"--export-pack-edges={self._registry}"
        try:
            self.run("fast-import", "--quiet", "--date-format=raw", edges, source=stream(commits))
        except GitError as error:
            # The message is the report; what git also writes into the git directory would only pile up.
            for report in _CRASH_REPORT.findall(str(error)):
                (self.directory / report).unlink(missing_ok=True)
            raise

    def read(self, heads: Iterable[str], known: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Commit id and `record.json` of each commit that `heads` reach and `known` do not, parents first.

        Raises:
            GitError: an object is missing, or a commit without `record.json`.
        """
        wanted = (f"{commit}\n".encode() for commit in (*heads, *(f"^{commit}" for commit in known)))
        listed = self.run("rev-list", "--reverse", "--topo-order", "--stdin", source=wanted).decode().split()
        for start in range(0, len(listed), _BATCH):
            yield from self._contents(listed[start : start + _BATCH])

    def _contents(self, commits: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        wanted = [f"{commit}:record.json\n".encode() for commit in commits]
        sizes = self.run("cat-file", "--batch-check=%(objectsize)", source=wanted).split(b"\n")
        for commit, size in zip(commits, sizes, strict=False):
            if size.isdigit() and int(size) > MAX_LINE:
                raise GitError(f"record.json of commit {commit} has {int(size)} bytes; {MAX_LINE} are allowed")
        answer = self.run("cat-file", "--batch", source=wanted)
        position = 0
        for commit in commits:
            end = answer.index(b"\n", position)
            match answer[position:end].split(b" "):
                case [_, b"blob", size]:
                    position = end + 1 + int(size) + 1
                    yield commit, answer[end + 1 : position - 1]
                case _:
                    raise GitError(f"commit {commit} in {self.directory} holds no record.json")

    def gather(self, most: int = MOST_PACKS) -> None:
        """Merge the packs that flushes made, when there are more than `most`, so that automatic gc is not tripped.

        To be called while locked. Packs that have grown large are left as they are; the user's are not looked at.
        """
        folder = self.common / "objects" / "pack"
        small = [name for name in self._packs() if (folder / f"{name}.pack").stat().st_size < _LARGE_PACK]
        # A multi-pack index would go on naming the packs that are merged; whoever keeps one gathers packs himself.
        if len(small) <= most or (folder / "multi-pack-index").exists():
            return
        listed = (f"{name}.pack\n".encode() for name in small)
        answer = self.run("pack-objects", "--quiet", "--stdin-packs", str(folder / "pack"), source=listed)
        merged = f"pack-{answer.decode().strip()}"
        self._register([merged])
        for name in small:
            if name != merged:
                for suffix in (".idx", ".pack", ".rev", ".keep"):
                    (folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _packs(self) -> list[str]:
        """The packs that flushes made and that are still there, oldest first."""
        try:
            text = self._registry.read_text()
        except FileNotFoundError:
            return []
        names = dict.fromkeys(_PACK_NAME.findall(text))
        return [name for name in names if (self.common / "objects" / "pack" / f"{name}.pack").exists()]

    def _register(self, names: Iterable[str]) -> None:
        draft = self._registry.with_name("packs.new")
        draft.write_text("".join(f"{name}\n" for name in names))
        draft.replace(self._registry)

    @property
    def _registry(self) -> Path:
        """Names of own packs; fast-import itself appends to it, and `gather` writes it anew."""
        return self.common / "mjolnir" / "packs"

    def run(self, *arguments: str, source: Iterable[bytes] = (), folder: Path | None = None) -> bytes:
        """What a git command prints, of which `source` is the whole input, run in `folder` or in the git directory.

        Raises:
            GitError: it failed.
        """
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        return run_git(
            [self.git, f"--git-dir={self.directory}", *settings, *arguments], folder or self.directory, source
        )

    def _clear_stale_locks(self, refs: Iterable[str]) -> bool:
        """Remove lock files of our own refs that a killed git left; True when there was one.

        Only called while the ledger's lock is held, so no flush of ours is under way.
        """
        found = False
        for ref in refs:
            path = self.common / f"{ref}.lock"
            try:
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()
                    found = True
            except OSError:
                continue
        return found

    def _clear_stale_keeps(self, commits: Sequence[Commit]) -> bool:
        """Remove the marks that hold packs of a flush which ended half way; True when there was one.

        The same commits make a pack of the same name, which git refuses to mark twice. Only called while the ledger's
        lock is held.
        """
        found = False
        for keep in (self.common / "objects" / "pack").glob("pack-*.keep"):
            try:
                if keep.read_bytes().strip() == b"fast-import" and self._is_own(keep.with_suffix(".idx"), commits):
                    keep.unlink()
                    found = True
            except OSError:
                continue
        return found

    def _is_own(self, index: Path, commits: Sequence[Commit]) -> bool:
        """Whether a pack holds one of `commits`, or nothing, for lack of an index."""
        if not index.exists():
            return True
        ids = {commit.id.encode() for commit in commits}
        listed = self.run("show-index", source=[index.read_bytes()]).splitlines()
        return any(line.split()[1] in ids for line in listed)
