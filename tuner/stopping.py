"""When a search has nothing left to find that the noise would not hide."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mjolnir.tuner.proposers import Gain


def is_flat(gain: Callable[[int], Gain | None], floors: Mapping[int, float]) -> bool:
    """Whether no bucket can have an untried setting that beats its lead by more than the noise.

    A study's optimistic gap has to lie below the bucket's noise floor; a study that cannot tell has not run dry.

    Args:
        gain: what a bucket's study expects.
        floors: the noise floor of each bucket, a fraction; where there is none nothing is ever flat.
    """
    gaps = ((gain(bucket), floor) for bucket, floor in floors.items())
    return bool(floors) and all(found is not None and found.optimistic < floor for found, floor in gaps)
