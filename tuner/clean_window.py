"""The clean-window gate: measuring beside a live vLLM server only while nobody asks it anything.

It reads the server's Prometheus page and does nothing else: nothing is stopped, restarted or reconfigured to get a
clean window. Two gauges say whether the server has requests at the moment of a sample; its token counters, where it
shows them, tell of requests that came and went between two samples.
"""

from __future__ import annotations

import http.client
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
"""Names of vLLM's metrics, each with one series an engine."""

SAMPLES = 3
"""Clean samples in a row that make a clean window."""

INTERVAL_SECONDS = 1.0
"""Between two samples while waiting."""

REPLY_SECONDS = 5.0
"""How long the server may take to answer."""

PATIENCE_SECONDS = 600.0
"""How long a measurement waits for a clean window before it is given up as dirty."""

ATTEMPTS = 3
"""How often a measurement is taken while the server keeps getting requests."""

LARGEST_PAGE = 8_000_000
"""Bytes of a metrics page."""

_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*")


class GateError(RuntimeError):
    """The metrics cannot be had; the message says from where, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Load:
    """One sample of the server, all engines together.

    Attributes:
        running, waiting: requests.
        tokens: prompt and generated tokens so far; None where the server does not count them.
    """

    running: float
    waiting: float
    tokens: float | None

    @property
    def idle(self) -> bool:
        """Whether there was no request at that moment."""
        return self.running == 0 and self.waiting == 0


def parse(page: str) -> Load:
    """The load from a page in Prometheus' text format.

    Raises:
        GateError: it lacks a gauge, or a value is no number.
    """
    sums: dict[str, float] = {}
    for line in page.splitlines():
        match = _SERIES.fullmatch(line.strip())
        if match and match[1] in (*GAUGES, *COUNTERS):
            sums[match[1]] = sums.get(match[1], 0.0) + _number(match[1], match[2])
    missing = [name for name in GAUGES if name not in sums]
    if missing:
        raise GateError(f"the page shows no {' and no '.join(missing)}; name the /metrics page of a vLLM server")
    counted = [sums[name] for name in COUNTERS if name in sums]
    return Load(sums[GAUGES[0]], sums[GAUGES[1]], sum(counted) if counted else None)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise GateError(f"{name} is {text!r}, which is no number of requests or tokens")
    return value


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The page is read where the user said, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none; the answer becomes an error."""


class CleanWindow:
    """Waits for a clean window, and tells whether it stayed one.

    Args:
        url: the metrics page, http or https; a proxy of the environment is not used.
        samples, interval, patience, attempts, reply: other than the constants above.
        stop: says True when waiting is to end at once.

    Raises:
        ValueError: the URL is none of http or https.
        GateError: the page cannot be read now, or is not vLLM's.
    """

    def __init__(
        self,
        url: str,
        *,
        samples: int = SAMPLES,
        interval: float = INTERVAL_SECONDS,
        patience: float = PATIENCE_SECONDS,
        attempts: int = ATTEMPTS,
        reply: float = REPLY_SECONDS,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"{url!r} is no address of a metrics page; write http://HOST:PORT/metrics")
        self.url = url
        self._samples, self._interval, self._patience = samples, interval, patience
        self._attempts, self._reply, self._stop = attempts, reply, stop
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
        self._clean = 0
        self._tokens: float | None = None
        self.sample()

    def sample(self) -> Load:
        """Read the page once.

        Raises:
            GateError: it cannot be read, or is not vLLM's.
        """
        try:
            with self._opener.open(self.url, timeout=self._reply) as reply:
                page = reply.read(LARGEST_PAGE + 1)
        except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise GateError(f"{self.url} cannot be read: {reason}; is the server up, and the address right?") from error
        if len(page) > LARGEST_PAGE:
            raise GateError(f"{self.url} answers more than {LARGEST_PAGE} bytes; is it a metrics page?")
        try:
            return parse(page.decode(errors="replace"))
        except GateError as error:
            raise GateError(f"{self.url}: {error}") from error

    def guard(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Have `measure` answer in a clean window; again when requests came meanwhile, then as dirty.

        Returns:
            Its answer, with what the server did in its windows. Only an answer of status "measured" is judged: what
            was wrong is wrong beside any load. Without a clean window in time, an answer of status "dirty" alone.
        """
        disturbed: list[str] = []
        while True:
            begin = time.monotonic()
            trouble = self._wait()
            if trouble:
                reason = f"no clean window in {time.monotonic() - begin:.0f} s: {trouble}"
                return {"status": "dirty", "reason": reason, "window": {"dirty": reason, "server": disturbed}}
            waited = time.monotonic() - begin
            answer = measure()
            trouble = self._look()
            if answer["status"] != "measured" or not trouble or len(disturbed) + 1 >= self._attempts:
                break
            disturbed.append(trouble)
        facts = {"waited": round(waited, 3), "disturbed": disturbed}
        if trouble and answer["status"] == "measured":
            answer = {**answer, "status": "dirty", "reason": f"the window was dirty: {trouble}"}
        return _marked(answer, facts, trouble)

    def _wait(self) -> str:
        """Sample until enough were clean in a row; what was in the way when patience or the campaign ended first."""
        deadline = time.monotonic() + self._patience
        while True:
            trouble = self._look()
            if self._clean >= self._samples:
                return ""
            if self._stop():
                return "the campaign was asked to stop"
            if time.monotonic() >= deadline:
                return trouble or "the samples were clean for too short a time"
            time.sleep(self._interval)

    def _look(self) -> str:
        """Take a sample; what is not clean about it or about the time since the one before, empty when nothing is."""
        trouble = self._trouble()
        self._clean = 0 if trouble else self._clean + 1
        return trouble

    def _trouble(self) -> str:
        before, self._tokens = self._tokens, None
        try:
            load = self.sample()
        except GateError as error:
            return str(error)
        self._tokens = load.tokens
        if not load.idle:
            return f"the server has {load.running:g} running and {load.waiting:g} waiting requests"
        if before is not None and load.tokens is not None and load.tokens != before:
            return f"the server worked on {abs(load.tokens - before):g} tokens since the sample before"
        return ""


def _marked(answer: Mapping[str, Any], facts: Mapping[str, Any], trouble: str) -> dict[str, Any]:
    """`answer` with the server's part in every window that it has."""

    def marked(window: Mapping[str, Any]) -> dict[str, Any]:
        dirty = "; ".join(part for part in (window.get("dirty", ""), trouble) if part)
        return {**window, "server": facts, "dirty": dirty}

    found = dict(answer)
    if "timings" in found:
        found["timings"] = [{**timing, "window": marked(timing["window"])} for timing in found["timings"]]
    if "window" in found:
        found["window"] = marked(found["window"])
    return found
