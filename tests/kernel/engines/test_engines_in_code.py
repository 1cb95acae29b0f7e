"""What the engines come to in machine code: their products, and that no class of variants spills; no GPU needed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mjolnir.backend.table import Row, packaged_path
from mjolnir.kernel.device import ARCHITECTURES, H200
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import answers, built_in
from mjolnir.kernel.variant import Variant, warpgroup_registers
from tests.kernel.engines.machine_code import Code, Compiler

pytest.importorskip("cutlass", reason="the extra `dsl` is not installed")
DEFAULT = Setting()

CLASSES: dict[str, dict[str, Any]] = {
    "8/8xd128": {},
    "32/8xd128": {},
    "64/8xd128": {},
    "128/8xd128": {},
    "16/2xd256": {},
    "32/8xd128,q=4": {},
    "64/8xd128,q=4": {},
    "64/8xd128,q=8": {},
    "16/2xd256,q=4": {},
    "32/8xd128,query=fp8": {"q_mul": True},
    "32/8xd128,page=16,dtype=f16": {"o_mul": True, "lse": True},
}
"""Classes of variants, and what is optional in them."""

ROWS = json.loads(packaged_path().read_text())["rows"]


def products(made: Code, name: str) -> int:
    """How many products of a kind the code has."""
    return sum(count for opcode, count in made.opcodes().items() if opcode.split(".")[0] == name)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("text", CLASSES)
def test_the_default_spills_in_no_class(code: Compiler, arch: str, text: str) -> None:
    made = code(DEFAULT, arch, Geometry.parse(text), **CLASSES[text])
    assert made.resources.frame_bytes == 0
    assert made.ptx.count(".entry") == 1


@pytest.mark.parametrize("batch", [1, 256])
@pytest.mark.parametrize("text", ["32/8xd128", "16/2xd256", "16/2xd256,query=fp8", "32/8xd256,page=16,query=fp8"])
def test_what_the_rule_says_spills_nothing(code: Compiler, text: str, batch: int) -> None:
    geometry = Geometry.parse(text)
    assert code(built_in(geometry, H200, batch), "sm_90a", geometry).resources.frame_bytes == 0


@pytest.mark.parametrize("options", [{"q_mul": True}, {"q_mul": True, "o_mul": True, "lse": True}], ids=str)
def test_where_the_default_spills_another_answer_of_the_rule_does_not(code: Compiler, options: dict[str, Any]) -> None:
    geometry = Geometry.parse("40/8xd256,page=16,query=fp8")
    assert 0 in [
        code(said, "sm_90a", geometry, **options).resources.frame_bytes for said in answers(geometry, H200, 256)
    ]


@pytest.mark.parametrize("values", ROWS, ids=lambda values: str(values["key"]["batch"]))
def test_no_row_of_the_packaged_table_spills(code: Compiler, values: object) -> None:
    row = Row.from_dict(values)
    made = code.of(Variant.of(row.setting, row.key.geometry, row.key.hardware, engine=row.engine))
    assert made.resources.frame_bytes == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("text", "halves"), [("8/8xd128", 1), ("64/8xd128", 1), ("128/8xd128", 2), ("16/2xd256", 1)])
def test_engine_warp_multiplies_with_mma(code: Compiler, arch: str, text: str, halves: int) -> None:
    """A warp's 16 tokens of a tile: S takes two products of 16 x 8 for 16 elements of a head, O one for each half."""
    geometry = Geometry.parse(text)
    made = code(DEFAULT, arch, geometry, engine="warp")
    slices = geometry.head_dim // 16
    scores = 2 * slices  # tokens are columns, and a half or both are the 16 rows
    assert products(made, "HMMA") == scores + halves * slices
    assert products(made, "HGMMA") == 0


@pytest.mark.parametrize(
    ("text", "groups"), [("64/8xd128,q=4", 2), ("64/8xd128,q=8", 3), ("16/2xd256", 2), ("16/2xd256,q=4", 3)]
)
def test_engine_wgmma_multiplies_with_warpgroups_in_few_groups(code: Compiler, text: str, groups: int) -> None:
    """S takes a product for 16 elements of a head; O takes 4 of 16 tokens for 64 elements, 64 to 256 in a group.

    Code that the compiler had to put in order has one group for every product.
    """
    geometry = Geometry.parse(text)
    made = code(DEFAULT, "sm_90a", geometry)
    assert made.variant.engine == "wgmma"
    assert products(made, "HGMMA") == geometry.head_dim // 16 + 4 * geometry.head_dim // 64
    assert products(made, "HMMA") == 0
    assert made.opcodes()["WARPGROUP.ARRIVE"] == groups


@pytest.mark.parametrize("text", ["64/8xd128,q=4", "16/2xd256,q=4"])
def test_the_warpgroups_of_engine_wgmma_share_registers(code: Compiler, text: str) -> None:
    made = code(DEFAULT, "sm_90a", Geometry.parse(text))
    computing, loading = warpgroup_registers(DEFAULT.ctas_per_sm)
    assert re.findall(r"setmaxnreg\.(inc|dec)\S+\s+(\d+)", made.ptx) == [("dec", str(loading)), ("inc", str(computing))]
    assert set(re.findall(r"\.(?:req|max)ntid (\d+)", made.ptx)) == {"256"}
    assert made.resources.registers == 65536 // 2 // 256
