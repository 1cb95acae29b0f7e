"""What a change consists of, what is refused, and that the user's index and tree are only read."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from mjolnir.research.answer import Failure, UsageFailure
from mjolnir.research.checkout import Checkout
from mjolnir.research.request import Request
from mjolnir.research.source.allowed import sorted_out
from mjolnir.research.source.change import take
from mjolnir.research.source.trees import ROOMS, lay_out, require_same_judge
from tests.fakes.sources import PLACE
from tests.research.conftest import git
from tests.research.source.conftest import state


@pytest.fixture
def taken(checkout):
    def run(branch: str | None = None):
        found = Checkout.find(checkout)
        assert found
        return take(found, git(checkout, "rev-parse", "HEAD"), "why", branch)

    return run


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("kernel/emulator.py", "the emulator"),
        ("kernel/plan.py", "the emulator, or what it computes with"),
        ("kernel/timing.py", "the timing"),
        ("kernel/variant.py", "shared by the kernel"),
        ("tuner/gpu/gate.py", "the gate"),
        ("tuner/gpu/measure.py", "the timing"),
        ("tests/kernel/test_plan.py", "the tests"),
        ("ledger/record.py", "the ledger"),
        ("research/source/allowed.py", "judges"),
    ],
)
def test_the_judges_are_named_and_refused(checkout, taken, path, word):
    for name in (path, PLACE):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("# other\n")
    git(checkout, "add", "--all")
    with pytest.raises(UsageFailure, match=word) as refused:
        taken()
    assert path in str(refused.value)
    assert PLACE not in str(refused.value)


def test_files_come_go_and_change(checkout, taken):
    engines = checkout / "kernel" / "engines"
    (engines / "fresh.py").write_text("# new\n")
    (engines / "ring.py").unlink()
    (checkout / PLACE).write_text("# other\n")
    (checkout / "notes.txt").write_text("mine\n")
    before = state(checkout)
    change = taken()
    assert change.files == ("kernel/engines/fresh.py", "kernel/engines/ring.py", PLACE)
    assert state(checkout) == before
    names = git(checkout, "ls-tree", "-r", "--name-only", change.commit).splitlines()
    assert "kernel/engines/fresh.py" in names
    assert "kernel/engines/ring.py" not in names
    assert "notes.txt" not in names
    git(checkout, "stash", "--include-untracked", "--quiet")
    (checkout / "patch").write_text(change.diff)
    git(checkout, "apply", "--index", "patch")
    assert git(checkout, "diff", "--stat", change.commit, "--", "kernel") == ""


def test_what_the_kernel_does_not_depend_on_is_left_out_and_said(checkout, taken):
    (checkout / PLACE).write_text("# other\n")
    (checkout / "README.md").write_text("two\n")
    assert taken().left_out == ("README.md",)


def test_nothing_to_try(checkout, taken):
    with pytest.raises(UsageFailure, match="nothing to try"):
        taken()
    with pytest.raises(UsageFailure, match="no commit 'nowhere'"):
        taken("nowhere")


def test_links_are_no_part_of_a_change(checkout, taken):
    (checkout / PLACE).unlink()
    (checkout / PLACE).symlink_to("/etc/passwd")
    with pytest.raises(UsageFailure, match="link"):
        taken()


def test_hooks_signing_and_a_missing_name_do_not_matter(checkout, taken, monkeypatch):
    hook = checkout / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\nexit 1\n")
    hook.chmod(0o755)
    for name, value in (("commit.gpgsign", "true"), ("diff.noprefix", "true"), ("core.autocrlf", "input")):
        git(checkout, "config", name, value)
    git(checkout, "config", "--unset", "user.name")
    git(checkout, "config", "user.useConfigOnly", "true")
    monkeypatch.setenv("GIT_INDEX_FILE", str(checkout / "elsewhere"))
    monkeypatch.setenv("GIT_DIR", str(checkout / "nowhere"))
    (checkout / PLACE).write_text("# other\n")
    found = Checkout.find(checkout)
    assert found
    with monkeypatch.context() as patch:
        patch.delenv("GIT_DIR")
        patch.delenv("GIT_INDEX_FILE")
        base = git(checkout, "rev-parse", "HEAD")
    change = take(found, base, "why")
    assert f"+++ b/{PLACE}" in change.diff
    assert not (checkout / "hooked").exists()
    assert not (checkout / "elsewhere").exists()


def test_trees_are_laid_out_beside_each_other_and_the_judge_is_compared(checkout, taken, tmp_path):
    (checkout / PLACE).write_text("# other\n")
    change, found = taken(), Checkout.find(checkout)
    assert found
    before = state(checkout)
    for name, commit in (("base", change.base), ("change", change.commit)):
        lay_out(found, commit, tmp_path / name)
    assert (tmp_path / "base" / "mjolnir" / PLACE).read_text() != "# other\n"
    assert (tmp_path / "change" / "mjolnir" / PLACE).read_text() == "# other\n"
    assert state(checkout) == before
    with pytest.raises(Exception, match=r"device\.py differs"):
        require_same_judge(tmp_path / "base", change.base)


def test_every_path_is_the_kernels_a_judges_or_of_no_consequence():
    mine, forbidden, others = sorted_out(
        ["kernel/engines/warp.py", "kernel/cache.py", "Makefile", "kernel/engines/x/y"]
    )
    assert mine == ["kernel/engines/warp.py", "kernel/engines/x/y"]
    assert list(forbidden) == ["kernel/cache.py"]
    assert others == ["Makefile"]


def test_the_judge_is_compared_but_for_the_engines(tmp_path):
    for room in ROOMS:
        spec = find_spec(f"mjolnir.{room}")
        assert spec
        assert spec.submodule_search_locations
        source = Path(spec.submodule_search_locations[0])
        shutil.copytree(source, tmp_path / "mjolnir" / room, ignore=shutil.ignore_patterns("__pycache__", "recordings"))
    (tmp_path / "mjolnir" / PLACE).write_text("# other\n")
    require_same_judge(tmp_path, "0" * 40)
    gate = tmp_path / "mjolnir" / "tuner" / "gpu" / "gate.py"
    gate.write_text(gate.read_text() + "\n")
    with pytest.raises(Failure, match=r"tuner/gpu/gate\.py differs"):
        require_same_judge(tmp_path, "0" * 40)


def test_the_opener_gives_each_build_its_tree_and_its_cache(checkout, taken, monkeypatch):
    from mjolnir.research.source import opening, trees

    seen: list[tuple[str, bool]] = []

    class Bench:
        def __init__(self, geometry, placement, workload, base, change, backend):
            self.trees = (base, change)
            seen.extend(((tree.folder / "mjolnir" / PLACE).read_text(), tree.folder.exists()) for tree in self.trees)
            assert backend.options == {"index": 0}

        def close(self):
            seen.append(("closed", self.trees[0].folder.exists()))

    monkeypatch.setattr(opening, "require_gpu", lambda device, instead: 0)
    monkeypatch.setattr(trees, "require_same_judge", lambda tree, commit: None)
    monkeypatch.setattr("mjolnir.tuner.gpu.source_bench.GpuSourceBench", Bench)
    old = (checkout / PLACE).read_text()
    (checkout / PLACE).write_text("# other\n")
    found = Checkout.find(checkout)
    assert found
    with opening.GpuOpener().open("auto", Request().problem(), found, taken()) as bench:
        base, change = vars(bench)["trees"]
        assert base.cache != change.cache
        assert base.cache.parent == change.cache.parent
    assert seen == [(old, True), ("# other\n", True), ("closed", True)]
    assert not base.folder.exists()
