# mypy: disallow-untyped-decorators=False, disallow-any-unimported=False, warn-return-any=False
"""Two kernels that read memory and do nothing with it: 16-byte loads, and bulk copies into a ring in shared memory.

They are the measure of how fast a card can read. Neither can be optimised away: the loads are summed up and the sums
stored, and a bulk copy is waited for by the bytes that it has brought; both tell what they have read.
"""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, Int64, Uint8, Uint32, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from mjolnir.kernel.engines.ptx import EVICT_FIRST

VECTOR = 16
"""Bytes of one load."""

LANES = 32
WARPS_OF_COPY = 1


@dataclass(frozen=True)
class LoadStream:
    """16-byte loads (LDG): each CTA reads consecutive blocks, a thread `unroll` vectors of each before it uses any.

    Attributes:
        threads: of one CTA.
        unroll: loads of a thread that are in flight together.
        blocks: blocks of `16 threads unroll` bytes that one CTA reads, one after the other.
        pdl: whether launches overlap, as far as the next waits for this one before its first load.
    """

    threads: int
    unroll: int
    blocks: int
    pdl: bool = False

    @property
    def block_bytes(self) -> int:
        """Bytes that a CTA reads together."""
        return VECTOR * self.threads * self.unroll

    @property
    def granularity(self) -> int:
        """Bytes of one CTA; what is read is a multiple of it."""
        return self.block_bytes * self.blocks

    def sums(self, size: int) -> int:
        """Sums that a launch over `size` bytes stores: one a warp."""
        return size // self.granularity * (self.threads // LANES)

    @cute.jit
    def __call__(self, data: cute.Tensor, sums: cute.Tensor, stream: cuda.CUstream) -> None:
        """Read `data` (bytes,) and store in `sums` (warps,), uint32, what the 32-bit words of each warp add up to."""
        self.kernel(data, sums).launch(
            grid=[cute.size(sums) // (self.threads // LANES), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(self, data: cute.Tensor, sums: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()
        address = data.iterator.toint() + Int64(cta) * self.granularity + Int64(thread) * VECTOR
        total = Uint32(0)
        for _ in cutlass.range(self.blocks, unroll=1):
            words = [load_vector(address + place * VECTOR * self.threads) for place in range(self.unroll)]
            for place in cutlass.range_constexpr(self.unroll):
                a, b, c, d = words[place]
                total = total + a + b + c + d
            address += self.block_bytes
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        for bit in cutlass.range_constexpr(5):
            total += cute.arch.shuffle_sync_bfly(total, offset=1 << bit)
        if thread % LANES == 0:
            sums[cta * (self.threads // LANES) + thread // LANES] = total

    def arguments(self) -> tuple[object, ...]:
        """Symbolic arguments to compile it with."""
        return _arguments()


@dataclass(frozen=True)
class CopyStream:
    """Bulk copies (TMA) into a ring: one warp a CTA keeps `stages` chunks in flight, dealt out to the CTAs in turn.

    Attributes:
        chunk: bytes of one copy.
        stages: copies in flight of one CTA.
        ctas_per_sm: CTAs resident per SM; the grid is that of a persistent kernel.
        evict_first: whether the copies carry the L2 policy evict-first.
        pdl: as in `LoadStream`.
    """

    chunk: int
    stages: int
    ctas_per_sm: int
    evict_first: bool = True
    pdl: bool = False

    @property
    def granularity(self) -> int:
        """Bytes of one copy; what is read is a multiple of it."""
        return self.chunk

    @cute.jit
    def __call__(self, data: cute.Tensor, sums: cute.Tensor, stream: cuda.CUstream) -> None:
        """Copy `data` (bytes,) to shared memory and store in `sums` (CTAs,), uint32, the bytes that each has waited
        for."""
        self.kernel(data, sums).launch(
            grid=[cute.size(sums), 1, 1],
            block=[LANES * WARPS_OF_COPY, 1, 1],
            stream=stream,
            use_pdl=self.pdl,
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, data: cute.Tensor, sums: cute.Tensor) -> None:
        cta, _, _ = cute.arch.block_idx()
        grid = cute.size(sums)
        smem = cutlass.utils.SmemAllocator()
        ring = smem.allocate_tensor(Uint8, cute.make_layout(self.chunk * self.stages), byte_alignment=128)
        full = smem.allocate_array(Int64, self.stages)
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(self.stages):
                cute.arch.mbarrier_init(full + stage, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()
        chunks = Int32(cute.size(data) // self.chunk)
        mine = Int32(0)
        if cta < chunks:
            mine = (chunks - 1 - cta) // grid + 1
        source = data.iterator.toint() + Int64(cta) * self.chunk
        step = Int64(grid) * self.chunk
        target = ring.iterator.toint()
        for number in cutlass.range(cutlass.min(mine, self.stages), unroll=1):
            self._copy(target + number * self.chunk, source + number * step, full + number)
        read, stage, phase = Uint32(0), Int32(0), Int32(0)
        for number in cutlass.range(mine, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            read += self.chunk
            if number + self.stages < mine:
                self._copy(target + stage * self.chunk, source + (number + self.stages) * step, full + stage)
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
                phase ^= 1
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        with cute.arch.elect_one():
            sums[cta] = read

    @cute.jit
    def _copy(self, target: Int32, source: Int64, barrier: cute.Pointer) -> None:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.chunk)
            if cutlass.const_expr(self.evict_first):
                cute.arch.inline_ptx(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                    "[{$r0}], [{$r1}], {$r2}, [{$r3}], {$r4};",
                    read_only_args=[target, source, Int32(self.chunk), barrier.toint(), Int64(EVICT_FIRST)],
                )
            else:
                cute.arch.inline_ptx(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[{$r0}], [{$r1}], {$r2}, [{$r3}];",
                    read_only_args=[target, source, Int32(self.chunk), barrier.toint()],
                )

    def arguments(self) -> tuple[object, ...]:
        """Symbolic arguments to compile it with."""
        return _arguments()


@cute.jit
def load_vector(address: Int64) -> tuple[Uint32, Uint32, Uint32, Uint32]:
    """Sixteen bytes of memory that is only read, kept out of L1."""
    return cute.arch.inline_ptx(
        "ld.global.nc.L1::no_allocate.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Uint32] * 4,
        read_only_args=[address],
    )


def _arguments() -> tuple[object, ...]:
    data = make_fake_compact_tensor(Uint8, (cute.sym_int32(),), assumed_align=128)
    sums = make_fake_compact_tensor(Uint32, (cute.sym_int32(),))
    return data, sums, make_fake_stream()
