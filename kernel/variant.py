"""A variant: one geometry with its baked knobs on one architecture, that is one compiled binary.

`resolve` folds settings that mean the same, `infeasible` tells without compiling why a setting cannot run,
`Variant` is the part of a setting that reaches the compiler, with the key that names its binary.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from mjolnir.kernel.device import REGISTERS_PER_SM, Device
from mjolnir.kernel.engine import TILE_WARPS, WGMMA, Engine, engine_for
from mjolnir.kernel.geometry import TILE, Geometry
from mjolnir.kernel.knobs import FAULTS, KNOBS, Setting

MAX_STAGES = 12
"""The deepest ring in the domain of `kv_stages`."""


LOADING_REGISTERS = {2: 40, 3: 24}
"""Registers that engine wgmma leaves a thread of its loading warpgroup, by CTAs per SM."""


def warpgroup_registers(ctas_per_sm: int) -> tuple[int, int]:
    """Registers of a computing and of a loading thread of engine wgmma; (0, 0) where none change hands.

    A CTA is launched with the same number for all threads, in units of eight. Its warps can only share out what it was
    launched with: asking for more would wait for ever. (PTX ISA, `setmaxnreg`.)
    """
    if ctas_per_sm not in LOADING_REGISTERS:
        return 0, 0
    launched = REGISTERS_PER_SM // (ctas_per_sm * 2 * TILE_WARPS * 32) // 8 * 8
    loading = LOADING_REGISTERS[ctas_per_sm]
    return 2 * launched - loading, loading


def loading_warps(engine: Engine) -> int:
    """Warps of a CTA beside the computing ones; one loads. Registers change hands among whole warpgroups alone."""
    return TILE_WARPS if engine.name == WGMMA else 1


def stage_bytes(geometry: Geometry) -> int:
    """Bytes of one ring stage: K and V of one tile of one KV head."""
    return 2 * TILE * geometry.head_dim


def padded_rows(engine: Engine) -> int:
    """Query rows of an item as the matrix units count them: a multiple of eight."""
    return 8 * -(-engine.rows // 8)


def query_in_shared(geometry: Geometry) -> bool:
    """Whether the `warp` engine keeps Q in shared memory: long heads leave it no registers."""
    return geometry.head_dim > 128


OUTPUT_PADDING = 4
"""Elements between rows of the `warp` engine's outputs in shared memory, so that lanes write to different banks."""


def output_span(geometry: Geometry) -> int:
    """Elements of a head that the `warp` engine's warps add up at a time, through shared memory."""
    return 128 if geometry.head_dim == 128 else 64


def consumer_smem_bytes(geometry: Geometry, engine: Engine, warps: int) -> int:
    """Bytes of shared memory that the computing warps take."""
    rows, flag = padded_rows(engine), 16
    if engine.name == WGMMA:
        query, weights = 2 * rows * geometry.head_dim, 2 * 2 * rows * TILE
        exchange = 4 * rows * (2 + TILE_WARPS)
        return query + weights + exchange + flag
    states, outputs = warps * 16 * 2 * 4, warps * 8 * (output_span(geometry) + OUTPUT_PADDING) * 4
    return states + outputs + flag + (2 * rows * geometry.head_dim if query_in_shared(geometry) else 0)


def fixed_smem_bytes(geometry: Geometry, engine: Engine, warps: int = TILE_WARPS) -> int:
    """Bytes of shared memory beside the ring: barriers, what the computing warps take, alignment of the ring."""
    barriers = 2 * 8 * MAX_STAGES
    alignment = 1024 if engine.name != WGMMA else 2048
    return barriers + consumer_smem_bytes(geometry, engine, warps) + alignment


def tiles_at_once(setting: Setting) -> int:
    """Tiles that one CTA computes on at the same time; its ring has a multiple of as many stages.

    So a stage always belongs to the same warps. Otherwise those that run ahead could take the barrier of a stage whose
    tile is still on its way, and not theirs, for that of their next one.
    """
    return setting.consumer_warps // TILE_WARPS


