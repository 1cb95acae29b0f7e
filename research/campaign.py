"""One campaign from the command to its end: ledger, bench, tuner, promotion, summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mjolnir import ledger as ledgers
from mjolnir.kernel.knobs import Setting
from mjolnir.kernel.rule import built_in
from mjolnir.kernel.variant import resolve
from mjolnir.research import benches, places, planning, sharing
from mjolnir.research.answer import Answer, Failure, MissingFailure, UsageFailure
from mjolnir.research.bodies import environment, epoch_body, open_records
from mjolnir.research.ending import told
from mjolnir.research.hints import SCRATCH, command
from mjolnir.research.journal import LedgerJournal, as_mapping, decided_elsewhere
from mjolnir.research.naming import Names
from mjolnir.research.promote import REPLAY_REFUSED
from mjolnir.research.removal import require_in_force
from mjolnir.research.request import Request, with_incumbents
from mjolnir.research.stopping import Running
from mjolnir.research.tags import checked_tag, fresh_tag
from mjolnir.tuner import coordinator
from mjolnir.tuner.bench import BenchFailure
from mjolnir.tuner.proposers import CommandError, ProposerError, make
from mjolnir.tuner.space import Space

if TYPE_CHECKING:
    from mjolnir.backend.lookup import Defaults
    from mjolnir.kernel.device import Device
    from mjolnir.kernel.geometry import Geometry, Placement
    from mjolnir.ledger import Ledger
    from mjolnir.research.hardware import Hardware
    from mjolnir.research.progress import Screen
    from mjolnir.research.sharing import SharedJournal
    from mjolnir.tuner.bench import Bench
    from mjolnir.tuner.options import Options

TAKEN = "its name stays taken, and nothing is added to it; choose another --tag"
"""What a run is told of a tag that was removed."""

ALONE = {"demotion", "note", "tombstone"}
"""Kinds of records that a tag may have without a campaign."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign that is ready to run."""

    tag: str
    ledger: Ledger
    bench: Bench
    options: Options
    journal: LedgerJournal | SharedJournal
    team: SharedJournal | None = None


def run(request: Request, screen: Screen) -> Answer:
    """Run or resume a campaign and say what it found.

    Raises:
        UsageFailure: options that contradict one another, the tag or the recording.
        MissingFailure: no device.
        Failure: the ledger cannot be used.
    """
    tag = checked_tag(request.tag) if request.tag else fresh_tag()
    if request.dry_run:
        return _dry_run(request, tag)
    require_outputs(request, tag)
    with ledgers.open(request.ledger) as ledger:
        ledger.prepare()
        with Running(places.state_folder(ledger.folder), tag).claim() as stop:
            return _run(request, screen, ledger, tag, stop)


def _run(request: Request, screen: Screen, ledger: Ledger, tag: str, stop: Running) -> Answer:
    with failures_in_words(ledger, "run", "--tag", tag, "--resume"), opened(request, ledger, tag, stop) as campaign:
        announce(campaign, screen)
        with screen.watching(Names(campaign.bench.geometry, campaign.bench.device)):
            result = coordinator.run(campaign.bench, campaign.journal, campaign.options, screen, stop, campaign.team)
    return told(request, ledger, campaign.journal.history(), result)


def require_outputs(request: Request, tag: str) -> None:
    """Refuse an export folder or a scratch table that cannot be written, before the work rather than after it."""
    folders = {"--export": request.export, "--table": request.defaults and request.defaults.absolute().parent}
    for flag, folder in folders.items():
        if folder is not None:
            try:
                places.check_folder(folder.absolute())
            except OSError as error:
                raise UsageFailure(f"{flag}: {folder} cannot be written: {error.strerror}; name another") from error
    if request.export is not None:
        from mjolnir.research.export import require_own

        try:
            require_own(request.export, tag, request.defaults)
        except Failure as failure:
            raise UsageFailure(f"--export: {failure}") from failure
    if request.defaults and request.defaults.is_dir():
        raise UsageFailure(f"--table: {request.defaults} is a folder; name a file in it")


def require_replayable(request: Request) -> None:
    """Refuse a replay that cannot begin, before anything is on record; what is resumed has begun.

    Raises:
        UsageFailure: options that contradict one another or the recording.
    """
    if request.device == "replay" and not request.resume:
        options = request.options()
        bench = benches.choose(request, None, options.seed)
        require_space(bench.geometry, bench.device, options, bench.settings())


