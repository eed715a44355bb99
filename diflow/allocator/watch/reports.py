"""Makes a Profile for the policies of what a job reports (`diflow.record.reports`)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from msgspec.structs import astuple

from diflow.allocator.model.arrays import FloatArray, frozen
from diflow.allocator.model.profile import COLUMNS, MOST_OBSERVATIONS, Profile, clean
from diflow.allocator.policies.goodput.model import TINY, step_seconds
from diflow.common.memo import MIB, remembered
from diflow.record import reports, signals
from diflow.record.reports import Report

_OF_REPLICAS = frozenset({"round", "at", "ranks", "observed", signals.NAME})


@remembered(most_bytes=32 * MIB)
def profile(text: str) -> Profile | None:
    """The profile in this text, None if nothing of it is usable."""
    report = reports.read(text)
    rows, model, norm = clean(_rows(report)), report.model, report.grad_params.get("norm")
    if not len(rows) and norm is None and report.progress is None and model is None:
        return None
    low, high = (int(bound or 0) for bound in report.local_batches)
    initial = int(report.init_batch_size or max(1, low))
    largest = max(initial, int(report.max_batch_size or (high or 1) * 1024))
    return Profile(
        version=zlib.crc32(text.encode()),
        observations_version=zlib.crc32(rows.tobytes()),
        observations=rows,
        parameters=None if model is None else frozen(np.maximum(np.array(astuple(model)), TINY)),
        profiled_replicas=int(report.max_profiled_replicas or 0),
        grad_sqr=norm,
        grad_var=report.grad_params.get("var"),
        initial_batch=initial,
        max_batch=largest,
        min_local_batch=max(1, low),
        max_local_batch=max(1, low, high or (largest if report.is_unbounded else initial)),
        accumulation=report.gradient_accumulation,
        fraction_done=report.progress,
    )


@remembered(most_bytes=32 * MIB)
def speed(text: str) -> float | None:
    """The job's current speed in samples a second, None if not reported."""
    return reports.read(text).speed


def is_news(before: str, after: str, *, fraction: float) -> bool:
    """Whether a new report changes the job's known speed by more than this fraction."""
    if before == after:
        return False
    old, new = speed(before), speed(after)
    if (old is None) != (new is None):
        return True
    if old is not None and new is not None and abs(new - old) > fraction * old:
        return True
    one, other = profile(before), profile(after)
    if one is None or other is None:
        return one is not other
    return len(one.observations) != len(other.observations) or _is_other_model(one, other, fraction=fraction)


def _is_other_model(one: Profile, other: Profile, *, fraction: float) -> bool:
    if one.parameters is None or other.parameters is None:
        return one.parameters is not other.parameters
    before, after = _steps_of(one), _steps_of(other)
    return bool((np.abs(after - before) > fraction * before).any())


def _steps_of(profile: Profile) -> FloatArray:
    """The seconds of a step that a job's own model predicts, at configurations that distinguish two models."""
    replicas, several = np.array([1.0, 2.0, 8.0, 2.0, 8.0]), np.array([False, False, False, True, True])
    batch = np.full(len(replicas), float(profile.min_local_batch))
    return step_seconds(np.asarray(profile.parameters), several, replicas, batch, np.zeros(len(replicas)))


def complaint(text: str) -> str:
    """Why a report is unusable; "" if some of it is usable, or there is none.

    Steps and signs of life are of use to those who look for silent replicas, though they say nothing of the speed.
    """
    if text in ("", "{}"):
        return ""
    known = reports.fields(text).keys()
    if known <= _OF_REPLICAS and (
        signals.of(text) is not None or (signals.NAME not in known and reports.read(text).is_of_replicas)
    ):
        return ""
    return "" if profile(text) is not None else "nothing in the parameter profilings can be used"


def _rows(report: Report) -> FloatArray:
    rows: list[Sequence[float]] = [astuple(row) for row in report.observed[-MOST_OBSERVATIONS:]]
    said, replicas = report.own_speed, report.replicas
    if not rows and said is not None and replicas is not None:
        batch, count = report.batch or 1.0, float(int(replicas))
        step = count * batch / said
        rows.append([float(int(report.nodes or 1)), count, batch, step, step, 0.0])
    return frozen(np.array(rows, dtype=np.float64).reshape(len(rows), COLUMNS))
