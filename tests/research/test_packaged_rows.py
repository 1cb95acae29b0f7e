"""The table that comes with the package, as it is: whole, and each row from committed records."""

from __future__ import annotations

import json
from pathlib import Path

from mjolnir.backend.table import Table, packaged_path
from mjolnir.kernel.variant import infeasible
from mjolnir.tuner import uneven
from tests.research.test_cli import call


def test_each_row_follows_from_the_committed_runs(tmp_path: Path) -> None:
    table = Table.read(packaged_path())
    assert not table.problems
    code, out, err = call("defaults", "verify", "--ledger", tmp_path / "none", "--json")
    assert code == 0, err
    assert len(json.loads(out)["rows"]) == len(table.rows)


def test_each_row_can_run_and_serves_uneven_lengths() -> None:
    for row in Table.read(packaged_path()).rows:
        geometry, device = row.key.geometry, row.key.hardware
        assert infeasible(row.setting, geometry, device, row.engine_on(geometry, device.arch)) is None
        assert uneven.serves(row.setting, row.key.batch, geometry, device)
