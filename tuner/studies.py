"""The studies of a shared campaign in Optuna's storage, where its dashboard and other programs read them.

Each bucket has a study, and each trial is in it once, in the order of the trials, whichever process put it there: all
of them hear of the same trials in the same order, so what a study lacks is what lies beyond its length. One process at
a time writes to a study, under a lease. It is done by a thread beside the campaign: a storage that is slow or away
delays no trial, and what is missing is added by whoever writes next. Asks do not depend on it: proposers are told from
the records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mjolnir.kernel.knobs import Setting
from mjolnir.tuner.bench import Status
from mjolnir.tuner.space import Coordinates, Space
from mjolnir.tuner.trial import UNTOLD

if TYPE_CHECKING:
    from mjolnir.tuner.team import Team

PAUSE_SECONDS = 0.5
"""Time between two visits to the storage."""

_log = logging.getLogger(__name__)

Told = tuple[Coordinates, Mapping[str, float]]


class Studies:
    """Keeps the studies up, until it is closed.

    Args:
        team: has the storage, and the leases under which it is written.
        space: of the settings.
        buckets: of the workload.
        epoch: part of the studies' names, `<tag>/<epoch>/bucket-<b>`.
    """

    def __init__(self, team: Team, space: Space, buckets: Sequence[int], epoch: str) -> None:
        self._team = team
        self._space = space
        self._epoch = epoch
        self._told: list[Told] = []
        self._written = dict.fromkeys(buckets, 0)
        self._studies: dict[int, Any] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="studies", daemon=True)
        self._thread.start()

    def tell(self, body: Mapping[str, Any]) -> None:
        """Take the next trial in; one that says nothing of its setting, or lies outside the space, is left out."""
        coordinates = self._space.coordinates(Setting.from_dict(body["setting"]))
        if coordinates is not None and body["status"] not in UNTOLD:
            self._told.append((coordinates, body["ratios"] if body["status"] == Status.MEASURED else {}))

    def close(self) -> None:
        """Wait until the studies are whole. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        """Write now and then, and a last time when closed; a storage that fails is given up with a warning."""
        try:
            storage = self._team.studies()
            last = storage is None
            while not last:
                last = self._closed.wait(PAUSE_SECONDS)
                for bucket in self._written:
                    self._write(storage, bucket)
        except Exception as error:  # whatever the storage raises, the campaign does not depend on it
            _log.warning("the studies in Optuna's storage are not kept up any more: %s", type(error).__name__)

    def _write(self, storage: Any, bucket: int) -> None:
        """Add to a bucket's study what it lacks, unless another process is at it."""
        told = len(self._told)
        if self._written[bucket] >= told:
            return
        lease = self._team.leases.take([f"{self._epoch}/study/{bucket}"])
        if lease is None:
            return
        try:
            study = self._study(storage, bucket)
            known = len(study.get_trials(deepcopy=False))
            for coordinates, ratios in self._told[known:told]:
                # Before each: a storage that is slow outlasts a lease within a few trials, and who has it then writes.
                if not self._team.leases.renew(lease):
                    return
                study.add_trial(self._trial(coordinates, ratios.get(str(bucket))))
            self._written[bucket] = max(known, told)
        finally:
            self._team.leases.abandon(lease)

    def _study(self, storage: Any, bucket: int) -> Any:
        import optuna

        if bucket not in self._studies:
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            name = f"{self._team.tag}/{self._epoch}/bucket-{bucket}"
            self._studies[bucket] = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        return self._studies[bucket]

    def _trial(self, coordinates: Coordinates, value: float | None) -> Any:
        """Optuna's trial; its parameters are places on the lines of values, one without a ratio is pruned."""
        from optuna.distributions import IntDistribution
        from optuna.trial import TrialState, create_trial

        dimensions = self._space.dimensions
        return create_trial(
            params={d.name: place for d, place in zip(dimensions, coordinates, strict=True)},
            distributions={d.name: IntDistribution(0, len(d.values) - 1) for d in dimensions},
            value=value,
            state=TrialState.PRUNED if value is None else TrialState.COMPLETE,
        )
