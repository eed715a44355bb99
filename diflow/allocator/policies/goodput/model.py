"""The performance model of a data-parallel job and its goodput, vectorised over jobs and configurations.

Notation of Pollux (OSDI 2021): R replicas on N nodes, local batch b, s accumulation steps, total batch M = R·b·(s+1).
The seven parameters, in this order: α_c, β_c (a step takes α_c + β_c·b without synchronisation), α_n, β_n
(synchronisation over several nodes), α_r, β_r (inside one node), γ (overlap of the two; 1: none).
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray

PARAMETERS = 7
ALPHA_C, BETA_C, ALPHA_N, BETA_N, ALPHA_R, BETA_R, GAMMA = range(PARAMETERS)
TINY = 1e-8
"""Stands for 0: the value of parameters without observations."""
BATCHES = 24
"""Total batch sizes tried for each configuration, geometrically spaced: over three decades neighbours differ by at most
a third, and goodput is flat around its maximum (within 1 % of a grid of 400)."""


def combine(accumulation: FloatArray, network: FloatArray, gamma: FloatArray) -> FloatArray:
    """(x^γ + y^γ)^(1/γ), without overflow."""
    high = np.maximum(accumulation, network)
    low = np.minimum(accumulation, network)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(high > 0, low / high, 0.0)
    out: FloatArray = high * np.exp(np.log1p(np.power(ratio, gamma)) / gamma)
    return out


def network_seconds(params: FloatArray, several: BoolArray, replicas: FloatArray) -> FloatArray:
    """Synchronisation seconds of a step; `params` (..., 7) broadcasts against the others."""
    extra = np.maximum(replicas - 2.0, TINY)
    out: FloatArray = np.where(
        replicas <= 1,
        0.0,
        np.where(
            several,
            params[..., ALPHA_N] + params[..., BETA_N] * extra,
            params[..., ALPHA_R] + params[..., BETA_R] * extra,
        ),
    )
    return out


def step_seconds(
    params: FloatArray,
    several: BoolArray,
    replicas: FloatArray,
    local_batch: FloatArray,
    accumulation_steps: FloatArray,
) -> FloatArray:
    """Seconds of one optimiser step, accumulation included."""
    own = params[..., ALPHA_C] + params[..., BETA_C] * local_batch
    optimiser = combine(own, network_seconds(params, several, replicas), params[..., GAMMA])
    out: FloatArray = accumulation_steps * own + optimiser
    return out


def efficiency(scale: FloatArray, noise: FloatArray) -> FloatArray:
    """Statistical efficiency at `scale` = M / M0, relative to M0. `noise` = var / sqr; inf (unknown) gives 1."""
    with np.errstate(invalid="ignore"):
        out: FloatArray = np.where(np.isinf(noise), 1.0, (noise + 1.0) / (noise + scale))
    return out


class Limits:
    """Batch limits and gradient noise of J jobs, as arrays (J)."""

    def __init__(
        self,
        *,
        initial: FloatArray,
        least: FloatArray,
        most: FloatArray,
        local_least: FloatArray,
        local_most: FloatArray,
        accumulation: BoolArray,
        noise: FloatArray,
    ) -> None:
        self.initial = initial
        self.least = least
        self.most = most
        self.local_least = local_least
        self.local_most = local_most
        self.accumulation = accumulation
        self.noise = noise


def best_batches(
    params: FloatArray, limits: Limits, replicas: IntArray, several: BoolArray, *, batches: int = BATCHES
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(goodput, local batch, accumulation steps), each J×C, at the batch size with the best goodput.

    `params` J×7; `replicas` and `several` J×C. Goodput is in iterations of M0 samples per second; 0 where no batch size
    is within the limits.
    """
    count = replicas.astype(np.float64)[:, :, None]
    low = np.maximum(np.maximum(limits.least, limits.initial)[:, None], limits.local_least[:, None] * count[:, :, 0])
    high = np.maximum(np.maximum(limits.most, limits.initial), limits.least)[:, None]
    possible = low <= high * (1 + 1e-9)
    grid = np.linspace(0.0, 1.0, batches)
    start = np.log(np.maximum(low, 1.0))[:, :, None]
    total = np.exp(start + (np.log(np.maximum(high, low))[:, :, None] - start) * grid)
    local_most = limits.local_most[:, None, None]
    wanted = np.ceil(total / count - 1e-8)
    steps = np.maximum(np.ceil(wanted / local_most - 1e-8) - 1.0, 0.0)
    without = ~limits.accumulation[:, None, None] & (steps > 0)
    local = np.where(without, local_most, np.ceil(wanted / (steps + 1.0) - 1e-8))
    steps = np.where(without, 0.0, steps)
    # Rounding up may exceed the largest total batch: round down there.
    over = local * (steps + 1.0) * count > high[:, :, None] * (1 + 1e-9)
    local = np.maximum(np.where(over, np.floor(high[:, :, None] / (count * (steps + 1.0)) + 1e-9), local), 1.0)
    seconds = step_seconds(params[:, None, None, :], several[:, :, None], count, local, steps)
    scale = local * (steps + 1.0) * count / limits.initial[:, None, None]
    good = scale * efficiency(scale, limits.noise[:, None, None]) / seconds
    good = np.where(possible[:, :, None] & np.isfinite(good), good, 0.0)
    best = good.argmax(axis=2)[:, :, None]
    return (
        np.take_along_axis(good, best, axis=2)[:, :, 0],
        np.take_along_axis(local, best, axis=2)[:, :, 0],
        np.take_along_axis(steps, best, axis=2)[:, :, 0],
    )
