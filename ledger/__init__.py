"""The ledger: every record of every campaign, durable, in git, and found again.

Writing:

>>> import tempfile
>>> from mjolnir import ledger
>>> folder = tempfile.TemporaryDirectory()
>>> with ledger.open(folder.name) as book, book.writer("h200-decode8", {"driver": "580.95"}) as writer:
...     for number, stages in enumerate((2, 4, 5), start=1):
...         body = {"trial": number, "status": "measured", "bucket": 8, "setting": {"kv_stages": stages}}
...         record = writer.append("trial", {**body, "ratio": 1 - stages / 100, "ratios": {8: 1 - stages / 100}})
...     note = writer.append("note", {"text": "first light", "about": ""})

Asking; what `open` is given is the folder, and without one it is found as the `mjolnir` command finds it:

>>> book = ledger.open(folder.name)
>>> [(summary.tag, summary.trials, summary.best[8]) for summary in book.tags()]
[('h200-decode8', 3, Best(ratio=0.95, trial=3))]
>>> [record.kind for record in book.records("h200-decode8")]
['trial', 'trial', 'trial', 'note']
>>> [record.body["trial"] for record in book.trials("h200-decode8", sort="ratio", limit=2)]
[3, 2]
>>> book.trials("h200-decode8", status="measured", knobs={"kv_stages": 4})[0].body["ratio"]
0.96

As pandas, a row a trial, a column a knob:

>>> frame = book.to_dataframe("h200-decode8")
>>> frame.loc[frame["kv_stages"] > 2, "ratio_8"].tolist()
[0.96, 0.95]
>>> book.close()
>>> folder.cleanup()

The live file makes a record durable, the refs `refs/mjolnir/ledger/<tag>/<writer>` share it, the index finds it.
"""

from mjolnir.ledger.errors import LedgerError, LedgerFull, RecordError
from mjolnir.ledger.importer import Imported, read_file
from mjolnir.ledger.ledger import Ledger, open
from mjolnir.ledger.names import check_tag
from mjolnir.ledger.parsing import parse
from mjolnir.ledger.place import Place, locate
from mjolnir.ledger.record import KINDS, SCHEMA, Record
from mjolnir.ledger.summary import Best, TagSummary
from mjolnir.ledger.tsv import tsv_text
from mjolnir.ledger.verify import Problem, Verification
from mjolnir.ledger.wanted import Wanted
from mjolnir.ledger.writer import Writer

__all__ = [
    "KINDS",
    "SCHEMA",
    "Best",
    "Imported",
    "Ledger",
    "LedgerError",
    "LedgerFull",
    "Place",
    "Problem",
    "Record",
    "RecordError",
    "TagSummary",
    "Verification",
    "Wanted",
    "Writer",
    "check_tag",
    "locate",
    "open",
    "parse",
    "read_file",
    "tsv_text",
]
