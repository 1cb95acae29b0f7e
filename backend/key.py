"""The key of a row in the defaults table: device, geometry, placement and batch bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from mjolnir.kernel.device import Device
from mjolnir.kernel.geometry import Geometry, Placement


def bucket_of(batch: int) -> int:
    """The bucket that serves `batch`: the smallest power of two that is at least as large.

    Raises:
        ValueError: a batch below one.
    """
    if batch < 1:
        raise ValueError(f"batch = {batch} is not a number of sequences")
    return 1 << (batch - 1).bit_length()


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a row is for. Rows are sorted by it, field by field.

    Attributes:
        arch, device, sm_count, mig: the facts of the `Device`.
        heads_q, heads_kv, head_dim, page_size, q_len, causal, kv_format, q_format: those of the `Geometry`.
        layout, kv: those of the `Placement`.
        batch: the bucket b, a power of two; it serves batches in (b/2, b].

    Raises:
        ValueError: a field of the wrong type or out of its domain; the message names it.
    """

    arch: str
    device: str
    sm_count: int
    mig: str
    heads_q: int
    heads_kv: int
    head_dim: int
    page_size: int
    q_len: int
    causal: bool
    kv_format: str
    q_format: str
    layout: str
    kv: str
    batch: int

    def __post_init__(self) -> None:
        for name, kind in _KEY_TYPES.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"key: {name} = {short(getattr(self, name))} is not of type {kind.__name__}")
        if self.batch < 1 or self.batch != bucket_of(self.batch):
            raise ValueError(f"key: batch = {self.batch} is not a bucket, which is a power of two")
        if self.q_len == 1 and not self.causal:
            raise ValueError("key: causal = false with q_len = 1; there both are the same and true is written")
        _ = self.hardware, self.geometry, self.placement

    @classmethod
    def of(cls, device: Device, geometry: Geometry, placement: Placement, batch: int) -> Key:
        """The key that serves `batch`, folded to its bucket.

        Raises:
            ValueError: a batch below one.
        """
        facts = geometry.as_dict()
        del facts["dtype"]  # what is fast for bf16 is for f16: same bytes, same instructions
        facts["causal"] = geometry.causal or geometry.q_len == 1
        values = {"arch": device.arch, "device": device.name, "sm_count": device.sm_count, "mig": device.mig}
        return cls(**values, **facts, **asdict(placement), batch=bucket_of(batch))  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: object) -> Key:
        """The inverse of `as_dict`.

        Raises:
            ValueError: a missing, unknown, mistyped or out-of-domain field.
        """
        return cls(**members(values, "key", _KEY_TYPES))

    def as_dict(self) -> dict[str, Any]:
        """Field names and values, in the order of declaration."""
        return asdict(self)

    @property
    def hardware(self) -> Device:
        """The device that the row was measured on."""
        return Device(self.arch, self.device, self.sm_count, self.mig)

    @property
    def geometry(self) -> Geometry:
        """The problem; its dtype is the default one, since rows serve both."""
        values = {f.name: getattr(self, f.name) for f in fields(Geometry) if f.name != "dtype"}
        return Geometry(**values)

    @property
    def placement(self) -> Placement:
        """How the KV cache lies in memory."""
        return Placement(self.layout, self.kv)

    def __str__(self) -> str:
        where = f"{self.device}{f' {self.mig}' if self.mig else ''} ({self.arch}, {self.sm_count} SMs)"
        what = f"{self.heads_q}/{self.heads_kv}xd{self.head_dim},page={self.page_size},q={self.q_len}"
        formats = f"kv={self.kv_format},query={self.q_format}{'' if self.causal else ',non-causal'}"
        return f"{where} {what},{formats} {self.layout} {self.kv} batch<={self.batch}"


_KEY_TYPES: Mapping[str, type] = get_type_hints(Key)


def members(values: object, what: str, names: Iterable[str]) -> dict[str, Any]:
    """`values` as a dict that has exactly the members `names`.

    Raises:
        ValueError: no object, or a member that is missing or unknown; `what` opens the message.
    """
    names = tuple(names)
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}: {short(values)} is not an object")
    if missing := [name for name in names if name not in values]:
        raise ValueError(f"{what}: {missing[0]} is missing")
    if unknown := sorted(str(name) for name in values if name not in names):
        raise ValueError(f"{what}: {short(unknown[0])} is unknown; there are {', '.join(names)}")
    return dict(values)


def short(value: object) -> str:
    """`value` as a message shows it, however large it is."""
    return clip(repr(value))


def clip(text: str) -> str:
    """`text`, cut to what a message can hold."""
    return text if len(text) <= 160 else text[:157] + "..."
