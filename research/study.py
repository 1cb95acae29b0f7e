"""A campaign's trials as a study in Optuna's storage, for its dashboard and for whatever else reads studies."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import KNOBS
from mjolnir.research.answer import Answer, Failure, UsageFailure, understood
from mjolnir.research.hints import command
from mjolnir.research.journal import as_mapping
from mjolnir.research.naming import counted
from mjolnir.research.removal import require_records
from mjolnir.research.request import Request
from mjolnir.research.summary import summarize
from mjolnir.tuner.bench import Status

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from mjolnir.ledger import Ledger

TOLD = ("geometry", "placement", "device", "workload", "default", "options", "epoch")
"""What of the summary goes into the study's attributes."""

PRUNED = (Status.INFEASIBLE, Status.RACED)
"""Not measured, and nothing went wrong."""


def study(ledger: Ledger, tag: str, storage: str) -> Answer:
    """Write `tag` as the study `<tag>` into `storage`; one that is there takes up the trials that it lacks.

    The value is the time over the built-in default's, weighted over all points, to be minimized; the ratio of each
    bucket, the status, its reason and the record's hash are attributes. Parameters are the knobs as they were proposed.

    Args:
        ledger: holds the campaign.
        tag: its name.
        storage: URL of a database, such as sqlite:///study.db.

    Raises:
        Failure: there is no such campaign, or the storage cannot be written.
        UsageFailure: `storage` is no URL that Optuna knows, or holds another study of this name.
    """
    require_records(ledger, tag)
    records = [as_mapping(record) for record in ledger.records(tag)]
    if not records:
        shown = command(ledger, "autoresearch", "list")
        raise Failure(f"there is no tag {tag} in {ledger.live}; `{shown}` shows the tags")
    with understood(tag):
        return _study(records, tag, storage)


def _study(records: Sequence[Mapping[str, Any]], tag: str, storage: str) -> Answer:
    try:
        summary = summarize(records)
    except ValueError as error:
        raise Failure(str(error)) from error
    place = str(Request(storage=storage).shown_storage)
    trials = [record for record in records if record["kind"] == "trial"]
    added = _write(_open(tag, storage, place), summary, trials, place)
    data = {"tag": tag, "study": tag, "storage": place, "trials": len(trials), "added": added}
    return Answer(data, f"{counted(added, 'trial')} added to the study {tag} in {place}; it holds {len(trials)}")


def _open(name: str, storage: str, place: str) -> Study:
    import optuna
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    optuna.logging.set_verbosity(logging.WARNING)
    try:
        return optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
    except (ArgumentError, ImportError) as error:
        raise UsageFailure(f"--storage {place} is no database that can be opened; write sqlite:///study.db") from error
    except (SQLAlchemyError, OSError, RuntimeError) as error:
        raise Failure(f"the storage {place} cannot be opened: {_first_line(error)}") from error


def _write(study: Study, summary: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], place: str) -> int:
    """Add what the study lacks; returns how many trials that is."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        there = [trial.user_attrs.get("record") for trial in study.get_trials(deepcopy=False)]
        wanted = [trial["hash"] for trial in trials]
        if there != wanted[: len(there)]:
            raise UsageFailure(f"{place} holds another study named {study.study_name}; name another storage")
        _describe(study, summary)
        lines = _lines([trial["body"]["setting"] for trial in trials])
        study.add_trials([_trial(trial, lines) for trial in trials[len(there) :]])
    except (SQLAlchemyError, OSError) as error:
        raise Failure(f"the study could not be written to {place}: {_first_line(error)}") from error
    return len(trials) - len(there)


def _describe(study: Study, summary: Mapping[str, Any]) -> None:
    """Name the value, and say what was asked."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of metrics are marked as experimental
        study.set_metric_names(["time / built-in default"])
    for name in TOLD:
        study.set_user_attr(name, summary[name])


def _trial(record: Mapping[str, Any], lines: Mapping[str, Any]) -> FrozenTrial:
    """Optuna's trial: complete when measured, pruned when it did not fit or was dropped, failed otherwise."""
    import optuna
    from optuna.trial import TrialState

    body = record["body"]
    status, setting = Status(body["status"]), body["setting"]
    measured = status is Status.MEASURED
    state = TrialState.COMPLETE if measured else TrialState.PRUNED if status in PRUNED else TrialState.FAIL
    trial = optuna.create_trial(
        state=state,
        value=body["ratio"] if measured else None,
        params=dict(setting),
        distributions={name: lines[name] for name in setting},
        user_attrs=_attributes(record),
    )
    trial.datetime_complete = _naive(record["time"])
    seconds = sum(float(value) for value in (body.get("phases") or {}).values())
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=seconds)
    return trial


def _lines(settings: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """The distribution of each knob: its domain, and what was tried when the domain was another one."""
    domains = {knob.name: knob.values for knob in KNOBS}
    names = dict.fromkeys(name for setting in settings for name in setting)
    tried = {name: {setting[name] for setting in settings if name in setting} for name in names}
    return {name: _line(sorted({*domains.get(name, ()), *tried[name]})) for name in names}


def _line(values: Sequence[int]) -> Any:
    """A range where there is every whole number, else a choice."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    low, high = values[0], values[-1]
    whole = len(values) == high - low + 1 and len(values) > 2
    return IntDistribution(low, high) if whole else CategoricalDistribution(tuple(values))


def _attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    body = record["body"]
    ratios = {f"ratio batch {bucket}": ratio for bucket, ratio in (body.get("ratios") or {}).items()}
    said = {name: body[name] for name in ("trial", "status", "verdict", "reason", "epoch", "bucket")}
    return {**said, "record": record["hash"], "origin": body["proposal"]["origin"], **ratios}


def _naive(time: str) -> datetime:
    """A record's time, which is UTC, as Optuna keeps times: without a zone."""
    return datetime.fromisoformat(time).replace(tzinfo=None)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
