"""Playing CartPole-v1, and the record of whole episodes that goes from a collector to the learner."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray

from cartpole import model

ENVIRONMENT = "CartPole-v1"
LONGEST = 500  # steps; the environment cuts an episode here


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of T steps under one set of weights."""

    observations: NDArray[np.float32]  # (T + 1, 4): the last one is the state that the episode ended in
    actions: NDArray[np.uint8]  # (T,)
    rewards: NDArray[np.float32]  # (T,)
    log_probs: NDArray[np.float64]  # (T,): of the actions taken, under the weights that took them
    terminated: bool  # the pole fell; False: the environment's time limit cut the episode

    @property
    def steps(self) -> int:
        """How many steps the episode lasted."""
        return len(self.actions)

    @property
    def total(self) -> float:
        """The return, with no discount."""
        return float(self.rewards.sum())


class Player:
    """One environment, played with whatever weights it is given."""

    def __init__(self, seed: np.random.SeedSequence) -> None:
        for_env, for_actions = seed.spawn(2)
        self._env = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
        self._next_seed: int | None = int(for_env.generate_state(1)[0])
        self._rng = np.random.default_rng(for_actions)

    def _reset(self) -> NDArray[np.float32]:
        observation, _ = self._env.reset(seed=self._next_seed)
        self._next_seed = None
        return np.asarray(observation, dtype=np.float32)

    def explore(self, params: model.Params) -> Episode:
        """Play one episode with actions drawn from the policy, and keep all of it."""
        observations = [self._reset()]
        actions: list[int] = []
        rewards: list[float] = []
        log_probs: list[float] = []
        terminated = truncated = False
        while not (terminated or truncated):
            left, right = model.logits(params, observations[-1].astype(np.float64))
            # log p(right) = -log(1 + e^(left - right)); two actions need no general softmax here.
            log_right = -float(np.logaddexp(0.0, left - right))
            action = int(self._rng.random() < math.exp(log_right))
            log_probs.append(log_right if action else -float(np.logaddexp(0.0, right - left)))
            observation, reward, terminated, truncated, _ = self._env.step(action)
            observations.append(np.asarray(observation, dtype=np.float32))
            actions.append(action)
            rewards.append(float(reward))
        return Episode(
            observations=np.stack(observations),
            actions=np.array(actions, dtype=np.uint8),
            rewards=np.array(rewards, dtype=np.float32),
            log_probs=np.array(log_probs, dtype=np.float64),
            terminated=bool(terminated),
        )

    def greedy_return(self, params: model.Params) -> float:
        """Play one episode with the likeliest action at each step; the return of it."""
        observation = self._reset()
        total = 0.0
        terminated = truncated = False
        while not (terminated or truncated):
            left, right = model.logits(params, observation.astype(np.float64))
            observation, reward, terminated, truncated, _ = self._env.step(int(right > left))
            total += float(reward)
        return total


def pack(episodes: list[Episode]) -> dict[str, NDArray[np.generic]]:
    """The arrays of some episodes, end to end."""
    return {
        "lengths": np.array([episode.steps for episode in episodes], dtype=np.int64),
        "terminated": np.array([episode.terminated for episode in episodes], dtype=np.uint8),
        "observations": np.concatenate([episode.observations for episode in episodes]),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "rewards": np.concatenate([episode.rewards for episode in episodes]),
        "log_probs": np.concatenate([episode.log_probs for episode in episodes]),
    }


def unpack(arrays: dict[str, NDArray[np.generic]]) -> list[Episode]:
    """Take packed episodes apart; raises ValueError for anything that no collector of ours would send."""
    missing = {"lengths", "terminated", "observations", "actions", "rewards", "log_probs"} - arrays.keys()
    if missing:
        raise ValueError(f"episodes without {', '.join(sorted(missing))}")
    lengths = np.asarray(arrays["lengths"], dtype=np.int64)
    if lengths.ndim != 1 or not len(lengths) or lengths.min() < 1 or lengths.max() > LONGEST:
        raise ValueError(f"lengths of episodes must be 1 to {LONGEST}")
    steps = int(lengths.sum())
    for name, shape in {
        "terminated": lengths.shape,
        "observations": (steps + len(lengths), model.OBSERVATION_SIZE),
        "actions": (steps,),
        "rewards": (steps,),
        "log_probs": (steps,),
    }.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has shape {arrays[name].shape}, expected {shape}")
        if not np.isfinite(arrays[name].astype(np.float64)).all():
            raise ValueError(f"{name} holds values that are not finite")
    if np.asarray(arrays["actions"], dtype=np.int64).max() >= model.ACTIONS:
        raise ValueError("actions holds an action that the environment has not")
    return list(_cut(arrays, lengths))


def _cut(arrays: dict[str, NDArray[np.generic]], lengths: NDArray[np.int64]) -> Iterator[Episode]:
    start = 0
    for index, length in enumerate(int(length) for length in lengths):
        stop = start + length
        yield Episode(
            # Each episode before this one holds one observation more than it has steps.
            observations=np.asarray(arrays["observations"][start + index : stop + index + 1], dtype=np.float32),
            actions=np.asarray(arrays["actions"][start:stop], dtype=np.uint8),
            rewards=np.asarray(arrays["rewards"][start:stop], dtype=np.float32),
            log_probs=np.asarray(arrays["log_probs"][start:stop], dtype=np.float64),
            terminated=bool(arrays["terminated"][index]),
        )
        start = stop
