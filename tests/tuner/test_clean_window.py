"""The clean-window gate, against a server of its own whose load changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from mjolnir.tuner import clean_window
from mjolnir.tuner.clean_window import CleanWindow, GateError, Load, parse

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="a b"}} {running}
vllm:num_requests_running{{engine="1",model_name="a b"}} 0.0
vllm:num_requests_waiting{{engine="0",model_name="a b"}} 0.0
vllm:num_requests_waiting{{engine="1",model_name="a b"}} {waiting} 1712000000000
vllm:num_requests_waiting_by_reason{{engine="0"}} 99.0
vllm:prompt_tokens_total{{engine="0",model_name="a b"}} 100.0
vllm:generation_tokens_total{{engine="0",model_name="a b"}} {tokens}
process_cpu_seconds_total 3.5e2
"""


@dataclass
class Server:
    """A metrics page: each sample shows the next of `loads`, (running, waiting, tokens); the last of them stays.

    Attributes:
        paths: what was asked for.
        replies: other answers by path: status, headers and body.
    """

    loads: list[tuple[float, float, float]] = field(default_factory=lambda: [(0, 0, 5)])
    paths: list[str] = field(default_factory=list)
    replies: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    url: str = ""
    close: Callable[[], None] = lambda: None

    def page(self) -> bytes:
        running, waiting, tokens = self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]
        return PAGE.format(running=running, waiting=waiting, tokens=tokens).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.paths.append(self.path)
            status, headers, body = state.replies.get(self.path) or (200, {}, state.page())
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()

    def close() -> None:
        http.shutdown()
        http.server_close()
        thread.join()

    state.url, state.close = f"http://127.0.0.1:{http.server_port}/metrics", close
    yield state
    if thread.is_alive():
        close()


def gate(server: Server, **values: Any) -> CleanWindow:
    return CleanWindow(server.url, **{"interval": 0.0, "patience": 5.0, "reply": 2.0, **values})


def measured(**values: Any) -> dict[str, Any]:
    return {"status": "measured", "reason": "", "timings": [{"point": 0, "window": {"dirty": ""}}], **values}


class Measuring:
    """Counts how often it measures; `during` runs meanwhile."""

    def __init__(self, during: Callable[[int], None] = lambda number: None, **values: Any) -> None:
        self.times = 0
        self._during, self._values = during, values

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        self._during(self.times)
        return measured(**self._values)


def test_all_engines_are_summed_and_other_metrics_left_alone() -> None:
    assert parse(PAGE.format(running=2, waiting=1, tokens=7)) == Load(2, 1, 107)
    assert not Load(0, 1, None).idle
    assert not Load(1, 0, None).idle
    assert parse("vllm:num_requests_running 0\nvllm:num_requests_waiting 3.0\n") == Load(0, 3, None)
    with pytest.raises(GateError, match="shows no vllm:num_requests_waiting; name the /metrics page of a vLLM server"):
        parse("vllm:num_requests_running 0\n")
    with pytest.raises(GateError, match="vllm:num_requests_running is 'NaN'"):
        parse("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n")


def test_it_waits_for_as_many_clean_samples_in_a_row_as_asked(server: Server) -> None:
    clean, busy = (0, 0, 5), (1, 0, 5)
    server.loads = [clean, busy, clean, clean, (0, 2, 5), clean, clean, clean]
    made = gate(server, samples=3)
    seen: list[int] = []
    answer = made.guard(Measuring(lambda _: seen.append(len(server.paths))))
    assert seen == [8]
    assert answer["status"] == "measured"
    assert answer["timings"][0]["window"]["dirty"] == ""
    assert answer["timings"][0]["window"]["server"]["disturbed"] == []
    made.guard(Measuring(lambda _: seen.append(len(server.paths))))
    assert seen == [8, 10]  # one sample after the first measurement and one before the second: it stayed clean


