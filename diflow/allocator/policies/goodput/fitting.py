"""Fit of the performance model to observations: all jobs at once, bounded and robust.

Damped Gauss-Newton (Levenberg-Marquardt) on the logarithms of the parameters, which keeps them positive, against the
logarithms of the times, with Huber weights so that outliers have little effect. Parameters without observations stay
near zero: unknown configurations look good, and are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray
from diflow.allocator.model.profile import ACCUMULATION_SECONDS, LOCAL_BATCH, NODES, REPLICAS, STEP_SECONDS
from diflow.allocator.policies.goodput.model import (
    ALPHA_C,
    ALPHA_N,
    ALPHA_R,
    BETA_C,
    BETA_N,
    BETA_R,
    GAMMA,
    PARAMETERS,
    TINY,
)

MOST_ROWS = 48
"""Observations used per job, the newest. Seven parameters need no more."""
HUBER = 0.1
"""Residuals of more than 10 % count linearly."""
PRIOR = 1e-3
"""Weight of the pull towards the start, in squared log seconds: matters only where the data does not decide."""
STEP_DIGITS = 7
"""Decimal places of a step of the fit, in logarithms. OpenBLAS has other kernels for each kind of processor, whose last
digits differ; unrounded, they decided whether a trial counted as better, and workloads ended at other times (2,085 and
2,088 s on workload 3)."""
_ITERATIONS = 25
_LOG_TINY = float(np.log(TINY))


def fit_all(rows: Sequence[FloatArray], start: FloatArray | None = None, *, apart: bool = False) -> FloatArray:
    """Parameters (J×7) of J jobs from their cleaned observations; NaN for a job without any.

    `start` (J×7): earlier fits, NaN if there is none. `apart`: each fit ends when it has converged, so that it does not
    depend on the other jobs; otherwise all end with the last one. About 0.1 ms per job if many are fitted together.
    """
    jobs = len(rows)
    out = np.full((jobs, PARAMETERS), np.nan)
    some = [j for j in range(jobs) if len(rows[j])]
    if not some:
        return out
    # Group jobs of similar sizes: padding costs more than a second call.
    some.sort(key=lambda j: min(len(rows[j]), MOST_ROWS))
    of_width: dict[int, list[int]] = {}
    for j in some:
        # With another width, sums would be rounded differently: it depends on the job alone.
        of_width.setdefault(-(-min(len(rows[j]), MOST_ROWS) // 8) * 8 if apart else 0, []).append(j)
    for width, alike in of_width.items():
        for begin in range(0, len(alike), 256):
            part = alike[begin : begin + 256]
            earlier = np.full((len(part), PARAMETERS), np.nan) if start is None else start[part]
            out[part] = _fit_block([rows[j][-MOST_ROWS:] for j in part], earlier, width=width)
    return out


def _fit_block(rows: Sequence[FloatArray], start: FloatArray, *, width: int) -> FloatArray:
    """`width`: to which the rows are padded, if each fit ends by itself; 0: all end with the last one."""
    jobs, apart = len(rows), width > 0
    width = width or max(len(r) for r in rows)
    data = np.zeros((jobs, width, 5))
    used = np.zeros((jobs, width), dtype=np.bool_)
    for j, r in enumerate(rows):
        data[j, : len(r)] = r[:, :5]
        data[j, len(r) :] = r[0, :5]
        used[j, : len(r)] = True
    several, replicas = data[:, :, NODES] > 1, data[:, :, REPLICAS]
    batch = data[:, :, LOCAL_BATCH]
    log_own, log_step = np.log(data[:, :, ACCUMULATION_SECONDS]), np.log(data[:, :, STEP_SECONDS])
    free = _identifiable(used, several, replicas)
    theta = _start(start, free, used, data)
    anchor = theta.copy()
    damping = np.full(jobs, 1e-2)
    seen = _Seen(used, several, replicas, batch, log_own, log_step)
    cost, residual, jacobian, weight = _evaluate(theta, seen)
    cost = cost + PRIOR * ((theta - anchor) ** 2).sum(axis=1)
    eye = np.eye(PARAMETERS)
    done = np.zeros(jobs, dtype=np.bool_)
    for _ in range(_ITERATIONS):
        weighted = jacobian * weight[:, :, None]
        normal = np.einsum("jki,jkl->jil", weighted, jacobian) + PRIOR * eye
        gradient = np.einsum("jki,jk->ji", weighted, residual) + PRIOR * (theta - anchor)
        gradient = np.where(free, gradient, 0.0)
        normal = np.where((free[:, :, None] & free[:, None, :]) | (eye > 0), normal, 0.0)
        diagonal = np.einsum("jii->ji", normal)
        system = normal + eye * (damping[:, None] * (diagonal + 1e-6))[:, None, :]
        step = np.round(-np.linalg.solve(system, gradient[:, :, None])[:, :, 0], STEP_DIGITS)
        trial = _bounded(theta + np.where(free, np.clip(step, -2.0, 2.0), 0.0))
        new_cost, new_residual, new_jacobian, new_weight = _evaluate(trial, seen)
        new_cost = new_cost + PRIOR * ((trial - anchor) ** 2).sum(axis=1)
        better = (new_cost < cost) & ~done
        gain = np.where(better, (cost - new_cost) / (cost + 1e-12), 0.0)
        theta = np.where(better[:, None], trial, theta)
        cost = np.where(better, new_cost, cost)
        residual = np.where(better[:, None], new_residual, residual)
        weight = np.where(better[:, None], new_weight, weight)
        jacobian = np.where(better[:, None, None], new_jacobian, jacobian)
        damping = np.where(better, damping * 0.3, damping * 4.0).clip(1e-9, 1e9)
        if apart:
            done |= (gain < 1e-4) & (better | (damping > 1e3) | (cost < 1e-9))
            if done.all():
                break
        elif (gain < 1e-4).all() and (better | (damping > 1e3) | (cost < 1e-9)).all():
            break
    return _natural(theta, free)


def _identifiable(used: BoolArray, several: BoolArray, replicas: FloatArray) -> BoolArray:
    """Which parameters the observations determine (J×7)."""
    free = np.zeros((len(used), PARAMETERS), dtype=np.bool_)
    free[:, ALPHA_C] = free[:, BETA_C] = True
    local = used & ~several & (replicas > 1)
    spread = used & several
    free[:, ALPHA_N], free[:, ALPHA_R] = spread.any(axis=1), local.any(axis=1)
    # One replica count alone cannot separate the constant from the slope.
    free[:, BETA_N], free[:, BETA_R] = _several_counts(spread, replicas), _several_counts(local, replicas)
    free[:, GAMMA] = (local | spread).any(axis=1)
    return free


def _several_counts(where: BoolArray, replicas: FloatArray) -> BoolArray:
    """Whether these observations have more than one replica count (1 and 2 cost the same) (J)."""
    extra = np.maximum(replicas, 2.0)
    out: BoolArray = np.where(where, extra, -np.inf).max(axis=1) > np.where(where, extra, np.inf).min(axis=1)
    return out


def _start(start: FloatArray, free: BoolArray, used: BoolArray, data: FloatArray) -> FloatArray:
    own = np.where(used, data[:, :, ACCUMULATION_SECONDS], np.nan)
    batch = np.where(used, data[:, :, LOCAL_BATCH], np.nan)
    network = np.where(used, data[:, :, STEP_SECONDS] - data[:, :, ACCUMULATION_SECONDS], np.nan)
    middle, size = np.nanmedian(own, axis=1), np.nanmedian(batch, axis=1)
    sync = np.maximum(np.nanmedian(network, axis=1), 1e-3 * middle)
    guess = np.empty((len(used), PARAMETERS))
    # One batch size alone cannot separate the constant from the slope: half each, so large batches gain a little.
    guess[:, ALPHA_C], guess[:, BETA_C] = 0.5 * middle, 0.5 * middle / size
    guess[:, ALPHA_N] = guess[:, ALPHA_R] = 0.8 * sync
    guess[:, BETA_N] = guess[:, BETA_R] = 0.1 * sync
    guess[:, GAMMA] = 1.5
    known = np.isfinite(start) & (start > 10 * TINY)
    theta = np.log(np.maximum(np.where(known, start, guess), TINY))
    gamma = np.clip(np.where(known, start, guess)[:, GAMMA], 1.01, 9.9)
    theta[:, GAMMA] = np.log((gamma - 1.0) / (10.0 - gamma))
    fixed = ~free
    fixed[:, GAMMA] = False
    theta[fixed] = _LOG_TINY
    return _bounded(theta)


def _bounded(theta: FloatArray) -> FloatArray:
    out = np.clip(theta, _LOG_TINY, 12.0)
    out[:, GAMMA] = np.clip(theta[:, GAMMA], -6.0, 6.0)
    return out


def _natural(theta: FloatArray, free: BoolArray) -> FloatArray:
    out = np.exp(theta)
    out[:, GAMMA] = 1.0 + 9.0 / (1.0 + np.exp(-theta[:, GAMMA]))
    # Synchronisation between nodes is never cheaper than inside one: without observations it is assumed to be equal.
    unseen = ~free[:, ALPHA_N]
    out[:, ALPHA_N] = np.where(unseen, out[:, ALPHA_R], out[:, ALPHA_N])
    out[:, BETA_N] = np.where(unseen, out[:, BETA_R], out[:, BETA_N])
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Observations, padded: J×K each."""

    used: BoolArray
    several: BoolArray
    replicas: FloatArray
    batch: FloatArray
    log_own: FloatArray
    log_step: FloatArray