def stages_that_fit(setting: Setting, geometry: Geometry, device: Device, engine: Engine | None = None) -> int:
    """The deepest ring that the setting's resident CTAs allow, at most `MAX_STAGES`; below 2 none fits."""
    engine = engine or engine_for(geometry, device.arch, warps=setting.consumer_warps)
    room = device.smem_per_cta(setting.ctas_per_sm) - fixed_smem_bytes(geometry, engine, setting.consumer_warps)
    together = tiles_at_once(setting)
    return min(MAX_STAGES, room // stage_bytes(geometry)) // together * together


def registers_per_thread(setting: Setting, engine: Engine) -> int:
    """Registers that a computing thread may use so that `ctas_per_sm` CTAs are resident.

    Warps are dealt out evenly to four schedulers with a quarter of the registers each, in units of eight a thread.
    """
    if engine.name == WGMMA and setting.ctas_per_sm > 1:
        return warpgroup_registers(setting.ctas_per_sm)[0]
    warps = setting.ctas_per_sm * (setting.consumer_warps + loading_warps(engine))
    per_scheduler = -(-warps // 4)
    return min(255, REGISTERS_PER_SM // 4 // per_scheduler // 32 // 8 * 8)


def registers_needed(geometry: Geometry, engine: Engine) -> int:
    """Registers below which an engine's loop surely spills: outputs, scores and operands, and what addresses take."""
    rows = padded_rows(engine)
    if engine.name == WGMMA:
        outputs, scores, operands = geometry.head_dim // 128 * rows, rows // 2, geometry.head_dim // 4
        return outputs + scores + operands + 40
    return 112 if rows <= 8 else 144


def resolve(setting: Setting, geometry: Geometry, device: Device, engine: Engine | None = None) -> Setting:
    """Fold `kv_stages = 0` to the number it stands for; other settings come back unchanged."""
    if setting.kv_stages:
        return setting
    fit = stages_that_fit(setting, geometry, device, engine)
    return replace(setting, kv_stages=fit) if fit >= 2 else setting


def infeasible(setting: Setting, geometry: Geometry, device: Device, engine: Engine | None = None) -> str | None:
    """Why `setting` cannot run here, or None. Known without compiling; spills are known only after it."""
    engine = engine or engine_for(geometry, device.arch, warps=setting.consumer_warps)
    if engine.name == WGMMA and setting.consumer_warps != TILE_WARPS:
        return f"consumer_warps = {setting.consumer_warps}: engine wgmma computes with {TILE_WARPS} warps"
    if setting.kv_stages % tiles_at_once(setting):
        return f"kv_stages = {setting.kv_stages}: {setting.consumer_warps} computing warps need an even number"
    resolved = resolve(setting, geometry, device, engine)
    fit = stages_that_fit(setting, geometry, device, engine)
    if resolved.kv_stages < 2 or resolved.kv_stages > fit:
        wanted = max(2, resolved.kv_stages)
        need = wanted * stage_bytes(geometry) + fixed_smem_bytes(geometry, engine, setting.consumer_warps)
        room = device.smem_per_cta(setting.ctas_per_sm)
        return (
            f"shared memory: {wanted} stages take {need} bytes a CTA, and {setting.ctas_per_sm} CTAs per SM "
            f"leave {room} each (at most {fit} stages fit)"
        )
    need_registers = registers_needed(geometry, engine)
    have = registers_per_thread(setting, engine)
    if have < need_registers:
        return (
            f"registers: {setting.ctas_per_sm} CTAs of {setting.consumer_warps} computing warps per SM leave {have} "
            f"a thread, and {engine.rows} query rows of engine {engine.name} need about {need_registers}"
        )
    return None


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything that the compiler sees: geometry, baked knobs, architecture, and what is optional.

    Attributes:
        geometry: the problem.
        arch: the compile target.
        engine: the engine's name.
        ctas_per_sm, kv_stages, consumer_warps, pdl, l2_prefetch, kv_evict_first: the baked knobs, resolved.
        merge: whether items may be cut, and partials merged.
        lse: whether the log-sum-exp is written.
        q_mul, o_mul: whether Q and O are multiplied by the caller's factors.
        fault: a canary's fault; "none" for every kernel that serves.
    """

    geometry: Geometry
    arch: str
    engine: str
    ctas_per_sm: int
    kv_stages: int
    consumer_warps: int
    pdl: int
    l2_prefetch: int
    kv_evict_first: int
    merge: bool = True
    lse: bool = False
    q_mul: bool = False
    o_mul: bool = False
    fault: str = "none"

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"fault {self.fault!r} is not one of {', '.join(FAULTS)}")
        if self.kv_stages < 2:
            raise ValueError("a variant needs a resolved kv_stages of at least 2; call resolve() first")

    @classmethod
    def of(
        cls,
        setting: Setting,
        geometry: Geometry,
        device: Device,
        *,
        engine: str | None = None,
        lse: bool = False,
        q_mul: bool = False,
        o_mul: bool = False,
        fault: str = "none",
    ) -> Variant:
        """The variant that runs `setting`, on the engine that is best for the geometry or on the named one.

        Raises:
            ValueError: the setting is infeasible, or the engine cannot run the geometry; the message is the reason.
        """
        chosen = engine_for(geometry, device.arch, engine, setting.consumer_warps)
        reason = infeasible(setting, geometry, device, chosen)
        if reason:
            raise ValueError(f"{setting} cannot run: {reason}")
        resolved = resolve(setting, geometry, device, chosen).as_dict()
        baked = {item.name: resolved[item.name] for item in KNOBS if item.baked}
        return cls(
            geometry, device.arch, chosen.name, **baked,
            merge=setting.max_splits != 1, lse=lse, q_mul=q_mul, o_mul=o_mul, fault=fault,
        )  # fmt: skip

    @property
    def shape(self) -> Engine:
        """The engine with the rows of its items."""
        return engine_for(self.geometry, self.arch, self.engine)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of one CTA."""
        fixed = fixed_smem_bytes(self.geometry, self.shape, self.consumer_warps)
        return self.kv_stages * stage_bytes(self.geometry) + fixed

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return 32 * (self.consumer_warps + loading_warps(self.shape))

    def as_dict(self) -> dict[str, object]:
        """All fields, nested geometry included, ready for JSON."""
        return asdict(self)

    def key(self, *extra: str) -> str:
        """The name of the binary: 32 hex digits over all fields and over `extra` (versions, sources)."""
        text = json.dumps([self.as_dict(), *extra], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