def _dry_run(request: Request, tag: str) -> Answer:
    """What the campaign would do; nothing is appended."""
    from mjolnir.research.dryrun import dry_run

    if request.resume or request.storage:
        raise UsageFailure("--dry-run is for a campaign that is not there yet: leave --resume and --storage out")
    options = request.options()
    with ledgers.open(request.ledger) as ledger, ExitStack() as stack:
        bench = benches.choose(request, None, options.seed)
        stack.callback(bench.close)
        require_space(bench.geometry, bench.device, options, bench.settings())
        elsewhere = decided_elsewhere(ledger, tag, bench.simulated)
        planning.require_provable(bench, options, elsewhere)
        options = with_incumbents(options, incumbents_of(request, bench, None))
        options = replace(options, enqueued=_enqueued(request, bench, None, ledger, tag))
        return dry_run(bench, options, planning.plan(bench, options, elsewhere))


@contextmanager
def failures_in_words(ledger: Ledger, *again: object) -> Iterator[None]:
    """A device that is lost, or a full disk, ends a campaign with a message; what is recorded stays, and can go on.

    Args:
        ledger: where it is recorded.
        again: the command that goes on.
    """
    resume = f"what is recorded is safe; go on with: {command(ledger, 'autoresearch', *again)}"
    try:
        yield
    except BenchFailure as error:
        raise Failure(f"the device failed: {error}; {resume}") from error
    except ledgers.LedgerFull as error:
        raise Failure(f"{error}; {resume}") from error


@contextmanager
def opened(
    request: Request,
    ledger: Ledger,
    tag: str,
    stop: Callable[[], bool] = lambda: False,
    hardware: Hardware | None = None,
) -> Iterator[Campaign]:
    """Make or find the campaign's records and its bench, on its own hardware or the one given; closed with the block.

    Raises:
        UsageFailure: the tag exists and is not resumed, or is resumed and does not exist or was removed.
    """
    with ExitStack() as stack:
        store = stack.enter_context(sharing.joined(request, ledger, tag)) if request.storage else None
        known = [as_mapping(record) for record in ledger.records(tag)]
        _require_intent(request, ledger, tag, len(known))
        bodies = [record["body"] for record in known if record["kind"] == "campaign"]
        recorded = bodies[-1] if bodies else None
        _require_beginning(tag, known, recorded)
        _require_knobs(tag, recorded)
        options = request.options(recorded["options"] if recorded else None)
        if request.worker:
            sharing.require_consent(request, options)
        bench = benches.choose(request, recorded, options.seed, stop, hardware)
        stack.callback(bench.close)
        if request.promote and bench.simulated and request.defaults is None:
            raise UsageFailure(f"--promote: {REPLAY_REFUSED}, such as --table {SCRATCH}")
        require_space(bench.geometry, bench.device, options, bench.settings())
        if recorded is None:
            planning.require_provable(bench, options, decided_elsewhere(ledger, tag, bench.simulated))
        elif request.trials is not None:
            _require_more(request.trials, known, epoch_body(bench)["epoch"])
        options = with_incumbents(options, incumbents_of(request, bench, recorded))
        options = replace(options, enqueued=_enqueued(request, bench, recorded, ledger, tag))
        if recorded is None and request.depth is None:  # each device has a trial in hand, and the next ones behind it
            options = replace(options, depth=options.depth * bench.width)
        writer = stack.enter_context(ledger.writer(tag, environment(bench)))
        if store is None:
            journal = LedgerJournal(ledger, writer, tag)
            open_records(request, bench, options, journal)
            yield Campaign(tag, ledger, bench, options, journal)
            return
        team = sharing.SharedJournal(ledger, store, writer, tag, request.lease_seconds)
        stack.callback(team.bring_home)
        with sharing.opening(team, fresh=recorded is None):
            if request.worker:
                sharing.require_same_epoch(team, epoch_body(bench))
            else:
                open_records(request, bench, options, team)
        yield Campaign(tag, ledger, bench, options, team, team)


def _require_intent(request: Request, ledger: Ledger, tag: str, known: int) -> None:
    require_in_force(ledger, tag, TAKEN)
    if request.worker and not known:
        raise UsageFailure(
            f"there is no campaign {tag} in this storage yet; "
            f"open it with: mjolnir autoresearch run --tag {tag} --storage URL"
        )
    if request.resume and not request.tag:
        raise UsageFailure(f"--resume needs --tag; `{command(ledger, 'autoresearch', 'list')}` shows the tags")
    if request.resume and not known:
        raise UsageFailure(f"there is no campaign {tag} to resume; leave --resume out to start it")
    if known and not request.resume:
        raise UsageFailure(
            f"the tag {tag} exists ({known} records): go on with it by --resume, or choose another --tag"
        )


