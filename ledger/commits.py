"""The commit of a record: a pure function of (record bytes, parent).

So importing the same lines on another machine makes the same commits, and the id is known before git has it.
Whatever changes in this module changes commit ids, and needs a new record schema: what an older schema's commits look
like stays as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mjolnir.ledger.record import PLAIN_SCHEMA, Record
from mjolnir.ledger.spelling import canonical

AUTHOR = "mjolnir <ledger@mjolnir.invalid>"
PREFIX = "refs/mjolnir/ledger"

_SUBJECT_LENGTH = 160
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Named one by one: what Python calls printable changes with its version, and a commit id must not."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of `record`.

    Attributes:
        id: its object id.
        parent: id of the commit of the writer's previous record; empty for the first.
        environment: blob id of `environment.json`, one for all commits of a writer.
    """

    record: Record
    id: str
    parent: str
    environment: str


def commit_of(record: Record, parent: str, environment: str, algorithm: str = "sha1") -> Commit:
    """The commit of `record` on `parent`; for a writer's first record both `parent` and `environment` are empty.

    Args:
        record: the record.
        parent: commit id of the writer's previous record.
        environment: blob id of the writer's `environment.json`, as in the parent's `Commit`.
        algorithm: the repository's object format, "sha1" or "sha256".
    """
    if record.environment is not None:
        environment = _object_id("blob", canonical(record.environment), algorithm)
    blob = _object_id("blob", record.line, algorithm)
    tree = b"".join(
        b"100644 " + name + b"\0" + bytes.fromhex(entry)
        for name, entry in ((b"environment.json", environment), (b"record.json", blob))
    )
    header = f"tree {_object_id('tree', tree, algorithm)}\n"
    if parent:
        header += f"parent {parent}\n"
    signature = _signature(record)
    header += f"author {signature}\ncommitter {signature}\n\n"
    return Commit(record, _object_id("commit", header.encode() + message(record), algorithm), parent, environment)


def ref_of(record: Record) -> str:
    """The ref that `record` lies on: one writer, one ref."""
    return f"{PREFIX}/{record.tag}/{record.writer}"


def subject(record: Record) -> str:
    """One line: the kind, then what matters of it, such as `trial 42 keep 0.873 ctas_per_sm=2 kv_stages=4`."""
    words = " ".join(
        str(word) for word in (record.kind, *_words(record.kind, record.content)) if word not in ("", None)
    )
    clean = _CONTROL.sub(" ", words)
    return clean if len(clean) <= _SUBJECT_LENGTH else clean[: _SUBJECT_LENGTH - 3] + "..."


def knobs_of(body: Mapping[str, Any]) -> str:
    """The setting of a trial in one line: what it changes of the default where it says so, else all of it."""
    changed = body.get("changed")
    if isinstance(changed, Mapping):
        return _assignments(changed) or "default"
    return _assignments(body.get("setting"))


def message(record: Record) -> bytes:
    """The commit message: subject, and trailers for machines.

    The hash, of which certificates cite the whole, finds the commit; all else is in the record itself, and its ref
    names tag and writer.
    """
    if record.schema != PLAIN_SCHEMA:
        return f"{subject(record)}\n\nMjolnir-Record: {record.sha256[:16]}\n".encode()
    trailers = {
        "Mjolnir-Tag": record.tag,
        "Mjolnir-Writer": record.writer,
        "Mjolnir-Seq": record.seq,
        "Mjolnir-Lamport": record.lamport,
        "Mjolnir-Sha256": record.sha256,
    }
    if record.kind == "trial":
        trailers["Mjolnir-Trial"] = record.content["trial"]
    lines = (f"{name}: {value}\n" for name, value in trailers.items())
    return f"{subject(record)}\n\n{''.join(lines)}".encode()


def stream(commits: Iterable[Commit]) -> Iterable[bytes]:
    """What `git fast-import` reads to make `commits`, which lie in the order of their chains."""
    started: set[str] = set()
    for commit in commits:
        record = commit.record
        ref = ref_of(record)
        if ref not in started and not commit.parent:
            # Without this an existing ref would silently become the parent of a first record.
            yield f"reset {ref}\n\n".encode()
        text = message(record)
        yield f"commit {ref}\nauthor {_signature(record)}\ncommitter {_signature(record)}\n".encode()
        yield b"data %d\n%b" % (len(text), text)
        if ref not in started and commit.parent:
            yield f"from {commit.parent}\n".encode()
        started.add(ref)
        if record.environment is not None:
            yield _file("environment.json", canonical(record.environment))
        yield _file("record.json", record.line)


def _file(name: str, content: bytes) -> bytes:
    return b"M 100644 inline %b\ndata %d\n%b\n" % (name.encode(), len(content), content)


def _signature(record: Record) -> str:
    return f"{AUTHOR} {int(datetime.fromisoformat(record.time).timestamp())} +0000"


def _object_id(kind: str, content: bytes, algorithm: str) -> str:
    return hashlib.new(algorithm, f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def _words(kind: str, body: Mapping[str, Any]) -> Iterable[object]:
    """What the subject says after the kind."""
    match kind:
        case "trial":
            value, source = body.get("ratio"), body.get("source")
            shown = f"{value:.3f}" if body["status"] == "measured" and _is_number(value) else body["status"]
            what = source.get("message") if isinstance(source, Mapping) else None
            return body["trial"], body.get("verdict", ""), shown, what or knobs_of(body)
        case "campaign":
            device, workload = body.get("device"), body.get("workload")
            return _name(device), _name(workload), "simulated" if body.get("simulated") is True else ""
        case "epoch":
            return (body.get("epoch"),)
        case "noise":
            return (body.get("number"),)
        case "canary":
            return body.get("fault"), "rejected" if body.get("rejected") is True else "PASSED"
        case "shootout":
            return _bucket(body), f"{len(body['candidates'])} candidates" if _is_list(body, "candidates") else ""
        case "confirmation":
            return _bucket(body), "instance", body.get("number"), body.get("status")
        case "promotion" | "demotion":
            return _bucket(body), body.get("decision"), _assignments(body.get("setting"))
        case "note":
            return (body.get("text"),)
        case "end":
            return body.get("reason"), f"{body['trials']} trials" if "trials" in body else ""
        case _:
            return ()


def _assignments(setting: object) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items()) if isinstance(setting, Mapping) else ""


def _bucket(body: Mapping[str, Any]) -> str:
    return f"bucket {body['bucket']}" if body.get("bucket") is not None else ""


def _name(value: object) -> object:
    return value.get("name", "") if isinstance(value, Mapping) else ""


def _is_list(body: Mapping[str, Any], key: str) -> bool:
    return isinstance(body.get(key), list)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)
