"""From the defaults table to the knobs of each batch size, at start-up; and the launchers that run them.

A row is used while it works: one whose kernel does not compile is dropped for the built-in rule with one line in the
log. Knobs from the environment are never dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mjolnir.backend.eligibility import step_of
from mjolnir.backend.key import bucket_of
from mjolnir.backend.lookup import BUILT_IN, Defaults, Resolution, knob_defaults
from mjolnir.backend.query import UnfusedQuery, native
from mjolnir.kernel.cache import CompileError
from mjolnir.kernel.rule import built_in

if TYPE_CHECKING:
    from mjolnir.backend.launcher import Launcher, Maker
    from mjolnir.kernel.device import Device
    from mjolnir.kernel.geometry import Geometry, Placement

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """What a KV group's launchers have in common.

    Attributes:
        device: facts of the GPU.
        geometry: with one query token.
        placement: how the cache lies.
        max_batch: the most requests.
        fused_query: whether the kernel rounds an fp8 query itself.
    """

    device: Device
    geometry: Geometry
    placement: Placement
    max_batch: int
    fused_query: bool = True

    def at(self, q_len: int, causal: bool) -> Geometry:
        """The geometry of a step."""
        return step_of(self.geometry, q_len, causal)

    def kernel(self, geometry: Geometry) -> Geometry:
        """What the kernel is compiled for."""
        return geometry if self.fused_query else native(geometry)

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch buckets of 1 to `max_batch` requests."""
        return tuple(1 << power for power in range(bucket_of(self.max_batch).bit_length()))


class Launchers:
    """The launchers of one KV group, by batch, query length and causality; settings that are equal share one.

    Args:
        problem: what they have in common.
        defaults: where knobs come from.
        maker: compiles and makes.
        device: where buffers lie.
    """

    def __init__(self, problem: Problem, defaults: Defaults, maker: Maker, device: torch.device) -> None:
        self.problem = problem
        self._defaults, self._maker, self._device = defaults, maker, device
        self._by_step: dict[tuple[int, int, bool], Launcher] = {}
        self._made: dict[tuple[object, ...], Launcher] = {}
        self._compiled: dict[tuple[object, ...], Resolution] = {}

    def resolve(self, batch: int, q_len: int, causal: bool = True) -> Resolution:
        """What serves a step.

        Raises:
            ValueError: knobs from the environment and a row do not fit together.
        """
        problem = self.problem
        return self._defaults.lookup(problem.device, problem.at(q_len, causal), problem.placement, batch)

    def precompile(self, q_lens: Iterable[int], causal: Iterable[bool]) -> int:
        """Compile all that these query lengths resolve to, each binary once.

        Returns:
            How many settings there are.

        Raises:
            RuntimeError: what the built-in rule says, or what the environment asks for, does not compile.
        """
        lengths, kinds = tuple(q_lens), tuple(causal)
        settings = set()
        for bucket in self.problem.buckets:
            for geometry in {self.problem.at(q_len, kind): None for q_len in lengths for kind in kinds}:
                works = self._working(bucket, geometry.q_len, geometry.causal)
                settings.add((geometry, works.engine, works.setting))
        return len(settings)

    def ready(self, q_lens: Iterable[int], causal: Iterable[bool]) -> None:
        """Make the launchers of these query lengths for all batch sizes."""
        kinds = tuple(causal)
        for q_len in q_lens:
            for kind in kinds:
                for bucket in self.problem.buckets:
                    self.get(min(bucket, self.problem.max_batch), q_len, kind)

    def get(self, batch: int, q_len: int, causal: bool) -> Launcher:
        """The launcher of a step; made at the first one of its kind.

        Raises:
            RuntimeError: it is not made, and a CUDA graph is being captured; the message names what is missing.
        """
        launcher = self._by_step.get((batch, q_len, causal))
        if launcher is None:
            launcher = self._by_step[batch, q_len, causal] = self._find(batch, q_len, causal or q_len == 1)
        return launcher

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the buffers of all launchers made so far."""
        return sum(launcher.workspace_bytes for launcher in self._made.values())

    def _find(self, batch: int, q_len: int, causal: bool) -> Launcher:
        capturing = is_capturing()
        found = self.resolve(batch, q_len, causal)
        known = self._compiled.get(self._name(found, q_len, causal))
        if known is None and capturing:
            raise RuntimeError(_missing(f"the kernel for {found.key} ({found.engine}: {found.setting})"))
        works = known or self._working(batch, q_len, causal)
        name = self._name(works, q_len, causal)
        if name not in self._made:
            if capturing:
                raise RuntimeError(_missing(f"the buffers for {works.key} ({works.engine}: {works.setting})"))
            self._made[name] = self._make(works, q_len, causal)
        return self._made[name]

    def _make(self, works: Resolution, q_len: int, causal: bool) -> Launcher:
        problem, wanted = self.problem, self.problem.at(q_len, causal)
        geometry = problem.kernel(wanted)
        launcher = self._maker.make(geometry, works.setting, works.engine, problem.max_batch)
        if geometry == wanted:
            return launcher
        return UnfusedQuery(launcher, geometry, problem.max_batch, self._device)

    def _working(self, batch: int, q_len: int, causal: bool) -> Resolution:
        """What serves a step and compiles."""
        found = self.resolve(batch, q_len, causal)
        name = self._name(found, q_len, causal)
        if name not in self._compiled:
            self._compiled[name] = self._compile(found, q_len, causal)
        return self._compiled[name]

    def _compile(self, found: Resolution, q_len: int, causal: bool) -> Resolution:
        geometry = self.problem.kernel(self.problem.at(q_len, causal))
        try:
            self._maker.compile(geometry, found.setting, found.engine)
        except CompileError as error:
            other = self._instead(found, q_len, causal)
            if other is None:
                raise RuntimeError(
                    f"Mjolnir's kernel for {found.key} ({found.engine}: {found.setting}) cannot be used: {error}; "
                    f"MJOLNIR_ATTN_DISABLE=1 serves without it"
                ) from error
            source = f"the row for {found.row.key}" if found.row else f"the {BUILT_IN} ({found.setting})"
            log.warning("%s: %s cannot be used: %s", found.key, source, error)
            return self._compile(other, q_len, causal)
        return found

    def _instead(self, found: Resolution, q_len: int, causal: bool) -> Resolution | None:
        """What serves where this does not compile: instead of a row the rule, instead of that the knobs' defaults."""
        problem, rule = self.problem, built_in if found.row else knob_defaults
        bare = Defaults((), self._defaults.overrides, rule=rule)
        other = bare.lookup(problem.device, problem.at(q_len, causal), problem.placement, found.key.batch)
        return other if found.row or other.setting != found.setting else None

    @staticmethod
    def _name(found: Resolution, q_len: int, causal: bool) -> tuple[object, ...]:
        return q_len, causal, found.engine, found.setting


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def _missing(what: str) -> str:
    return (
        f"{what} would have to be made while a CUDA graph is captured. MJOLNIR_ATTN_PRECOMPILE=all compiles at start; "
        f"please report this together with vLLM's settings"
    )
