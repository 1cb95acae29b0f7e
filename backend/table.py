"""The defaults table: which setting serves which device, geometry and batch bucket, and on what evidence.

A table is JSON of schema `mjolnir.defaults/1`. Reading one never raises: what is wrong in a file or a row is
skipped with one warning, and the rest serves. Changing one is strict, so that nothing of the user's gets lost.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mjolnir.backend.key import Key as Key
from mjolnir.backend.key import clip, members, short
from mjolnir.kernel.engine import ENGINES, Engine, engine_for
from mjolnir.kernel.geometry import Geometry
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.variant import infeasible

log = logging.getLogger(__name__)

SCHEMA = "mjolnir.defaults/1"

CERTIFICATE = (
    "method",
    "tag",
    "records",
    "ratio_default",
    "ratio_incumbent",
    "instances",
    "noise_floor",
    "alpha",
    "attempt",
    "worst_point",
    "correctness",
    "kernel_hash",
    "policy",
    "versions",
)
"""The members of a promoted row's certificate."""

MAX_BYTES = 16 * 1024 * 1024
MAX_ROWS = 10_000
"""What is larger is no table of ours, and would hold up a server's start; a card and model have a dozen rows."""

PROBLEMS_SHOWN = 3
"""How many problems of a file its warning spells out."""

VARIABLE = "MJOLNIR_DEFAULTS"
"""The environment variable that names the user table."""


def packaged_path() -> Path:
    """The table that comes with the package."""
    return Path(__file__).with_name("defaults.json")


