"""The learning rule: proximal policy optimisation (Schulman et al., 2017) with generalised advantage estimation.

Pure functions over arrays, but for the optimiser's state. The clipped ratio is what lets collectors be a few updates
behind: an episode brings the log-probabilities under the weights that played it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cartpole import model
from cartpole.episodes import Episode
from cartpole.model import Array, Params


@dataclass(frozen=True, slots=True)
class Rule:
    """The constants of the rule: small steps on large batches, which is steady rather than quick.

    The learning rate is a setting (CARTPOLE_LEARNING_RATE, see settings.py). With 3e-4 a run takes a few seconds: less
    than its pods take to start, and too short to watch a job of many processes at work.
    """

    discount: float = 0.99
    trace: float = 0.95  # λ of the advantage estimation
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.003
    reward_scale: float = 0.01  # with the discount above, values then stay near 1
    gradient_norm: float = 0.5
    passes: int = 2  # over each batch
    minibatch_steps: int = 512
    batch_steps: int = 8192  # that the learner gathers for an update
    too_far: float = 0.03  # mean KL from the old policy at which the passes over a batch end early


RULE = Rule()


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps with their advantages and value targets; every array has n rows."""

    observations: Array
    actions: NDArray[np.int64]
    log_probs: Array
    advantages: Array
    targets: Array


def advantages(rewards: Array, values: Array, *, discount: float, trace: float) -> Array:
    """Generalised advantage estimation of one episode: rewards (T,), values (T + 1,), the last one the bootstrap."""
    deltas = rewards + discount * values[1:] - values[:-1]
    out = np.empty_like(deltas)
    running = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        running = float(deltas[step]) + discount * trace * running
        out[step] = running
    return out


def batch(params: Params, episodes: Sequence[Episode], rule: Rule = RULE) -> Batch:
    """Turn episodes into one batch, with values from the present parameters."""
    estimates: list[Array] = []
    targets: list[Array] = []
    for episode in episodes:
        values = model.values(params, episode.observations.astype(np.float64))
        if episode.terminated:
            values[-1] = 0.0  # the pole fell: nothing comes after. A cut at the time limit keeps its estimate.
        rewards = episode.rewards.astype(np.float64) * rule.reward_scale
        estimates.append(advantages(rewards, values, discount=rule.discount, trace=rule.trace))
        targets.append(estimates[-1] + values[:-1])
    estimate = np.concatenate(estimates)
    return Batch(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]).astype(np.float64),
        actions=np.concatenate([episode.actions for episode in episodes]).astype(np.int64),
        log_probs=np.concatenate([episode.log_probs for episode in episodes]),
        advantages=(estimate - estimate.mean()) / (estimate.std() + 1e-8),
        targets=np.concatenate(targets),
    )


def loss(params: Params, part: Batch, rule: Rule = RULE) -> tuple[float, Params, float]:
    """The loss on some steps, its gradients, and the mean KL divergence from the policy that played them."""
    count = len(part.actions)
    rows = np.arange(count)
    log_all = model.log_softmax(model.logits(params, part.observations))
    probs = np.exp(log_all)
    log_taken = log_all[rows, part.actions]
    log_ratio = log_taken - part.log_probs
    ratio = np.exp(log_ratio)
    clipped = np.clip(ratio, 1 - rule.clip, 1 + rule.clip)
    gain = np.minimum(ratio * part.advantages, clipped * part.advantages)
    entropy = -(probs * log_all).sum(axis=1)
    errors = model.values(params, part.observations) - part.targets
    total = float(
        -gain.mean() - rule.entropy_weight * entropy.mean() + rule.value_weight * 0.5 * (errors**2).mean(),
    )

    # d gain / d log_taken is ratio * advantage where the unclipped term is the smaller one, else 0.
    active = ratio * part.advantages <= clipped * part.advantages
    into_taken = np.where(active, ratio * part.advantages, 0.0)
    taken = np.zeros_like(probs)
    taken[rows, part.actions] = 1.0
    into_logits = -into_taken[:, None] * (taken - probs)
    into_logits += rule.entropy_weight * probs * (log_all + entropy[:, None])
    gradients = model.backward(params, "policy", part.observations, into_logits / count)
    into_values = (rule.value_weight * errors / count)[:, None]
    gradients |= model.backward(params, "value", part.observations, into_values)
    return total, gradients, float((ratio - 1 - log_ratio).mean())


def improve(params: Params, optimiser: model.Adam, data: Batch, rng: np.random.Generator, rule: Rule = RULE) -> Params:
    """Some passes of minibatch steps over a batch; returns the new parameters."""
    count = len(data.actions)
    for _ in range(rule.passes):
        order = rng.permutation(count)
        divergences: list[float] = []
        for start in range(0, count, rule.minibatch_steps):
            rows = order[start : start + rule.minibatch_steps]
            part = Batch(
                observations=data.observations[rows],
                actions=data.actions[rows],
                log_probs=data.log_probs[rows],
                advantages=data.advantages[rows],
                targets=data.targets[rows],
            )
            _, gradients, divergence = loss(params, part, rule)
            params = optimiser.step(params, _bounded(gradients, rule.gradient_norm))
            divergences.append(divergence)
        if float(np.mean(divergences)) > rule.too_far:
            break
    return params


def _bounded(gradients: Params, limit: float) -> Params:
    norm = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values())))
    if norm <= limit:
        return gradients
    return {name: gradient * (limit / norm) for name, gradient in gradients.items()}
