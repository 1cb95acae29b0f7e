"""What is computed: heads, head size, page size, query length and formats. Never a matter of tuning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

TILE = 64
"""Tokens of one KV tile, the unit of the plan and of the ring."""

PAGE_SIZES = (16, 32, 64, 128)
HEAD_DIMS = (128, 256)
MAX_Q_LEN = 16
MAX_GQA = 128
KV_FORMATS = ("fp8",)
Q_FORMATS = ("native", "fp8")
DTYPES = ("bf16", "f16")
LAYOUT_CLASSES = ("head-major", "token-major")
KV_PLACES = ("together", "apart")


@dataclass(frozen=True, slots=True, order=True)
class Geometry:
    """One decode-attention problem, batch and lengths apart.

    Attributes:
        heads_q: query heads.
        heads_kv: KV heads; `heads_q` is a multiple of it (GQA).
        head_dim: elements of one head.
        page_size: tokens of one KV page.
        q_len: query tokens of one sequence.
        causal: whether query token i sees keys up to `length - q_len + i` alone; always True with q_len 1, where it
            says nothing.
        kv_format: format of the KV cache, "fp8" (e4m3).
        q_format: "native" (bf16 or f16 as it is) or "fp8" (e4m3 with one scale for each sequence and KV head).
        dtype: dtype of query and output, "bf16" or "f16".

    Raises:
        ValueError: a value that no engine supports; the message says what is supported.
    """

    heads_q: int
    heads_kv: int
    head_dim: int = 128
    page_size: int = 64
    q_len: int = 1
    causal: bool = True
    kv_format: str = "fp8"
    q_format: str = "native"
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.heads_kv < 1 or self.heads_q < 1 or self.heads_q % self.heads_kv:
            raise ValueError(f"heads {self.heads_q}/{self.heads_kv}: query heads must be a multiple of KV heads")
        if self.gqa > MAX_GQA:
            raise ValueError(f"GQA ratio {self.gqa} is above {MAX_GQA}, the most that an engine supports")
        if not 1 <= self.q_len <= MAX_Q_LEN:
            raise ValueError(f"q_len = {self.q_len} is not supported; it is 1 to {MAX_Q_LEN}")
        if self.q_len == 1:
            object.__setattr__(self, "causal", True)
        allowed: Mapping[str, tuple[object, ...]] = {
            "head_dim": HEAD_DIMS,
            "page_size": PAGE_SIZES,
            "kv_format": KV_FORMATS,
            "q_format": Q_FORMATS,
            "dtype": DTYPES,
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                listed = ", ".join(str(value) for value in values)
                raise ValueError(f"{name} = {getattr(self, name)!r} is not supported; there are {listed}")

    @property
    def gqa(self) -> int:
        """Query heads of one KV head."""
        return self.heads_q // self.heads_kv

    @property
    def rows(self) -> int:
        """Query rows that share one KV head; row r is query token r // gqa and query head r % gqa of the head's."""
        return self.gqa * self.q_len

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all KV heads."""
        return 2 * self.heads_kv * self.head_dim

    def as_dict(self) -> dict[str, int | str | bool]:
        """Field names and values, in the order of declaration."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Geometry:
        """The inverse of `as_dict`.

        Raises:
            ValueError: an unknown field or an unsupported value.
        """
        known = {f.name for f in fields(cls)}
        if set(values) - known:
            raise ValueError(f"unknown geometry field {sorted(set(values) - known)[0]!r}")
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def parse(cls, text: str) -> Geometry:
        """Read `32/8xd128,page=64,q=1` (also `causal=no`, `kv=fp8`, `query=native`, `dtype=bf16`).

        Raises:
            ValueError: the text is not of this form, names a field twice, or names what is not supported.
        """
        head, *rest = (part.strip() for part in text.split(","))
        match = re.fullmatch(r"(\d+)/(\d+)xd(\d+)", head)
        if not match:
            raise ValueError(
                f"{text!r} is not a geometry; write HEADS_Q/HEADS_KVxdHEAD_DIM, such as 32/8xd128,page=64,q=1"
            )
        values: dict[str, object] = dict(
            zip(("heads_q", "heads_kv", "head_dim"), map(int, match.groups()), strict=True)
        )
        for part in rest:
            name, _, value = part.partition("=")
            if name not in FIELDS or not value:
                raise ValueError(f"{part!r} in {text!r} is not one of {', '.join(n + '=...' for n in FIELDS)}")
            if FIELDS[name] in values:
                raise ValueError(f"{text!r} names {name} twice")
            values[FIELDS[name]] = _read(name, value, text)
        return cls.from_dict(values)

    def __str__(self) -> str:
        text = f"{self.heads_q}/{self.heads_kv}xd{self.head_dim},page={self.page_size},q={self.q_len}"
        block = "" if self.causal else ",causal=no"
        return text + f"{block},kv={self.kv_format},query={self.q_format},dtype={self.dtype}"


FIELDS = {
    "page": "page_size", "q": "q_len", "causal": "causal", "kv": "kv_format", "query": "q_format", "dtype": "dtype",
}  # fmt: skip
"""What `Geometry.parse` reads beside heads and head size, and the field that each word stands for."""


def _read(name: str, value: str, text: str) -> int | str | bool:
    """The value of one word of a geometry."""
    if name in ("page", "q"):
        if not value.isdigit():
            raise ValueError(f"{name}={value} in {text!r} must be a whole number")
        return int(value)
    if name == "causal":
        if value not in ("yes", "no"):
            raise ValueError(f"causal={value} in {text!r} must be yes or no")
        return value == "yes"
    return value


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """How the KV cache lies in memory, as far as speed depends on it.

    Attributes:
        layout: "head-major" (the tokens of one page and head are contiguous) or "token-major".
        kv: "together" (K and V in one page block) or "apart" (two pools).
    """

    layout: str = "head-major"
    kv: str = "together"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUT_CLASSES:
            raise ValueError(f"layout = {self.layout!r}; there are {', '.join(LAYOUT_CLASSES)}")
        if self.kv not in KV_PLACES:
            raise ValueError(f"kv = {self.kv!r}; there are {', '.join(KV_PLACES)}")