def _require_beginning(tag: str, known: Sequence[Mapping[str, Any]], recorded: Mapping[str, Any] | None) -> None:
    """Refuse records without the campaign's own, which came before them: they were fetched in part, or damaged."""
    if recorded is None and (parts := sorted({record["kind"] for record in known} - ALONE)):
        raise UsageFailure(
            f"{tag} has records ({', '.join(parts)}) but not that of its campaign: some are missing; "
            "`mjolnir ledger verify` tells which, and what brings them"
        )


def _require_knobs(tag: str, recorded: Mapping[str, Any] | None) -> None:
    if recorded and recorded.get("sources"):
        raise UsageFailure(f"{tag} holds source experiments, which `autoresearch try` adds to; take another --tag")


def _require_more(limit: int, known: Sequence[Mapping[str, Any]], epoch: str) -> None:
    """Refuse a limit below what was tried already: deciding again on fewer trials would spend an attempt on nothing."""
    taken = sum(record["kind"] == "trial" and record["body"].get("epoch") == epoch for record in known)
    if limit < taken:
        raise UsageFailure(f"--trials {limit}: {taken} trials are on record; give at least so many, or leave it out")


def require_space(
    geometry: Geometry, device: Device, options: Options, recorded: Sequence[Setting] | None = None
) -> None:
    """Refuse pins that leave nothing to search and proposers that cannot run, before anything is on record."""
    try:
        space = Space(geometry, device, options.pins, recorded)
    except ValueError as error:
        raise UsageFailure(f"--pin: {error}") from error
    try:
        make(options.proposer, space, options.seed, command=options.proposer_command)
    except CommandError as error:
        raise UsageFailure(str(error)) from error
    except ProposerError as error:
        raise MissingFailure(f"--proposer: {error}") from error


def incumbents_of(request: Request, bench: Bench, recorded: Mapping[str, Any] | None) -> dict[int, Setting]:
    """What is in force, by bucket, where that is not the built-in default; a resumed campaign keeps what it began with.

    Without a row that is what the built-in rule says. A replay is not held against it: it shows the method, on a
    recording that the rule was fitted to.
    """
    if recorded is not None:
        return {int(bucket): Setting.from_dict(knobs) for bucket, knobs in recorded["incumbents"].items()}
    buckets = bench.workload.buckets
    rows = rows_in_force(request, bench.device, bench.geometry, bench.placement, buckets)
    said = {} if bench.simulated else {bucket: built_in(bench.geometry, bench.device, bucket) for bucket in buckets}
    default = resolve(Setting(), bench.geometry, bench.device)
    return {**{bucket: setting for bucket, setting in said.items() if setting != default}, **rows}


def rows_in_force(
    request: Request, device: Device, geometry: Geometry, placement: Placement, buckets: Sequence[int]
) -> dict[int, Setting]:
    """The settings of the rows in force, by bucket, where there are any."""
    defaults = _defaults(request)
    found = {bucket: defaults.incumbent(device, geometry, placement, bucket) for bucket in buckets}
    return {bucket: row.setting for bucket, row in found.items() if row}


def _defaults(request: Request) -> Defaults:
    """The tables in force; a scratch table stands in for the user's."""
    from mjolnir.research import explain

    return explain.load(request.defaults, missing_ok=True)


def _enqueued(
    request: Request, bench: Bench, recorded: Mapping[str, Any] | None, ledger: Ledger, tag: str
) -> tuple[Setting, ...]:
    """What is asked first beside the rows in force; a resumed campaign keeps what it began with.

    A replay starts cold unless it is told otherwise, so that it comes to the same whatever the ledger holds.
    """
    if recorded is not None:
        return tuple(map(Setting.from_dict, recorded.get("enqueued", ())))
    wanted = request.warm_start if request.warm_start is not None else not bench.simulated
    if not wanted:
        return ()
    from mjolnir.research.warmstart import near_settings

    return near_settings(bench, _defaults(request), ledger, tag)


def announce(campaign: Campaign, screen: Screen) -> None:
    options = campaign.options
    plan = planning.plan(campaign.bench, options, campaign.journal.elsewhere())
    place, minutes = campaign.ledger.place, planning.minutes
    screen.say(
        f"ledger {place.folder} ({place.origin}); tag {campaign.tag}; "
        f"at most {options.trials} trials or {options.minutes:g} min of search, {minutes(plan.search_seconds)}; "
        f"noise before it and at most {plan.instances} instances to prove gains after it, "
        f"{minutes(plan.proof_seconds)} more; "
        f"smallest gain that can be proven: about {plan.smallest_gain:.1%}"
    )
    if campaign.bench.simulated:
        screen.say(
            f"replaying recorded times of {campaign.bench.device.name} on a simulated clock; nothing is measured here, "
            "and no replay counts as an attempt"
        )
    if campaign.ledger.git_note:
        screen.say(f"trials are not kept as git commits: {campaign.ledger.git_note}")
