"""The harness: one shape, checked and timed. `python -m mjolnir.kernel --help`."""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import TYPE_CHECKING

from mjolnir.kernel.cross import HOSTS
from mjolnir.kernel.device import ARCHITECTURES, Device, current_device
from mjolnir.kernel.engine import ENGINES, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import KNOBS, Setting
from mjolnir.kernel.variant import Variant, infeasible, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """The command line, its knobs derived from `KNOBS`."""
    made = argparse.ArgumentParser(
        prog="python -m mjolnir.kernel",
        description="Paged decode attention on one shape: checked against an f32 reference, then timed by "
        "CUDA-graph replay over rotating KV sets (cold L2), merge included.",
    )
    made.add_argument(
        "--geometry",
        default="32/8xd128,page=64,q=1",
        metavar="TEXT",
        help="HEADS_Q/HEADS_KVxdHEAD_DIM, then as needed page=N, q=TOKENS, causal=yes|no, query=native|fp8, "
        "dtype=bf16|f16 (default 32/8xd128,page=64,q=1)",
    )
    made.add_argument("--engine", choices=ENGINES, help="an engine by name (default: the best for the geometry)")
    made.add_argument("--batch", type=int, default=8, help="sequences (default 8)")
    made.add_argument("--context", type=int, default=8192, help="tokens of each sequence (default 8192)")
    made.add_argument("--layout", default="BHN2D", help="cache layout (default BHN2D)")
    made.add_argument("--repeats", type=int, default=30, help="timed graph replays (default 30)")
    made.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    made.add_argument(
        "--compile-only", choices=ARCHITECTURES, metavar="ARCH", help=f"only compile, for {', '.join(ARCHITECTURES)}"
    )
    made.add_argument(
        "--host", choices=HOSTS, help="with --compile-only: the machine that is to load the object (default: this one)"
    )
    knobs = made.add_argument_group("knobs")
    for knob in KNOBS:
        flag = "--" + knob.name.replace("_", "-")
        knobs.add_argument(
            flag,
            type=int,
            default=knob.default,
            metavar="N",
            help=f"{knob.help}: {knob.domain()} (default {knob.default})",
        )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the harness; returns the exit code: 0 right, 1 wrong, 2 usage, 3 no device."""
    options = parser().parse_args(arguments)
    try:
        geometry = Geometry.parse(options.geometry)
        setting = Setting.from_dict({knob.name: getattr(options, knob.name) for knob in KNOBS})
    except ValueError as error:
        return _refuse(str(error), 2)
    if options.compile_only:
        return _compile(setting, geometry, options)
    if options.host:
        return _refuse("--host is for --compile-only: what runs here is compiled for here", 2)
    try:
        device = current_device()
    except RuntimeError as error:
        return _refuse(f"{error}; --compile-only ARCH works without one", 3)
    reason = _why_not(setting, geometry, device, options.engine)
    if reason:
        return _refuse(f"{setting} cannot run on {device.name}: {reason}", 2)
    return _check_and_time(setting, geometry, device, options)


def _why_not(setting: Setting, geometry: Geometry, device: Device, engine: str | None) -> str | None:
    """Why a setting cannot run, by what is known without compiling."""
    try:
        chosen = engine_for(geometry, device.arch, engine, setting.consumer_warps)
        return infeasible(setting, geometry, device, chosen)
    except ValueError as error:
        return str(error)


def _refuse(message: str, code: int) -> int:
    print(f"mjolnir.kernel: {message}", file=sys.stderr)
    return code


def _compile(setting: Setting, geometry: Geometry, options: argparse.Namespace) -> int:
    from mjolnir.kernel.cache import build, build_plan

    arch = options.compile_only
    device = Device(arch, f"any {arch}", sm_count=1)
    reason = _why_not(setting, geometry, device, options.engine)
    if reason:
        return _refuse(f"{setting} cannot run on {arch}: {reason}", 2)
    variant = Variant.of(setting, geometry, device, engine=options.engine)
    plan, built = build_plan(arch, host=options.host), build(variant, host=options.host)
    print(f"{arch} {_described(geometry, variant)} {resolve(setting, geometry, device, variant.shape)}")
    print(
        f"  {built.registers} registers, {built.spill_bytes} bytes spilled, "
        f"{built.smem_bytes} bytes of shared memory a CTA, compiled in {built.seconds:.2f} s, {built.path}"
    )
    print(f"  plan: {plan.registers} registers, compiled in {plan.seconds:.2f} s, {plan.path}")
    return 0 if built.spill_bytes == 0 else 1


def _described(geometry: Geometry, variant: Variant) -> str:
    shape = variant.shape
    return f"{geometry}, engine {shape.name} ({shape.rows} rows an item, {shape.blocks} a KV head)"


def _check_and_time(setting: Setting, geometry: Geometry, device: Device, options: argparse.Namespace) -> int:
    import torch

    from mjolnir.kernel.reference import attention_f32
    from mjolnir.kernel.runner import Runner
    from mjolnir.kernel.timing import replay_micros, rotating_inputs
    from mjolnir.kernel.tolerance import excess

    capacity = -(-options.context // geometry.page_size) * geometry.page_size
    runner = Runner(setting, geometry, device, max_batch=options.batch, capacity=capacity, engine=options.engine)
    size = options.batch * options.context * geometry.kv_bytes_per_token
    sets = rotating_inputs(geometry, options.batch, options.context, options.layout, options.seed)
    outs = [torch.full_like(item.q, float("nan")) for item in sets]
    runner.plan(sets[0].seq_lens)

    def launch(number: int) -> None:
        item = sets[number]
        runner.run(
            item.q,
            item.k,
            item.v,
            item.block_table,
            item.seq_lens,
            outs[number],
            item.k_scale,
            item.v_scale,
            item.scale,
        )

    micros = statistics.median(replay_micros(launch, len(sets), options.repeats))
    wanted, _ = attention_f32(**sets[0].arguments())
    error = excess(outs[0], wanted, geometry)
    where = f"batch {options.batch} context {options.context} {options.layout}"
    resolved = resolve(setting, geometry, device, runner.engine)
    print(f"{device.name} {_described(geometry, runner.variant)} {where}")
    print(f"  {resolved}, grid {runner.grid}, workspace {runner.workspace_bytes} bytes")
    print(f"  {micros:.2f} us, {size / micros / 1e3:.0f} GB/s of KV; largest error {error:.3f} of its bound")
    if not error <= 1:
        return _refuse("the output is WRONG: its error is above the bound", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
