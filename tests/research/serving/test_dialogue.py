"""A process that is asked line by line: its answers, its end, and what is said when it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mjolnir.research.serving import process
from mjolnir.research.serving.dialogue import Dialogue
from mjolnir.research.serving.process import EngineFailed

ECHO = """
import json, os, sys, time
question = json.load(open(sys.argv[1]))
with os.fdopen(int(sys.argv[2]), "w") as answers:
    print(json.dumps(question), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "leave":
            sys.exit("it was told to leave")
        if asked == "hang":
            time.sleep(600)
        print(json.dumps([asked] * 40000), file=answers, flush=True)
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dialogue]:
    (tmp_path / "echo_engine.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Dialogue("echo_engine", "echo", {"a": 1}, {})
    yield made
    made.end()
    assert not process._running


def test_it_is_ready_and_answers_every_question(echo: Dialogue) -> None:
    assert echo.hear(60) == {"a": 1}
    for question in ([1, 2], [3, 4]):
        assert echo.ask(question, 60) == [question] * 40000


def test_one_that_hangs_is_told(echo: Dialogue) -> None:
    echo.hear(60)
    with pytest.raises(EngineFailed, match=r"echo: ended after 0 s"):
        echo.ask("hang", 0.2)


def test_one_that_ends_is_told_with_what_it_printed(echo: Dialogue) -> None:
    echo.hear(60)
    with pytest.raises(EngineFailed, match=r"(?s)echo: the engine failed.*it was told to leave"):
        echo.ask("leave", 60)
    with pytest.raises(EngineFailed, match="echo: the engine"):
        echo.ask("more", 60)
