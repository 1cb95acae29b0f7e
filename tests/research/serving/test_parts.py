"""Prompts, modes, counts of steps, and engines as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mjolnir.research.serving import engine, process
from mjolnir.research.serving.engine import zero
from mjolnir.research.serving.job import Job, Run
from mjolnir.research.serving.modes import Mode, capture_sizes
from mjolnir.research.serving.prompts import FIRST_ID, REPEAT, batches
from mjolnir.research.serving.steps import Steps, watch
from tests.research.serving.answers import completion, run

# ---- prompts ------------------------------------------------------------------------------------------------------


def test_batches_have_page_borders_repetitions_and_a_common_beginning() -> None:
    one, many = batches((1, 16), longest=1024, page=128, vocabulary=500)
    assert [len(prompt) for prompt in many[:7]] == [1024, 128, 1, 127, 129, 256, 255]
    assert all(1 <= len(prompt) <= 1024 and set(prompt) <= set(range(FIRST_ID, 500)) for prompt in many)
    assert one[0] == many[0]
    assert many[4][:64] == many[0][:64] != many[5][:64]
    assert many[5][:REPEAT] == many[5][REPEAT : 2 * REPEAT]
    assert batches((1, 16), 1024, 128, 500) == (one, many)
    assert batches((1, 16), 1024, 128, 500, seed=1) != (one, many)


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        batches((1,), 8, 16, vocabulary=FIRST_ID)


# ---- modes --------------------------------------------------------------------------------------------------------


def test_a_mode_is_a_graph_mode_and_parts() -> None:
    mode = Mode.parse("FULL+chunked+ngram")
    found = mode.arguments(batch=100, blocks=7)
    assert found["compilation_config"]["mode"] == 0
    assert found["compilation_config"]["cudagraph_mode"] == "FULL"
    assert found["compilation_config"]["cudagraph_capture_sizes"][-1] == 512  # 100 requests of four tokens
    assert found["max_num_batched_tokens"] == 200
    assert found["speculative_config"]["num_speculative_tokens"] == 3
    assert found["enable_prefix_caching"] is False
    assert "enforce_eager" not in found
    assert Mode.parse("FULL_AND_PIECEWISE").arguments(4, 7)["compilation_config"]["mode"] == 3
    tight = Mode.parse("tight+prefix").arguments(4, 7)
    assert (tight["enforce_eager"], tight["num_gpu_blocks_override"], tight["enable_prefix_caching"]) == (True, 7, True)


def test_what_a_mode_is_about_has_to_happen() -> None:
    counts = {"mixed": 3, "speculative": 0, "cached": 0, "preempted": 1}
    assert Mode.parse("chunked+tight").unmet(counts) == []
    assert Mode.parse("ngram+prefix").unmet(counts) == [
        "no decode step verified speculated tokens", "no prompt token came from the prefix cache",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["eagre", "FULL+eager", "FULL+PIECEWISE", ""])
def test_no_such_mode(name: str) -> None:
    with pytest.raises(ValueError, match="joined by"):
        Mode.parse(name)


def test_capture_sizes_reach_the_batch() -> None:
    assert [capture_sizes(most) for most in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 8], [1, 2, 4, 8]]


# ---- steps --------------------------------------------------------------------------------------------------------


def test_steps_are_told_apart_by_their_query_tokens() -> None:
    steps = Steps(most=4)
    for tokens in ([1, 1], [4, 4, 4], [1, 4], [1, 200], [200, 100], [], [5]):
        steps.add(tokens)
    assert (steps.decode, steps.speculative, steps.mixed, steps.prefill) == (2, 1, 2, 2)
    was_decode = steps.last_is_decode
    steps.add([2])
    assert (was_decode, steps.last_is_decode) == (False, True)
    steps.reset()
    assert (set(steps.counts().values()), steps.most) == ({0}, 4)


def test_a_scheduler_is_watched_and_keeps_its_answer() -> None:
    class Scheduler:
        def schedule(self, extra: int = 0) -> SimpleNamespace:
            new = [SimpleNamespace(num_computed_tokens=64)]
            tokens = {"a": 1, "b": 1 + extra}
            return SimpleNamespace(num_scheduled_tokens=tokens, preempted_req_ids={"c"}, scheduled_new_reqs=new)

    steps = Steps()
    watch(Scheduler, steps)
    assert Scheduler().schedule(8).num_scheduled_tokens == {"a": 1, "b": 9}
    Scheduler().schedule()
    assert steps.counts() == {
        "decode": 1, "speculative": 0, "mixed": 1, "prefill": 0, "preempted": 2, "cached": 128,
    }  # fmt: skip


def test_the_control_zeroes_decode_steps_alone() -> None:
    torch = pytest.importorskip("torch")
    steps = Steps()
    impl = SimpleNamespace(forward=lambda *given, output: output.fill_(3.0))
    zero(impl, steps)
    for tokens, expected in (([5], 3.0), ([1, 1], 0.0)):
        steps.add(tokens)
        assert impl.forward("layer", output=torch.ones(2)).tolist() == [expected] * 2


# ---- jobs and processes -------------------------------------------------------------------------------------------


def test_jobs_and_runs_travel_whole() -> None:
    job = Job("a", "m", None, (((5, 6), (7,)), ((8,),)), 4, {"block_size": 16}, {"X": "1"}, zeroed=True)
    assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job
    made = run([completion((1, 2), (-1.0, -0.5))], mjolnir=9)
    assert Run.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    assert (made.mjolnir_steps, made.step_share) == (9, 0.9)
    assert run([], decode=0, mjolnir=9).step_share is None
    assert run([]).step_share is None


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that does what the question says."""
    (tmp_path / "fake_engine.py").write_text(
        "import json, os, sys, time\n"
        "question = json.load(open(sys.argv[1]))\n"
        "print('told', question['say'], flush=True)\n"
        "if question['do'] == 'hang': time.sleep(60)\n"
        "if question['do'] == 'fail': sys.exit(7)\n"
        "if question['do'] == 'answer':\n"
        "    json.dump({k: os.environ.get(k) for k in question['say']}, open(sys.argv[2], 'w'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    return "fake_engine"


def test_the_jobs_environment_comes_before_the_users_and_that_before_ours(module: str) -> None:
    names = ["VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_DEEP_GEMM", "VLLM_NO_USAGE_STATS", "OWN", "HF_HUB_OFFLINE"]
    asked = {"do": "answer", "say": names}
    answer = process.ask(module, "x", asked, {"OWN": "1", "HF_HUB_OFFLINE": "0"}, 30)
    assert answer == dict(zip(names, ["0", "1", "1", "1", "0"], strict=True))


@pytest.mark.parametrize(
    ("do", "words"), [("fail", r"exit code 7.*\n    told me"), ("nothing", "exit code 0"), ("hang", "ended after 1 s")]
)
def test_an_engine_that_does_not_answer_is_told(module: str, do: str, words: str) -> None:
    with pytest.raises(process.EngineFailed, match=words):
        process.ask(module, "x", {"do": do, "say": "me"}, {}, 1 if do == "hang" else 30)


def test_processes_run_this_python() -> None:
    with pytest.raises(process.EngineFailed, match="No module named no_such_module"):
        process.ask("no_such_module", "x", {}, {}, 30)


def test_what_runs_on_a_bare_machine_loads_no_more_than_it_has() -> None:
    """A machine with a GPU may have torch and vLLM and nothing else of what the commands use."""
    program = (
        "import sys\n"
        "import mjolnir.research.serving.engine, mjolnir.research.serving.timing\n"
        "import mjolnir.research.bench.vllm, mjolnir.research.verify_vllm\n"
        "heavy = {'optuna', 'sqlalchemy', 'git', 'pandas', 'matplotlib', 'jinja2', 'typer', 'rich', 'scipy', 'vllm'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_backend_is_registered_where_no_entry_point_does(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("mjolnir.backend.register", lambda: called.append("here"))
    engine.register()
    assert called == []
    monkeypatch.setattr(engine, "entry_points", lambda group: [])
    engine.register()
    assert called == ["here"]