@pytest.mark.parametrize("load", [(1, 0, 5), (0, 3, 5), (0, 0, 6)], ids=["running", "waiting", "was between"])
def test_what_was_disturbed_is_measured_again(server: Server, load: tuple[float, float, float]) -> None:
    def disturb(number: int) -> None:
        if number == 1:
            server.loads = [load, (0, 0, load[2])]

    measuring = Measuring(disturb)
    answer = gate(server, samples=2).guard(measuring)
    assert (answer["status"], measuring.times) == ("measured", 2)
    (disturbed,) = answer["timings"][0]["window"]["server"]["disturbed"]
    assert ("1 tokens" if load[2] == 6 else f"{load[0]} running and {load[1]} waiting") in disturbed


def test_what_stays_disturbed_is_recorded_as_dirty_with_what_was_measured(server: Server) -> None:
    def disturb(number: int) -> None:
        server.loads = [(4, 0, 5), (0, 0, 5)]

    measuring = Measuring(disturb, window={"dirty": "hot"})
    answer = gate(server, samples=1, attempts=2).guard(measuring)
    assert (answer["status"], measuring.times) == ("dirty", 2)
    assert answer["reason"] == "the window was dirty: the server has 4 running and 0 waiting requests"
    assert answer["timings"][0]["window"]["dirty"] == "the server has 4 running and 0 waiting requests"
    assert answer["window"]["dirty"] == "hot; the server has 4 running and 0 waiting requests"
    assert len(answer["window"]["server"]["disturbed"]) == 1


def test_what_is_wrong_is_wrong_beside_any_load(server: Server) -> None:
    def disturb(number: int) -> None:
        server.loads = [(4, 0, 5)]

    answer = gate(server, samples=1).guard(Measuring(disturb, status="incorrect"))
    assert answer["status"] == "incorrect"


def test_without_a_clean_window_nothing_is_measured(server: Server) -> None:
    made = gate(server, patience=0.05)
    server.loads = [(1, 2, 5)]
    measuring = Measuring()
    answer = made.guard(measuring)
    assert (answer["status"], measuring.times) == ("dirty", 0)
    assert "no clean window in 0 s: the server has 1 running and 2 waiting requests" in answer["reason"]


def test_a_campaign_that_is_stopped_does_not_wait_on(server: Server) -> None:
    asked = threading.Event()
    made = gate(server, patience=600.0, stop=asked.is_set)
    server.loads = [(1, 0, 5)]
    asked.set()
    assert "asked to stop" in made.guard(Measuring())["reason"]


def test_a_server_that_goes_away_is_waited_for(server: Server) -> None:
    made = gate(server, samples=1, attempts=1, patience=0.02)
    answer = made.guard(Measuring(lambda _: server.close()))
    assert answer["status"] == "dirty"
    assert "cannot be read" in answer["reason"]
    assert made.guard(Measuring())["status"] == "dirty"


@pytest.mark.parametrize("url", ["ftp://host/metrics", "file:///etc/passwd", "localhost:8000/metrics", "http://", ""])
def test_only_pages_of_http_servers(url: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT/metrics"):
        CleanWindow(url)


def test_trouble_with_the_page_says_what_to_do(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = server.url
    server.replies = {
        "/other": (200, {}, b"<html>hello</html>"),
        "/gone": (404, {}, b""),
        "/moved": (302, {"Location": elsewhere}, b""),
        "/large": (200, {}, b"#" * 2000),
    }
    monkeypatch.setattr(clean_window, "LARGEST_PAGE", 1000)
    for path, words in (
        ("other", "shows no vllm:num_requests_running and no vllm:num_requests_waiting"),
        ("gone", "cannot be read: Not Found"),
        ("moved", "cannot be read: Found"),
        ("large", "more than 1000 bytes"),
    ):
        with pytest.raises(GateError, match=f"{elsewhere.replace('metrics', path)}.*{words}"):
            CleanWindow(elsewhere.replace("metrics", path))
    server.close()
    with pytest.raises(GateError, match="Connection refused; is the server up"):
        CleanWindow(elsewhere)


def test_a_server_that_does_not_answer_is_not_waited_for_long() -> None:
    silent = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # accepts, and never replies
    try:
        with pytest.raises(GateError, match="timed out"):
            CleanWindow(f"http://127.0.0.1:{silent.server_port}/metrics", reply=0.1)
    finally:
        silent.server_close()


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert gate(server).sample().idle
