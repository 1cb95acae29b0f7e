"""`mjolnir serve MODEL`: `vllm serve` on Mjolnir, with a warning for what would not run there before anything loads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mjolnir.backend.eligibility import refusal
from mjolnir.backend.fallback import ORDER
from mjolnir.backend.overrides import Overrides
from mjolnir.backend.settings import Settings, unknown
from mjolnir.backend.table import VARIABLE
from mjolnir.research import model_config
from mjolnir.research.answer import Answer, MissingFailure, UsageFailure, asked
from mjolnir.research.model_config import CONFIG
from mjolnir.research.serving.config import Serving, kinds
from mjolnir.research.tell import tell

COMMAND = ("-m", "vllm.entrypoints.cli.main", "serve")
SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model")
"""What runs in the command's place where vLLM was distributed under another name, as its CPU build is: the command asks
for the version of a distribution `vllm`, and ends where there is none."""

LAYOUT = "VLLM_KV_CACHE_LAYOUT"
OURS = ("CUSTOM", "MJOLNIR")

ATTENTION = "--attention-config"
FILE = "--config"
SHORT = {
    "-tp": "--tensor-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-ac": ATTENTION,
    "-ac.backend": "--attention-backend",
}
SAME = {"--attention-config.backend": "--attention-backend"}
"""Other spellings of options that matter here."""

Start = Callable[[Sequence[str], Mapping[str, str]], None]
"""Becomes a command in an environment; tests put another in its place."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be started.

    Attributes:
        command: the command line.
        variables: what is set in its environment beside the user's.
        warnings: what will not run on Mjolnir, and why.
        notes: what else is worth knowing.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def serve(model: str, arguments: Sequence[str], *, dry_run: bool = False, start: Start | None = None) -> Answer:
    """Start the server in the place of this process, or tell how it would be started.

    Args:
        model: a local folder, or a name that vLLM understands.
        arguments: of `vllm serve`; those that are given come before ours.
        dry_run: start nothing.
        start: becomes the server.

    Raises:
        UsageFailure: a setting or an option that does not parse.
        MissingFailure: vLLM is not installed.
    """
    plan = plan_of(model, arguments, os.environ)
    for line in (*(f"warning: {text}" for text in plan.warnings), *plan.notes):
        tell(f"mjolnir serve: {line}")
    if not dry_run:
        if start is None and find_spec("vllm") is None:
            raise MissingFailure("vLLM is not installed here; `pip install 'mjolnir-autoresearch[vllm]'`")
        (start or _become)(plan.command, {**os.environ, **plan.variables})
    shown = " ".join((*(f"{name}={value}" for name, value in plan.variables.items()), *plan.command))
    data = {
        "command": list(plan.command), "environment": dict(plan.variables), "warnings": list(plan.warnings),
        "notes": list(plan.notes),
    }  # fmt: skip
    return Answer(data, shown)


def _become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    sys.stdout.flush()
    os.execve(command[0], [*command], dict(environment))


