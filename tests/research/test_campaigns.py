"""Several geometries in one run: a tag each, finals side by side, and going on with what was cut off."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjolnir.kernel.geometry import Geometry
from mjolnir.research import benches, campaign
from mjolnir.research.answer import UsageFailure
from mjolnir.research.campaigns import slug
from mjolnir.research.request import Request
from mjolnir.tuner import synthetic
from mjolnir.tuner.recording import Recording
from mjolnir.tuner.replay import ReplayBench
from tests.research.test_cli import call
from tests.tuner.conftest import SMALL, VALUES, WINNER

pytestmark = pytest.mark.usefixtures("six_rows")

ONE, TWO = "32/8xd128,page=64,q=1", "64/8xd128,page=64,q=1"
TAGS = ["all-32x8-d128-p64-q1", "all-64x8-d128-p64-q1"]


@pytest.fixture(autouse=True)
def _any_geometry(monkeypatch: pytest.MonkeyPatch, gained: Recording) -> None:
    """A recording of whatever geometry is asked for."""

    def choose(request: Request, campaign: Mapping[str, Any] | None, seed: int, *_: Any) -> ReplayBench:
        return ReplayBench(replace(gained, geometry=request.problem()[0]), seed)

    monkeypatch.setattr(benches, "choose", choose)


@pytest.fixture(scope="module")
def gained() -> Recording:
    return synthetic.make(synthetic.planted(WINNER, 0.05), name="gained", values=VALUES, workload=SMALL)


def run(folder: Path, *more: object) -> tuple[int, str, str]:
    common = ("--device", "replay", "--ledger", folder, "--tag", "all", "--trials", 72, "--no-until-flat")
    return call("autoresearch", "run", *common, *more)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_each_geometry_has_its_campaign_and_their_finals_go_side_by_side(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "--geometry", ONE, "--geometry", TWO, "--export", tmp_path / "runs", "--json")
    assert code == 0, err
    told = json.loads(out)["campaigns"]
    assert [each["tag"] for each in told] == TAGS
    decisions = [[bucket["promotion"]["decision"] for bucket in each["summary"]["buckets"]] for each in told]
    assert decisions == [["promote", "promote"]] * 2
    geometries = [each["summary"]["geometry"] for each in told]
    assert geometries == [Geometry.parse(text).as_dict() for text in (ONE, TWO)]
    assert [sorted(path.name for path in (tmp_path / "runs").iterdir())] == [TAGS]
    taken = records(tmp_path)
    searched = [record["tag"] for record in taken if record["kind"] == "trial"]
    assert [tag for tag, _ in itertools.groupby(searched)] == TAGS
    turns = [(r["tag"], r["body"]["process"]) for r in taken if r["kind"] == "confirmation"]
    order = list(dict.fromkeys(turns))
    assert order == [(tag, process) for process in range(order[0][1], order[-1][1] + 1) for tag in TAGS]
    assert {record["tag"] for record in taken} == set(TAGS)


def test_what_was_not_begun_is_started_when_the_rest_goes_on(tmp_path: Path) -> None:
    assert call(
        "autoresearch", "run", "--device", "replay", "--ledger", tmp_path, "--tag", TAGS[0], "--geometry", ONE,
        "--trials", 72, "--no-until-flat",
    )[0] == 0  # fmt: skip
    before = records(tmp_path)
    code, _, err = run(tmp_path, "--geometry", ONE, "--geometry", TWO, "--resume")
    assert code == 0, err
    after = records(tmp_path)
    assert after[: len(before)] == before
    assert {record["tag"] for record in after[len(before) :]} == {TAGS[1]}
    assert run(tmp_path, "--geometry", ONE, "--geometry", TWO)[0] == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--geometry", ONE, "--geometry", ONE), "32x8-d128-p64-q1 is there twice"),
        (("--geometry", ONE, "--geometry", TWO, "--dry-run"), "--dry-run goes with one geometry, not with 2"),
        (("--geometry", ONE, "--geometry", TWO, "--resume"), "there is no campaign of all to resume"),
        (("--geometry", ONE, "--geometry", "nonsense"), "--geometry"),
    ],
)
def test_what_makes_no_sense_for_several_is_refused(tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    code, _, err = run(tmp_path, *more)
    assert (code, words in err) == (2, True), err


def test_a_geometry_that_cannot_be_searched_is_refused_before_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gained: Recording
) -> None:
    one, big = Geometry.parse(ONE), "16/2xd256,page=64,q=1"

    def choose(request: Request, *_: Any) -> ReplayBench:
        if request.problem()[0] != one:
            raise UsageFailure("the recording has another geometry")
        return ReplayBench(gained)

    monkeypatch.setattr(benches, "choose", choose)
    code, _, err = run(tmp_path / "other", "--geometry", ONE, "--geometry", TWO)
    assert (code, "the recording has another geometry" in err) == (2, True), err
    assert not (tmp_path / "other" / "ledger.jsonl").exists()
    monkeypatch.setattr(campaign, "require_replayable", lambda request: None)  # as on a GPU
    code, _, err = run(tmp_path, "--geometry", ONE, "--geometry", big, "--pin", "ctas_per_sm=2", "--pin", "kv_stages=5")
    assert (code, "--pin: no setting with" in err) == (2, True), err
    assert {record["kind"] for record in records(tmp_path)} == {"campaign", "epoch"}


def test_a_tag_says_what_is_unusual_about_its_geometry() -> None:
    assert slug(Geometry.parse("16/2xd256,page=16,q=4")) == "16x2-d256-p16-q4"
    assert slug(Geometry.parse("32/8xd128,page=64,q=4,causal=no,dtype=f16")) == "32x8-d128-p64-q4-causal-no-dtype-f16"
