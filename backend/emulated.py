"""A launcher without a GPU: the plan on the host, and the emulator in the kernel's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjolnir.kernel.device import Device
from mjolnir.kernel.emulator import emulate
from mjolnir.kernel.engine import engine_for
from mjolnir.kernel.plan import Plan, make_plan

if TYPE_CHECKING:
    from torch import Tensor

    from mjolnir.backend.launcher import Launcher
    from mjolnir.kernel.geometry import Geometry
    from mjolnir.kernel.knobs import Setting

EMULATED = Device("sm_90a", "CPU", 4)
"""The GPU that is emulated: Hopper's engines with few SMs, since a host walks their chunks one after another."""


class EmulatedLauncher:
    """Runs one setting on the CPU; see `mjolnir.backend.launcher.Launcher`."""

    def __init__(self, geometry: Geometry, setting: Setting, engine: str, max_batch: int) -> None:
        self._geometry, self._setting, self._max_batch = geometry, setting, max_batch
        self._engine = engine_for(geometry, EMULATED.arch, engine)
        self._plan: Plan | None = None

    @property
    def workspace_bytes(self) -> int:
        return 0

    def plan(self, seq_lens: Tensor, margin: int = 0, *, capacity: int | None = None) -> None:
        if not 1 <= len(seq_lens) <= self._max_batch:
            raise ValueError(
                f"seq_lens holds {len(seq_lens)} sequences; this launcher plans for 1 to {self._max_batch}"
            )
        self._plan = make_plan(
            seq_lens.tolist(), self._geometry.heads_kv * self._engine.blocks,
            EMULATED.sm_count * self._setting.ctas_per_sm, self._setting.max_splits,
            capacity=self._geometry.page_size if capacity is None else capacity, margin=margin,
        )  # fmt: skip

    def run(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        out: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        scale: float | None = None,
    ) -> None:
        if self._plan is None:
            raise RuntimeError("a step is planned before its layers run")
        geometry, tokens = self._geometry, len(seq_lens) * self._geometry.q_len
        rows = query[:tokens].reshape(tokens, geometry.heads_q, geometry.head_dim)
        result, _ = emulate(
            rows, k_cache, v_cache, block_table, seq_lens, self._plan, geometry=geometry, engine=self._engine,
            scale=geometry.head_dim**-0.5 if scale is None else scale, k_scale=k_scale, v_scale=v_scale,
            warps=self._setting.consumer_warps,
        )  # fmt: skip
        out[:tokens].copy_(result.view(out[:tokens].shape))


class EmulatedMaker:
    """Makes emulated launchers; see `mjolnir.backend.launcher.Maker`."""

    def compile(self, geometry: Geometry, setting: Setting, engine: str) -> None:
        """Nothing to do."""

    def make(self, geometry: Geometry, setting: Setting, engine: str, max_batch: int) -> Launcher:
        return EmulatedLauncher(geometry, setting, engine, max_batch)