def _evaluate(theta: FloatArray, seen: _Seen) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """(cost J, residuals J×2K, Jacobian J×2K×7, weights J×2K) at log parameters theta."""
    used, several, replicas, batch = seen.used, seen.several, seen.replicas, seen.batch
    value = np.exp(theta)[:, None, :]
    squash = 1.0 / (1.0 + np.exp(-theta[:, GAMMA]))
    gamma = (1.0 + 9.0 * squash)[:, None]
    slope_gamma = (9.0 * squash * (1.0 - squash))[:, None]
    alpha_c, beta_c = value[..., ALPHA_C], value[..., BETA_C] * batch
    own = alpha_c + beta_c
    alone = replicas <= 1
    extra = np.maximum(replicas - 2.0, TINY)
    alpha_x = np.where(several, value[..., ALPHA_N], value[..., ALPHA_R])
    beta_x = np.where(several, value[..., BETA_N], value[..., BETA_R]) * extra
    network = np.where(alone, TINY * own, alpha_x + beta_x)
    log_x, log_y = np.log(own), np.log(network)
    high = np.maximum(log_x, log_y)
    power = np.logaddexp(gamma * (log_x - high), gamma * (log_y - high))
    log_t = high + power / gamma
    share_own = np.exp(gamma * (log_x - high) - power)
    share_net = 1.0 - share_own
    # d log T / dγ = (Σ share·log − log T) / γ
    d_gamma = (share_own * log_x + share_net * log_y - log_t) / gamma
    width = own.shape[1]
    jacobian = np.zeros((len(theta), 2 * width, PARAMETERS))
    jacobian[:, :width, ALPHA_C] = alpha_c / own
    jacobian[:, :width, BETA_C] = beta_c / own
    low = slice(width, 2 * width)
    jacobian[:, low, ALPHA_C] = share_own * alpha_c / own
    jacobian[:, low, BETA_C] = share_own * beta_c / own
    from_alpha = np.where(alone, 0.0, share_net * alpha_x / network)
    from_beta = np.where(alone, 0.0, share_net * beta_x / network)
    jacobian[:, low, ALPHA_N] = np.where(several, from_alpha, 0.0)
    jacobian[:, low, BETA_N] = np.where(several, from_beta, 0.0)
    jacobian[:, low, ALPHA_R] = np.where(several, 0.0, from_alpha)
    jacobian[:, low, BETA_R] = np.where(several, 0.0, from_beta)
    jacobian[:, low, GAMMA] = np.where(alone, 0.0, d_gamma * slope_gamma)
    residual = np.concatenate([log_x - seen.log_own, log_t - seen.log_step], axis=1)
    both = np.concatenate([used, used], axis=1)
    size = np.abs(residual)
    weight = np.where(both, np.minimum(1.0, HUBER / np.maximum(size, 1e-12)), 0.0)
    loss = np.where(size <= HUBER, residual**2, 2 * HUBER * size - HUBER**2)
    cost = np.where(both, loss, 0.0).sum(axis=1)
    return cost, residual, jacobian, weight
