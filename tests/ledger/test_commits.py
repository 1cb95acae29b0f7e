"""Commits as a function of records: the ids are what git makes, today and for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjolnir.ledger.commits import commit_of, message, subject
from mjolnir.ledger.parsing import parse
from tests.ledger.samples import trial
from tests.ledger.test_record import TEXT, VALUES, make, plain


def test_commit_ids_never_change() -> None:
    first = plain("trial", trial(42, verdict="keep", ratio=0.8734))
    root = commit_of(first, "", "")
    second = commit_of(plain("note", {"text": "so"}, 1, first.sha256), root.id, root.environment)
    assert root.id == "faaee6167f8e1853b8d25f9630722f0a38118527"
    assert second.id == "10378a985cbac1e3a6751f6f21d5a4f86d82ab97"
    assert second.environment == root.environment
    assert commit_of(first, "", "", "sha256").id == "b273a93fd4a15d1cd004abe5a6e190322b9df4506395ba890088e96db0ac7a16"


def test_commit_ids_of_packed_records_never_change() -> None:
    first = make("trial", trial(42, verdict="keep", ratio=0.8734, times=list(range(100, 120))))
    root = commit_of(first, "", "")
    second = commit_of(make("note", {"text": "so"}, 1, first.sha256), root.id, root.environment)
    assert root.id == "848ea9d37b774a6b742d89c8e9b8005abe23db2d"
    assert second.id == "8b5e7b6ff8dbe9d2b0985207cca440d5bd97d324"


def test_the_message_says_what_matters() -> None:
    body = trial(42, verdict="keep", ratio=0.8734, changed={"kv_stages": 4, "ctas_per_sm": 1})
    record = make("trial", body)
    assert message(record).decode() == (
        f"trial 42 keep 0.873 ctas_per_sm=1 kv_stages=4\n\nMjolnir-Record: {record.sha256[:16]}\n"
    )
    record = plain("trial", body)
    assert message(record).decode() == (
        "trial 42 keep 0.873 ctas_per_sm=1 kv_stages=4\n"
        "\n"
        "Mjolnir-Tag: tag\n"
        "Mjolnir-Writer: abcdefghij\n"
        "Mjolnir-Seq: 0\n"
        "Mjolnir-Lamport: 1\n"
        f"Mjolnir-Sha256: {record.sha256}\n"
        "Mjolnir-Trial: 42\n"
    )


@pytest.mark.parametrize(
    ("kind", "body", "line"),
    [
        ("trial", trial(1, changed={}), "trial 1 discard 1.001 default"),
        ("trial", trial(5, status="crashed", ratio=None), "trial 5 discard crashed kv_stages=0"),
        ("trial", {"trial": 6, "status": "hung", "setting": {"pdl": 1}}, "trial 6 hung pdl=1"),
        ("trial", trial(7, ratio=10**400), "trial 7 discard measured kv_stages=2"),
        ("trial", trial(8, source={"message": "one barrier\nless"}), "trial 8 discard 1.008 one barrier less"),
        ("canary", {"fault": "mask", "rejected": True}, "canary mask rejected"),
        ("canary", {"fault": "mask", "rejected": False}, "canary mask PASSED"),
        ("campaign", {"device": {"name": "NVIDIA H200"}, "workload": {"name": "decode8"}, "simulated": True},
         "campaign NVIDIA H200 decode8 simulated"),
        ("epoch", {"epoch": "0123456789abcdef"}, "epoch 0123456789abcdef"),
        ("noise", {"number": 3}, "noise 3"),
        ("shootout", {"bucket": 8, "candidates": [{}, {}]}, "shootout bucket 8 2 candidates"),
        ("confirmation", {"bucket": 8, "number": 4, "status": "measured"}, "confirmation bucket 8 instance 4 measured"),
        ("promotion", {"bucket": 1, "decision": "promote", "setting": {"pdl": 1}}, "promotion bucket 1 promote pdl=1"),
        ("note", {"text": "two\nlines\tand \x00"}, "note two lines and  "),
        ("note", {"text": "x" * 500}, "note " + "x" * 152 + "..."),
        ("end", {"reason": "trials", "trials": 150}, "end trials 150 trials"),
        ("window", {}, "window"),
    ],
)  # fmt: skip
def test_subjects(kind: str, body: dict[str, Any], line: str) -> None:
    assert subject(make(kind, body)) == line


@given(
    st.sampled_from(["campaign", "canary", "shootout", "promotion", "note", "end", "noise", "confirmation"]),
    st.dictionaries(
        TEXT | st.sampled_from(["device", "workload", "bucket", "candidates", "setting", "text", "reason", "trials"]),
        VALUES,
    ),
)
def test_any_body_has_one_line_and_the_same_after_reading(kind: str, body: dict[str, Any]) -> None:
    record = make(kind, body or {"a": 1})
    assert "\n" not in subject(record)
    assert message(parse(record.line)) == message(record)
    assert commit_of(parse(record.line), "", "") == commit_of(record, "", "")