def plan_of(model: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """How `vllm serve` is to be started.

    Raises:
        UsageFailure: a setting or an option that does not parse.
    """
    if model.startswith("-"):
        raise UsageFailure(
            f"{model} is no model; it comes first, vLLM's options after it: `mjolnir serve MODEL {model}`"
        )
    given = in_all(options(arguments))
    with asked():
        settings = Settings.read(environ)
        Overrides.read(environ)
    more: list[str] = []
    if "--attention-backend" not in given:
        more += ["--attention-backend", "CUSTOM"]
    if "--kv-cache-dtype" not in given:
        more += ["--kv-cache-dtype", "fp8"]
    variables = {} if environ.get(LAYOUT) else {LAYOUT: "HND"}
    command = (sys.executable, *entry(), model, *arguments, *more)
    warnings, notes = [*_not_chosen(given, settings), *_not_known(environ, settings), *_not_there(environ)], []
    config = find_config(model)
    if config is None:
        notes.append(f"{model} has no config.json here yet, so whether Mjolnir serves it is only known at its start")
    else:
        warnings += refusals(config, serving_of(given))
    return Plan(command, variables, tuple(warnings), tuple(notes))


def entry() -> tuple[str, ...]:
    """The module of vLLM that serves here, with what comes before the model."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return SERVER if find_spec("vllm") else COMMAND
    return COMMAND


def _not_chosen(given: Mapping[str, str], settings: Settings) -> Iterator[str]:
    backend = given.get("--attention-backend", OURS[0])
    if backend.upper() not in OURS:
        yield f"--attention-backend {backend} is not Mjolnir's; leave it out, or name CUSTOM"
    if settings.disable:
        yield "MJOLNIR_ATTN_DISABLE is set: everything runs on the fallback"


def _not_known(environ: Mapping[str, str], settings: Settings) -> Iterator[str]:
    for name in unknown(environ):
        yield f"{name} is no setting of this version; the README lists them"
    if settings.fallback and settings.fallback.upper() not in ORDER:
        yield f"MJOLNIR_ATTN_FALLBACK = {settings.fallback} is none of {', '.join(ORDER)}; vLLM has to know it"


def _not_there(environ: Mapping[str, str]) -> Iterator[str]:
    path = environ.get(VARIABLE)
    if path and not Path(path).expanduser().is_file():
        yield f"{VARIABLE} = {path} is no file; the packaged table and the built-in rule serve"


def refusals(config: Mapping[str, Any], serving: Serving) -> Iterator[str]:
    """What will run on the fallback, and why."""
    try:
        found = [(name, refusal(model.group)) for name, model in kinds(config, serving)]
    except ValueError as error:
        yield f"nothing of this model can be told to run on Mjolnir: {error}"
        return
    for name, reason in found:
        if reason:
            which = "its attention" if len(found) == 1 else f"its layers of kind {name}"
            yield f"{which} will run on the fallback: {reason}"


def options(arguments: Sequence[str]) -> dict[str, str]:
    """The options of a command line of vLLM, by their long names with dashes; flags have an empty value."""
    found: dict[str, str] = {}
    last = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-") or _is_number(argument):
            if last and not found[last]:
                found[last] = argument
            continue
        name = SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)
        last = SAME.get(name, name)
        found[last] = value if equals else ""
    return found


def in_all(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a command line, with those that they give as JSON or in a file; what stands in the line counts.

    Raises:
        UsageFailure: JSON or a file that vLLM could not read.
    """
    found = {**(_read(given[FILE]) if given.get(FILE) else {}), **given}
    if backend := _object(ATTENTION, found.get(ATTENTION, "")).get("backend"):
        found["--attention-backend"] = str(backend)
    return found


def _read(path: str) -> dict[str, str]:
    """A file of options, `name: value`, as `options` has them; empty where nothing reads YAML, which vLLM brings."""
    if find_spec("yaml") is None:
        return {}
    import yaml

    try:
        held = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageFailure(f"{FILE} {path} cannot be read: {error}") from error
    if not isinstance(held, Mapping):
        raise UsageFailure(f"{FILE} {path} holds no options, `name: value` in every line")
    return {
        f"--{str(name).replace('_', '-')}": json.dumps(value) if isinstance(value, Mapping) else str(value)
        for name, value in held.items()
    }


def _object(name: str, text: str) -> Mapping[str, Any]:
    """An option that is a JSON object.

    Raises:
        UsageFailure: it is none.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise UsageFailure(f"{name} {text!r} is no JSON object that vLLM could read: {error}") from error
    if not isinstance(found, Mapping):
        raise UsageFailure(f"{name} {text!r} is a JSON {type(found).__name__}, and vLLM reads an object")
    return found


def _is_number(text: str) -> bool:
    return text[1:].replace(".", "", 1).isdecimal()


def serving_of(given: Mapping[str, str]) -> Serving:
    """What the options say of attention.

    Raises:
        UsageFailure: an option that needs a number has none.
    """

    def number(name: str, default: int) -> int:
        text = given.get(name, str(default))
        if not text.isdecimal():
            raise UsageFailure(f"{name} {text!r} is not a whole number")
        return int(text)

    return Serving(
        number("--tensor-parallel-size", 1), given.get("--kv-cache-dtype", "fp8"), number("--block-size", 0),
        given.get("--dtype", "auto"), number("--decode-context-parallel-size", 1), _speculated(given),
        number("--max-num-seqs", 256),
    )  # fmt: skip


def _speculated(given: Mapping[str, str]) -> int:
    text = given.get("--speculative-config", "")
    tokens = _object("--speculative-config", text).get("num_speculative_tokens", 0)
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise UsageFailure(f"--speculative-config {text!r}: num_speculative_tokens is {tokens!r}, not a whole number")
    return tokens


def find_config(model: str) -> Mapping[str, Any] | None:
    """The model's config where it lies here: in a folder, or in the cache of Hugging Face's hub; else None."""
    local = Path(model, CONFIG)
    path = local if local.is_file() else _cached(model)
    if path is None:
        return None
    try:
        return model_config.read(path)
    except OSError as error:
        raise UsageFailure(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise UsageFailure(str(error)) from error


def _cached(model: str) -> Path | None:
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, CONFIG)
    except ValueError:  # it is no name of the hub
        return None
    return Path(found) if isinstance(found, str) else None
