"""Making recordings: additions survive the process, and what does not fit together is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mjolnir.kernel.device import H200
from mjolnir.kernel.geometry import Geometry, Placement
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import resolve
from mjolnir.tuner.bench import Outcome, Status, Timing
from mjolnir.tuner.recorder import RecordingWriter, Source
from mjolnir.tuner.recording import Recording, RecordingError
from mjolnir.tuner.workload import Workload, uniform

WORKLOAD = Workload("two", (uniform(1, 4096), uniform(8, 4096)))
SOURCE = Source(
    "two-points", H200, Geometry(32, 8), Placement(), WORKLOAD, {"kernel_hash": "k", "versions": {"dsl": "1"}}
)
DEFAULT = resolve(Setting(), SOURCE.geometry, SOURCE.device)
OTHER = Setting(1, 4)


def timings(level: int, rounds: int = 3) -> tuple[Timing, ...]:
    rows = [tuple(level + 10 * point + step for step in range(rounds)) for point in range(2)]
    return tuple(Timing(p, row, tuple(v + 100 for v in row), (500, 502), {"clock": 1980}) for p, row in enumerate(rows))


def measured(level: int = 2000, binary: str = "aa", plans: tuple[str, str] = ("1", "2"), points: int = 2) -> Outcome:
    facts, phases = {"compile_seconds": 0.4}, {"gate": 0.25, "measure": 1.5}
    return Outcome(Status.MEASURED, "", timings(level)[:points], {}, binary, plans, facts, phases)


def filled(writer: RecordingWriter) -> RecordingWriter:
    writer.add(DEFAULT, measured())
    writer.add_pairs(timings(3000, 8))
    writer.add_rebuild(timings(3000))
    writer.add_canary("mask", DEFAULT, Outcome(Status.INCORRECT, "off by one", correctness={"error": 3.0}))
    return writer


def test_what_is_added_is_what_is_recorded(tmp_path: Path) -> None:
    writer = filled(RecordingWriter(tmp_path, SOURCE, host="a"))
    writer.add(OTHER, Outcome(Status.CRASHED, "illegal address", binary="bb", facts={"compile_seconds": 0.7}))
    recording = Recording.load(writer.finish())
    assert recording.settings == (DEFAULT, OTHER)
    assert [recording.status(place) for place in (0, 1)] == [Status.MEASURED, Status.CRASHED]
    assert (recording.binaries, dict(recording.reasons)) == (("aa", "bb"), {1: "illegal address"})
    assert recording.arrays["binary_ms"].tolist() == [400, 700]
    assert recording.arrays["setting_ms"].tolist() == [[250, 1500], [0, 0]]
    assert recording.arrays["cell"].tolist() == [[[0, 1], [-1, -1]]]
    assert recording.arrays["candidate"].tolist() == [[2000, 2001, 2002], [2010, 2011, 2012]]
    assert recording.arrays["baseline"].tolist() == [[2100, 2101, 2102], [2110, 2111, 2112]]
    assert recording.arrays["pair_candidate"].shape == (2, 8)
    assert recording.arrays["rebuild_empty"].tolist() == [[[500, 502]], [[500, 502]]]
    assert (recording.windows, recording.chunks) == (({"clock": 1980},), ({"host": "a"},))
    assert recording.canaries[0]["correctness"] == {"error": 3.0}


def test_reopening_goes_on_in_a_new_chunk(tmp_path: Path) -> None:
    whole = filled(RecordingWriter(tmp_path / "whole", SOURCE))
    filled(RecordingWriter(tmp_path / "cut", SOURCE))
    again = RecordingWriter(tmp_path / "cut", SOURCE, host="b")
    assert (set(again.done), again.rebuilds, again.has_pairs, again.canaries) == ({DEFAULT}, 1, True, ("mask",))
    for writer in (whole, again):
        writer.add(OTHER, measured(1500, "bb"))
        writer.add_rebuild(timings(3010))
    one, two = Recording.load(whole.finish()), Recording.load(again.finish())
    assert two.chunks == ({}, {"host": "b"})
    assert two.arrays["cell_chunk"].tolist() == [0, 0, 1, 1]
    assert all(np.array_equal(one.arrays[n], two.arrays[n]) for n in one.arrays if n != "cell_chunk")


def test_a_torn_line_is_dropped_and_a_damaged_one_is_not_hidden(tmp_path: Path) -> None:
    filled(RecordingWriter(tmp_path, SOURCE))
    path = tmp_path / "progress.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'["setting",{"ctas_per_sm":1')
    assert set(RecordingWriter(tmp_path, SOURCE).done) == {DEFAULT}
    path.write_bytes(whole.replace(b'["pairs"', b'["pa'))
    with pytest.raises(RecordingError, match="damaged"):
        RecordingWriter(tmp_path, SOURCE)


def test_another_recording_in_the_folder_is_refused(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, SOURCE)
    with pytest.raises(RecordingError, match=r"another recording \(two-points\) was begun here"):
        RecordingWriter(tmp_path, replace(SOURCE, environment={"kernel_hash": "other"}))


def test_equal_binary_and_plan_need_not_be_timed_again(tmp_path: Path) -> None:
    writer = filled(RecordingWriter(tmp_path, SOURCE))
    assert writer.has_cell("aa", "1", 0)
    assert not writer.has_cell("aa", "1", 1)
    writer.add(replace(DEFAULT, max_splits=8), measured(9999, plans=("1", "3")))
    partial = replace(measured(4000, plans=("1", "4")), timings=timings(4000)[1:])
    writer.add(replace(DEFAULT, max_splits=16), partial)
    recording = Recording.load(writer.finish())
    assert recording.arrays["cell"][0].tolist() == [[0, 1], [0, 2], [0, 3]]
    assert recording.arrays["candidate"][3].tolist() == [4010, 4011, 4012]


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    writer = filled(RecordingWriter(tmp_path, SOURCE))
    with pytest.raises(RecordingError, match="was added already"):
        writer.add(Setting(), measured())
    with pytest.raises(RecordingError, match="needs its binary and a plan for each of 2 points"):
        writer.add(OTHER, replace(measured(), binary=""))
    with pytest.raises(RecordingError, match="point 1 was not timed"):
        writer.add(OTHER, measured(binary="cc", points=1))
    with pytest.raises(RecordingError, match="one timing per point"):
        writer.add_rebuild(timings(3000)[:1])
    writer.add(OTHER, replace(measured(binary="cc"), timings=timings(2000, 4)))
    with pytest.raises(RecordingError, match="candidate: timings of unequal length"):
        writer.finish()


def test_a_recording_needs_its_parts(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, SOURCE)
    writer.add(DEFAULT, measured())
    with pytest.raises(RecordingError, match="needs measured settings, the A/A pairs and at least one rebuild"):
        writer.finish()


def test_further_instances_stand_beside_the_first_and_survive(tmp_path: Path) -> None:
    writer = filled(RecordingWriter(tmp_path, SOURCE))
    writer.add(OTHER, measured(4000, plans=("1", "3")))  # shares the cell of point 0
    for level in (2500, 2600):
        first = replace(measured(level), timings=timings(level)[:1])
        writer.add_further(first)
    writer.add_further(replace(measured(4100, plans=("1", "3")), timings=timings(4100)[1:]))
    again = RecordingWriter(tmp_path, SOURCE)
    recording = Recording.load(again.finish())
    levels = recording.arrays["candidate"][:, 0][recording.arrays["cell"]]
    assert levels.tolist() == [[[2000, 2010], [2000, 4010]], [[2500, 2010], [2500, 4110]], [[2600, 2010], [2600, 4010]]]
    cells, ratios = again.table()
    assert [again.further(cell) for cell in cells[1]] == [2, 1]
    assert ratios[cells[0, 0]] == (2001 - 501) / (2101 - 501)


def test_a_further_instance_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    writer = filled(RecordingWriter(tmp_path, SOURCE))
    with pytest.raises(RecordingError, match="no further instance of cells that are there"):
        writer.add_further(measured(plans=("7", "2")))
    with pytest.raises(RecordingError, match="crashed, binary aa: no further"):
        writer.add_further(replace(measured(), status=Status.CRASHED, timings=()))


def test_what_is_noted_of_a_sitting_survives(tmp_path: Path) -> None:
    filled(RecordingWriter(tmp_path, SOURCE, host="a")).note(between={"settings": 3})
    again = RecordingWriter(tmp_path, SOURCE, host="b")
    assert again.noted("between")
    assert not again.noted("beyond")
    assert Recording.load(again.finish()).chunks == ({"host": "a", "between": {"settings": 3}}, {"host": "b"})


def test_a_recording_goes_on_on_another_card_of_the_kind(tmp_path: Path) -> None:
    cards = [replace(SOURCE, environment={**SOURCE.environment, "device_uuid": f"GPU-{n}"}) for n in range(2)]
    filled(RecordingWriter(tmp_path, cards[0]))
    writer = RecordingWriter(tmp_path, cards[1])
    writer.add(OTHER, measured(binary="bb"))
    assert Recording.load(writer.finish()).chunks == ({"device_uuid": "GPU-0"}, {"device_uuid": "GPU-1"})
    with pytest.raises(RecordingError, match="another recording"):
        RecordingWriter(tmp_path, replace(cards[0], environment={"kernel_hash": "other"}))
