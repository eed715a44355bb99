"""What a job teaches the memory of its application: from its reports, and from what was observed while it ran."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from diflow.allocator.model.profile import NODES, POOL, REPLICAS, Profile, clean, gradient_noise
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.memory import miss
from diflow.allocator.remember.priors import prior_of
from diflow.allocator.watch import reports
from diflow.common.names import UNKNOWN_POOL, pool_number
from diflow.record.job import JobRecord
from diflow.record.namespace.applications import BINS, LEAST_NOISE, MOST_NOISE, Application, Batches, Lesson

_MOST_RESTARTS: Final = 16
"""Of one job, of which the last ones count."""
_LONGEST_RESTART_SECONDS: Final = 3600.0


@dataclass(slots=True)
class Observed:
    """What a process has observed of a running job: how long its restarts take, and its gradient noise by the part of
    its progress. `since`, `then`: of its current round, and its report at that time; a new report is that of the first
    steps of the round."""

    text: str = ""
    since: float = 0.0
    then: str = ""
    is_measured: bool = True
    restarts: list[float] = field(default_factory=list)
    noise: dict[int, float] = field(default_factory=dict)

    def update(self, read: JobRecord, now: float) -> None:
        """Take in the report of the job. A restart lasts from the decision, after which its old pods get SIGTERM, to
        the first report of the new round."""
        since = (
            read.notes.allocation.since if read.notes.allocation is not None and read.notes.allocation.moves else 0.0
        )
        if since != self.since:
            self.since, self.then, self.is_measured = since, read.texts.profilings, since == 0.0 or self.text == ""
        if read.texts.profilings == self.text:
            return
        self.text = read.texts.profilings
        profile = reports.profile(read.texts.profilings)
        if profile is None:
            return
        self.noise |= _noise(profile)
        if not self.is_measured and read.texts.profilings != self.then and _is_of_round(profile, read):
            self.is_measured = True
            took = now - since
            if 0 < took < _LONGEST_RESTART_SECONDS:
                self.restarts = [*self.restarts[1 - _MOST_RESTARTS :], took]


def lessons(
    uid: str,
    profile: Profile,
    *,
    pool: str,
    pools: Iterable[str],
    seen: Observed | None,
    records: Mapping[str, Application],
) -> list[tuple[str, Lesson]]:
    """What a job has shown in the `pool` of its nodes, and then in each other one of the `pools` of the cluster.

    `profile`: what it has reported, `seen`: what was observed of it. `records`: what was known of its application, by
    pool, to compare with. Of other pools only the times count: all else was seen in the last pool.
    """
    (_, here), *others = _by_pool(profile, pool, pools)
    out = [(pool, _lesson(uid, here, seen=seen, record=records.get(pool)))]
    for other, part in others:
        found = _lesson(uid, part, seen=seen, record=records.get(other))
        out.append((other, replace(found, noise=None, restart_seconds=None)))
    return out


def _by_pool(profile: Profile, pool: str, pools: Iterable[str]) -> list[tuple[str, Profile]]:
    """The profile with the observations of this pool alone, and one for each other pool that it was observed in."""
    rows = clean(profile.observations)
    numbers = rows[:, POOL] if len(rows) else np.zeros(0)
    here = (numbers == pool_number(pool)) | (numbers == UNKNOWN_POOL)
    names = sorted(set(pools) - {pool})
    if not names:  # the numbers are those of pools that are gone, or of a user
        return [(pool, profile)]
    parts = [(name, rows[numbers == pool_number(name)]) for name in names]
    return [
        (pool, replace(profile, observations=rows[here])),
        *((name, replace(profile, observations=part)) for name, part in parts if len(part)),
    ]


def _lesson(uid: str, profile: Profile, *, seen: Observed | None, record: Application | None) -> Lesson:
    rows = clean(profile.observations)
    noise = dict(seen.noise) if seen is not None else {}
    noise |= _noise(profile)
    off = math.nan
    if record is not None and record.shapes and len(rows):
        off = miss(rows, fit_all([prior_of(record).observations], apart=True)[0])
    return Lesson(
        shapes=tuple(tuple(row) for row in rows[:, :5].tolist()),
        noise=noise,
        restart_seconds=float(np.median(seen.restarts)) if seen is not None and seen.restarts else None,
        batches=Batches(
            initial=profile.initial_batch,
            least=max(profile.initial_batch, profile.min_batch),
            most=profile.max_batch,
            local_least=profile.min_local_batch,
            local_most=profile.max_local_batch,
            accumulation=profile.accumulation,
        ),
        miss=off if math.isfinite(off) else None,
        uid=uid,
    )


def _noise(profile: Profile) -> dict[int, float]:
    """The logarithm of the gradient noise in the part of the progress in which the job is."""
    found = gradient_noise(profile)
    if found is None or min(found) <= 0:
        return {}
    value = math.log(found[1]) - math.log(found[0])  # the quotient of two floats may be 0 or infinite
    if not LEAST_NOISE <= value <= MOST_NOISE:
        return {}
    part = min(int((profile.fraction_done or 0.0) * BINS), BINS - 1)
    return {part: value}


def _is_of_round(profile: Profile, read: JobRecord) -> bool:
    """Whether the newest observation is of as many nodes as the current round has."""
    if not len(profile.observations) or read.notes.allocation is None:
        return False
    newest = profile.observations[-1]
    places = [name for names in read.notes.allocation.nodes.values() for name in names if name]
    return int(newest[NODES]) == len(set(places)) or int(newest[REPLICAS]) == len(places)
