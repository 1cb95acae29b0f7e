"""What `run` is asked becomes options; what makes no sense is refused with words."""

from __future__ import annotations

import pytest

from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.research.answer import UsageFailure
from mjolnir.research.request import Request, command_line
from mjolnir.tuner.options import Options
from mjolnir.tuner.workload import DECODE8


def test_defaults_are_those_of_the_design():
    geometry, placement, workload = Request().problem()
    assert (geometry, placement, workload) == (Geometry(32, 8), Placement(), DECODE8)
    options = Request().options()
    assert (options.trials, options.minutes) == (150, 10)


@pytest.mark.parametrize(("effort", "limits"), [("quick", (40, 2)), ("full", (600, 40))])
def test_effort_sets_both_limits(effort, limits):
    options = Request(effort=effort).options()
    assert (options.trials, options.minutes) == limits


def test_given_limits_win_over_the_effort():
    options = Request(effort="quick", trials=7, seed=3, pins=("kv_stages=4", "pdl=on")).options()
    assert (options.trials, options.minutes, options.seed) == (7, 2, 3)
    assert dict(options.pins) == {"kv_stages": 4, "pdl": 1}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(effort="huge"), "there are"),
        (Request(pins=("kv_stages",)), "KNOB=VALUE"),
        (Request(pins=("kv_stages=99",)), "not allowed"),
        (Request(pins=("warp=1",)), "unknown knob"),
        (Request(proposer="magic"), "there are"),
    ],
)
def test_bad_options_are_refused(request_, words):
    with pytest.raises(UsageFailure, match=words):
        request_.options()


@pytest.mark.parametrize(
    "request_", [Request(geometry="32x8"), Request(placement="sideways"), Request(workload="no-such-file")]
)
def test_bad_problems_are_refused(request_):
    with pytest.raises(UsageFailure):
        request_.problem()


def test_a_resumed_campaign_keeps_its_options_but_for_its_limits():
    recorded = Options.of_effort("quick", seed=5).as_dict()
    assert Request(resume=True).options(recorded).as_dict() == recorded
    assert Request(resume=True, trials=90).options(recorded).trials == 90
    with pytest.raises(UsageFailure, match="--seed cannot change"):
        Request(resume=True, seed=6).options(recorded)


def test_the_command_names_no_folder():
    assert command_line(["mjolnir", "run", "--ledger", "/home/someone/x"]) == ["mjolnir", "run", "--ledger", "x"]


def test_the_command_names_no_password():
    url = "http://me:hush-hush@metrics:8000/metrics?key=hush-hush"
    shown = "http://metrics:8000/metrics"
    assert command_line(["mjolnir", "run", "--gate-url", url, "--tag", "t"])[2:4] == ["--gate-url", shown]
    assert command_line(["mjolnir", f"--gate-url={url}"]) == ["mjolnir", f"--gate-url={shown}"]
    assert command_line(["mjolnir", "--gate-url", "http://[hush-hush"])[2] == "***"


def test_what_the_proof_takes_is_told_to_the_tuner_and_stays_as_it_began() -> None:
    options = Request(noise=12, instances=24, group=1).options()
    assert (options.noise, options.instances, options.group) == (12, 24, 1)
    recorded = options.as_dict()
    assert Request(noise=12).options(recorded) == options
    for changed in (Request(noise=13), Request(instances=25), Request(group=2)):
        with pytest.raises(UsageFailure, match="cannot change"):
            changed.options(recorded)