def user_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's table: `$MJOLNIR_DEFAULTS`, else the one in the user's config folder."""
    if named := environ.get(VARIABLE):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("mjolnir", appauthor=False)) / "defaults.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        key: what it is for.
        engine: the engine that runs it.
        setting: the knobs; those that the file leaves out have their default.
        certificate: the evidence, as it is in the file.

    Raises:
        ValueError: an engine that is unknown or cannot run the key's geometry on its device, knobs that do not fit
            there, or a certificate that is no plain JSON.
    """

    key: Key
    engine: str
    setting: Setting
    certificate: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"value: engine = {short(self.engine)} is unknown; there are {', '.join(ENGINES)}")
        engine = self.engine_on(self.key.geometry, self.key.arch)
        if reason := infeasible(self.setting, self.key.geometry, self.key.hardware, engine):
            raise ValueError(f"value: {self.setting} cannot run: {reason}")
        try:
            _json(dict(self.certificate), sort=True).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"certificate: not plain JSON ({error})") from None
        if not isinstance(self.certificate.get("kernel_hash"), str | None):
            raise ValueError("certificate: kernel_hash is not a string")

    @classmethod
    def from_dict(cls, values: object) -> Row:
        """The inverse of `as_dict`.

        Raises:
            ValueError: whatever is wrong, said in one line.
        """
        row = members(values, "row", ("key", "value", "certificate"))
        value, certificate = row["value"], row["certificate"]
        if not isinstance(value, dict) or "engine" not in value:
            raise ValueError("value: not an object that names an engine")
        if "fault" in value:
            raise ValueError("value: fault is for canaries and never served")
        if not isinstance(certificate, dict):
            raise ValueError("certificate: not an object")
        knobs = {name: entry for name, entry in value.items() if name != "engine"}
        return cls(Key.from_dict(row["key"]), value["engine"], Setting.from_dict(knobs), certificate)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        value = {"engine": self.engine, **self.setting.as_dict()}
        return {"key": self.key.as_dict(), "value": value, "certificate": dict(self.certificate)}

    def engine_on(self, geometry: Geometry, arch: str) -> Engine:
        """The row's engine with the items that it makes of `geometry`.

        Raises:
            ValueError: it cannot run the geometry there.
        """
        try:
            return engine_for(geometry, arch, self.engine)
        except ValueError as error:
            raise ValueError(f"value: {error}") from None

    @property
    def kernel_hash(self) -> str:
        """The kernel sources that were measured; empty when the certificate does not say."""
        return self.certificate.get("kernel_hash") or ""

    def missing_evidence(self) -> tuple[str, ...]:
        """Members that the certificate of a promoted row would have and this one lacks."""
        return tuple(name for name in CERTIFICATE if name not in self.certificate)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in the order of their keys.

    Attributes:
        name: what messages call it, such as "packaged table".
        rows: the rows that serve, sorted by key, each key once.
        problems: what was skipped in reading, one sentence each.
    """

    name: str
    rows: tuple[Row, ...] = ()
    problems: tuple[str, ...] = ()
    index: Mapping[Key, Row] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {row.key: row for row in self.rows}
        if len(index) < len(self.rows):
            raise ValueError(f"{self.name}: two rows have the same key")
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: row.key)))
        object.__setattr__(self, "index", index)

    @classmethod
    def parse(cls, data: bytes, name: str, where: str = "") -> Table:
        """Read a file's bytes. Never raises: what is wrong is skipped, and told in one warning; `where` opens it."""
        rows: dict[Key, Row] = {}
        problems = []
        try:
            entries = _entries(data)
        except (ValueError, RecursionError) as error:
            return cls._with_problems(name, (), (f"{where}not a table: {clip(str(error))}",))
        for number, entry in enumerate(entries):
            try:
                row = Row.from_dict(entry)
                if row.key in rows:
                    raise ValueError("key: another row has the same one")
                rows[row.key] = row
            except (ValueError, TypeError, RecursionError) as error:
                problems.append(f"{where}row {number} is skipped: {clip(str(error))}")
        return cls._with_problems(name, rows.values(), problems)

    @classmethod
    def read(cls, path: Path, name: str | None = None, *, missing_ok: bool = False) -> Table:
        """Read a file, or an empty table with one warning where it cannot be read. Problems name the file."""
        name = name or str(path)
        where = "" if name == str(path) else f"{path}: "
        try:
            facts = path.stat()
            # Opening a pipe or a device could block a server's start for ever.
            if not stat.S_ISREG(facts.st_mode):
                raise OSError("not a regular file")
            if facts.st_size > MAX_BYTES:
                raise OSError(f"{facts.st_size} bytes, above the limit of {MAX_BYTES}")
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError as error:
            if missing_ok:
                return cls(name)
            return cls._with_problems(name, (), (f"{where}cannot be read: {error.strerror}",))
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return cls._with_problems(name, (), (f"{where}cannot be read: {clip(reason)}",))
        return cls.parse(data, name, where)

    @classmethod
    def _with_problems(cls, name: str, rows: Iterable[Row], problems: Iterable[str]) -> Table:
        table = cls(name, tuple(rows), tuple(problems))
        if table.problems:
            shown = "; ".join(table.problems[:PROBLEMS_SHOWN])
            more = len(table.problems) - PROBLEMS_SHOWN
            log.warning(
                "%s: %s%s; %d rows serve", name, shown, f"; and {more} more" if more > 0 else "", len(table.rows)
            )
        return table

    def get(self, key: Key) -> Row | None:
        """The row of exactly this key."""
        return self.index.get(key)

    def with_row(self, row: Row) -> Table:
        """This table with `row` added, or in the place of the row that has its key.

        Raises:
            ValueError: reading skipped something, which writing the table would lose.
        """
        self._require_whole()
        return Table(self.name, tuple({**self.index, row.key: row}.values()))

    def without(self, key: Key) -> Table:
        """This table without the row of `key`.

        Raises:
            KeyError: there is no such row.
            ValueError: reading skipped something, which writing the table would lose.
        """
        self._require_whole()
        if key not in self.index:
            raise KeyError(f"{self.name} has no row for {key}")
        return Table(self.name, tuple(row for row in self.rows if row.key != key))

    def _require_whole(self) -> None:
        if self.problems:
            raise ValueError(f"{self.name} is not changed before it is repaired: {self.problems[0]}")

    def render(self) -> bytes:
        """The file: one line for a row's key, one for its value, one for each member of its certificate.

        So one row is one hunk of a diff, at least while a certificate's members change together.
        Equal tables give equal bytes, and `parse` gives the same rows back.
        """
        body = ",\n".join(_render_row(row) for row in self.rows)
        listed = f"[\n{body}\n  ]" if body else "[]"
        return f'{{\n  "schema": {_json(SCHEMA)},\n  "rows": {listed}\n}}\n'.encode()


def _render_row(row: Row) -> str:
    values = row.as_dict()
    evidence = sorted(values["certificate"].items())
    members = ",\n".join(f"        {_json(name)}: {_json(entry, sort=True)}" for name, entry in evidence)
    certificate = f"{{\n{members}\n      }}" if members else "{}"
    return (
        f'    {{\n      "key": {_json(values["key"])},\n      "value": {_json(values["value"])},\n'
        f'      "certificate": {certificate}\n    }}'
    )


def _entries(data: bytes) -> list[object]:
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    content = json.loads(data.decode("utf-8-sig"))
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"schema is {short(found)}, expected {SCHEMA!r}")
    rows = content.get("rows")
    if not isinstance(rows, list):
        raise ValueError(f"rows is {short(rows)}, expected a list")
    if len(rows) > MAX_ROWS:
        raise ValueError(f"{len(rows)} rows, above the limit of {MAX_ROWS}")
    return rows


def _json(value: object, *, sort: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=sort)
