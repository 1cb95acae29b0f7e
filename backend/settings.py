"""Settings from the environment. One declaration gives parsing, both spellings, messages, the documentation table, and
the start-up line that says where each value came from.

A setting `name` is read from `MJOLNIR_ATTN_<NAME>`, or from the older `THOR_T5_<NAME>` where that is absent; an empty
value is an absent one. Overrides of single knobs are in `mjolnir.backend.overrides`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mjolnir.backend.overrides import OLDER_PREFIX, PREFIX, variable
from mjolnir.backend.table import VARIABLE as DEFAULTS_VARIABLE
from mjolnir.kernel.geometry import MAX_Q_LEN
from mjolnir.kernel.knobs import KNOBS
from mjolnir.kernel.layouts import LAYOUTS

ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
QUERY_FORMATS = {"fp8": "fp8", "e4m3": "fp8", "native": "native", "bf16": "native", "bfloat16": "native"}
PRECOMPILE = ("all", "none")
CACHE_OFF = "off"
"""What `kernel_cache` is when objects are not kept; None is the usual folder."""


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in ON + OFF:
        raise ValueError(f"one of {', '.join(ON)}, or {', '.join(OFF)}")
    return word in ON


def _word(allowed: Mapping[str, str]) -> Any:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return allowed[word]

    return BeforeValidator(parse)


def _length(text: str) -> int:
    word = text.strip()
    if not word.isdecimal() or not 1 <= int(word) <= MAX_Q_LEN:
        raise ValueError(f"a whole number, 1 to {MAX_Q_LEN}")
    return int(word)


def _layout(text: str) -> str:
    word = text.strip().upper()
    if word not in LAYOUTS:
        raise ValueError(f"one of {', '.join(LAYOUTS)}")
    return word


def _folder(text: str) -> str | None:
    word = text.strip()
    if word.lower() in OFF:
        return CACHE_OFF
    if word.lower() in ON:
        return None
    if not word.startswith(("/", "~")):
        raise ValueError(f"a folder's absolute path, or one of {', '.join(ON)}, or {', '.join(OFF)}")
    return word


Switch = Annotated[bool, BeforeValidator(_switch)]


def _setting(default: object, help: str, allowed: str = "on, off", shown: str = "") -> Any:
    """A field; `shown` is the default in words, where it is no plain value."""
    words = shown or {True: "on", False: "off"}.get(default, str(default))  # type: ignore[call-overload]
    return Field(default, description=help, json_schema_extra={"allowed": allowed, "shown": words})


@dataclass(frozen=True, slots=True)
class Documented:
    """One row of the documentation table: plain text.

    Attributes:
        variable: the environment variable.
        default: in words.
        allowed: in words.
        meaning: one sentence or two.
    """

    variable: str
    default: str
    allowed: str
    meaning: str


class Settings(BaseModel):
    """What a user can set besides single knobs; `Settings.read` takes it from the environment."""

    model_config = ConfigDict(frozen=True)

    disable: Switch = _setting(False, "everything runs on the fallback, and nothing of Mjolnir is imported")
    fallback: str | None = _setting(
        None, "the stock backend that Mjolnir is a subclass of, and that runs every other step",
        "the name of a stock backend", "the first of FLASHINFER, FLASH_ATTN, TRITON_ATTN that accepts the model",
    )  # fmt: skip
    q_dtype: Annotated[str, _word(QUERY_FORMATS)] | None = _setting(
        None, "format of the query inside the kernel: rounded to e4m3, or as it is",
        ", ".join(QUERY_FORMATS), "the engine's best",
    )  # fmt: skip
    max_qlen: Annotated[int, BeforeValidator(_length)] | None = _setting(
        None, "query tokens of a request that still count as decoding; can only lower the default",
        f"1 to {MAX_Q_LEN}", "1 + num_speculative_tokens",
    )  # fmt: skip
    precompile: Annotated[str, _word({word: word for word in PRECOMPILE})] = _setting(
        "all", "when kernels are compiled: all that the table resolves to at start, or each at its first use, "
        "outside of graph capture", ", ".join(PRECOMPILE),
    )  # fmt: skip
    kernel_cache: Annotated[str | None, BeforeValidator(_folder)] = _setting(
        None, "where compiled kernels are kept; off keeps none", "on, off, or an absolute path",
        "on: $VLLM_CACHE_ROOT/mjolnir/kernels, else ~/.cache/mjolnir/kernels",
    )  # fmt: skip
    draft_t5: Switch = _setting(True, "off: a drafter's layers run on the fallback")
    noncausal: Switch = _setting(True, "off: a parallel drafter's non-causal blocks run on the fallback")
    fused_draft: Switch = _setting(True, "off: metadata is built anew between draft steps")
    kv_layout: Annotated[str, BeforeValidator(_layout)] | None = _setting(
        None, "the layout of the KV cache tensor, where its shape says too little", ", ".join(LAYOUTS),
        "found from the shape",
    )  # fmt: skip
    fused_qpack: Switch = _setting(True, "off: an fp8 query is quantised with PyTorch operators, not in the kernel")
    verbose: Switch = _setting(False, "notes on every compilation and every kernel in the log")
    banner: Switch = _setting(True, "the hammer in the start-up log, once")

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings of `environ`.

        Raises:
            ValueError: a value that does not parse; the message names the variable, the value and what is allowed.
        """
        given = {name: environ[found] for name in cls.model_fields if (found := _found(environ, name))}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ValueError(_explain(error, environ)) from None

    @classmethod
    def documented(cls) -> tuple[Documented, ...]:
        """The rows of the documentation table: these settings, the knobs, and the table of defaults."""
        rows = [
            Documented(PREFIX + name.upper(), str(facts["shown"]), str(facts["allowed"]), field.description or "")
            for name, field in cls.model_fields.items()
            if isinstance(facts := field.json_schema_extra, dict)
        ]
        rows += [Documented(variable(item), "table, else built-in", item.domain(), item.help) for item in KNOBS]
        rows.append(Documented(DEFAULTS_VARIABLE, "none", "a path", "another defaults table, read before the packaged"))
        return tuple(rows)


def _found(environ: Mapping[str, str], name: str) -> str | None:
    """The variable that sets `name`, the new spelling before the older."""
    spellings = PREFIX + name.upper(), OLDER_PREFIX + name.upper()
    return next((spelling for spelling in spellings if environ.get(spelling)), None)


def _explain(error: ValidationError, environ: Mapping[str, str]) -> str:
    """All that is wrong, in one message: variable, value, what is allowed."""
    wrong = []
    for item in error.errors():
        name = _found(environ, str(item["loc"][0]))
        allowed = str(item["ctx"]["error"]) if "error" in item.get("ctx", {}) else item["msg"]
        wrong.append(f"{name} = {item['input']!r} is not allowed: {allowed}")
    return "; ".join(wrong)


def sources(environ: Mapping[str, str]) -> dict[str, str]:
    """Where each setting's value comes from: a variable, or "built-in"."""
    return {name: _found(environ, name) or "built-in" for name in Settings.model_fields}


def unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables with our prefix that this version does not know: a slip of the pen, or a setting of another version."""
    names = {name.upper() for name in Settings.model_fields} | {item.variable for item in KNOBS}
    return tuple(sorted(name for name in environ if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in names))
