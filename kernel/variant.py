"""A variant: one geometry with its baked knobs on one architecture, that is one compiled binary.

`resolve` folds settings that mean the same, `infeasible` tells without compiling why a setting cannot run,
`Variant` is the part of a setting that reaches the compiler, with the key that names its binary.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from mjolnir.kernel.device import REGISTERS_PER_SM, Device
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.knobs import FAULTS, KNOBS, Setting

CONSUMER_WARPS = 4
"""Warps that compute; one more warp loads."""

THREADS = 32 * (CONSUMER_WARPS + 1)
"""Threads of one CTA of the `warp` engine."""

MAX_STAGES = 12
"""The deepest ring in the domain of `kv_stages`."""


def stage_bytes(geometry: Geometry) -> int:
    """Bytes of one ring stage: K and V of one tile of one KV head."""
    return 2 * TILE * geometry.head_dim


def fixed_smem_bytes() -> int:
    """Bytes of shared memory beside the ring: barriers, softmax state of each warp, alignment of the ring."""
    barriers = 2 * 8 * MAX_STAGES
    softmax_state = CONSUMER_WARPS * 16 * 2 * 4
    alignment = 1024
    return barriers + softmax_state + alignment


def stages_that_fit(ctas_per_sm: int, geometry: Geometry, device: Device) -> int:
    """The deepest ring that `ctas_per_sm` resident CTAs allow, at most `MAX_STAGES`; below 2 none fits."""
    room = device.smem_per_cta(ctas_per_sm) - fixed_smem_bytes()
    return min(MAX_STAGES, room // stage_bytes(geometry))


def registers_per_thread(ctas_per_sm: int) -> int:
    """Registers that a thread may use so that `ctas_per_sm` CTAs are resident.

    Warps are dealt out evenly to four schedulers with a quarter of the registers each, in units of eight a thread.
    """
    warps = ctas_per_sm * THREADS // 32
    per_scheduler = -(-warps // 4)
    return min(255, REGISTERS_PER_SM // 4 // per_scheduler // 32 // 8 * 8)


def resolve(setting: Setting, geometry: Geometry, device: Device) -> Setting:
    """Fold `kv_stages = 0` to the number it stands for; other settings come back unchanged."""
    if setting.kv_stages:
        return setting
    fit = stages_that_fit(setting.ctas_per_sm, geometry, device)
    return replace(setting, kv_stages=fit) if fit >= 2 else setting


def infeasible(setting: Setting, geometry: Geometry, device: Device) -> str | None:
    """Why `setting` cannot run here, or None. Known without compiling; spills are known only after it."""
    resolved = resolve(setting, geometry, device)
    fit = stages_that_fit(setting.ctas_per_sm, geometry, device)
    if resolved.kv_stages < 2 or resolved.kv_stages > fit:
        wanted = max(2, resolved.kv_stages)
        need = wanted * stage_bytes(geometry) + fixed_smem_bytes()
        room = device.smem_per_cta(setting.ctas_per_sm)
        return (
            f"shared memory: {wanted} stages take {need} bytes a CTA, and {setting.ctas_per_sm} CTAs per SM "
            f"leave {room} each (at most {fit} stages fit)"
        )
    need_registers = 112 if geometry.rows <= 8 else 144
    have = registers_per_thread(setting.ctas_per_sm)
    if have < need_registers:
        return (
            f"registers: {setting.ctas_per_sm} CTAs per SM leave {have} a thread, and {geometry.rows} query rows "
            f"need about {need_registers}"
        )
    return None


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything that the compiler sees: geometry, baked knobs, architecture, and what is optional.

    Attributes:
        geometry: the problem.
        arch: the compile target.
        ctas_per_sm, kv_stages, pdl, l2_prefetch, kv_evict_first: the baked knobs, resolved.
        merge: whether the merge is launched after the decode kernel.
        lse: whether the log-sum-exp is written.
        fault: a canary's fault; "none" for every kernel that serves.
    """

    geometry: Geometry
    arch: str
    ctas_per_sm: int
    kv_stages: int
    pdl: int
    l2_prefetch: int
    kv_evict_first: int
    merge: bool = True
    lse: bool = False
    fault: str = "none"

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"fault {self.fault!r} is not one of {', '.join(FAULTS)}")
        if self.kv_stages < 2:
            raise ValueError("a variant needs a resolved kv_stages of at least 2; call resolve() first")

    @classmethod
    def of(
        cls, setting: Setting, geometry: Geometry, device: Device, *, lse: bool = False, fault: str = "none"
    ) -> Variant:
        """The variant that runs `setting`.

        Raises:
            ValueError: the setting is infeasible; the message is the reason.
        """
        reason = infeasible(setting, geometry, device)
        if reason:
            raise ValueError(f"{setting} cannot run: {reason}")
        resolved = resolve(setting, geometry, device).as_dict()
        baked = {item.name: resolved[item.name] for item in KNOBS if item.baked}
        return cls(geometry, device.arch, **baked, merge=setting.max_splits != 1, lse=lse, fault=fault)

    def as_dict(self) -> dict[str, object]:
        """All fields, nested geometry included, ready for JSON."""
        return asdict(self)

    def key(self, *extra: str) -> str:
        """The name of the binary: 32 hex digits over all fields and over `extra` (versions, sources)."""
        text = json.dumps([self.as_dict(), *extra], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
