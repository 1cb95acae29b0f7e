"""What the kernel has to know of a device: the limits that decide what fits."""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_110a")
"""The architectures that variants are compiled for."""

SMEM_PER_SM = 228 * 1024
"""Shared memory of one SM in bytes; the same on compute capability 9.0, 10.0 and 11.0 (CUDA C++ guide, table of
technical specifications)."""

SMEM_PER_CTA_RESERVED = 1024
"""Bytes of shared memory that the system takes for each resident CTA."""

REGISTERS_PER_SM = 65536
"""32-bit registers of one SM."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, as far as variants, plans and table rows depend on it.

    Attributes:
        arch: the compile target, one of `ARCHITECTURES`.
        name: as the driver names it, such as "NVIDIA H200".
        sm_count: streaming multiprocessors, those of the MIG slice where there is one.
        mig: the MIG profile, such as "1g.18gb"; empty without MIG.
    """

    arch: str
    name: str
    sm_count: int
    mig: str = ""

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise ValueError(f"architecture {self.arch!r} is not supported; there are {', '.join(ARCHITECTURES)}")
        if self.sm_count < 1:
            raise ValueError(f"sm_count = {self.sm_count} is not a number of SMs")

    def smem_per_cta(self, ctas_per_sm: int) -> int:
        """Bytes of shared memory that each of `ctas_per_sm` resident CTAs can use."""
        return SMEM_PER_SM // ctas_per_sm - SMEM_PER_CTA_RESERVED


H200 = Device(arch="sm_90a", name="NVIDIA H200", sm_count=132)
"""The device of the packaged recording."""


def current_device(index: int = 0) -> Device:
    """Read the facts of CUDA device `index`.

    Raises:
        RuntimeError: no CUDA device, or an architecture that no engine supports.
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device is visible to torch")
    facts = torch.cuda.get_device_properties(index)
    arch = f"sm_{facts.major}{facts.minor}a"
    if arch not in ARCHITECTURES:
        raise RuntimeError(f"{facts.name} is {arch}; the engines support {', '.join(ARCHITECTURES)}")
    return Device(arch=arch, name=facts.name, sm_count=facts.multi_processor_count)
