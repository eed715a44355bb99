"""The actor-critic network and its optimiser, in plain numpy: two tanh layers for the policy, two for the value.

Knows nothing of episodes, sockets or files. Parameters are a dict of arrays, so that they go over the wire and into a
checkpoint as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Params = dict[str, Array]

OBSERVATION_SIZE = 4
ACTIONS = 2
HIDDEN = 64
HEADS = {"policy": ACTIONS, "value": 1}


def initial(rng: np.random.Generator) -> Params:
    """Orthogonal layers; the policy's last one is small, so that the first episodes try both actions equally."""
    params: Params = {}
    for head, outputs in HEADS.items():
        for layer, (inputs, width, gain) in enumerate(
            (
                (OBSERVATION_SIZE, HIDDEN, 2**0.5),
                (HIDDEN, HIDDEN, 2**0.5),
                (HIDDEN, outputs, 0.01 if head == "policy" else 1.0),
            )
        ):
            params[f"{head}/w{layer}"] = gain * _orthogonal(rng, inputs, width)
            params[f"{head}/b{layer}"] = np.zeros(width)
    return params


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    square, triangle = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    square = square * np.sign(np.diag(triangle))
    return np.ascontiguousarray(square if rows >= columns else square.T, dtype=np.float64)


def shapes() -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter: what a peer's or a checkpoint's weights are held against."""
    return {name: value.shape for name, value in initial(np.random.default_rng(0)).items()}


def checked(arrays: Mapping[str, NDArray[np.generic]]) -> Params:
    """Return the arrays as parameters; raises ValueError when a name, a shape or a value is not one of ours."""
    wanted = shapes()
    if arrays.keys() != wanted.keys():
        raise ValueError(f"parameters are named {sorted(arrays)}, expected {sorted(wanted)}")
    params: Params = {}
    for name, shape in wanted.items():
        value = arrays[name]
        if value.shape != shape:
            raise ValueError(f"parameter {name} has shape {value.shape}, expected {shape}")
        params[name] = np.asarray(value, dtype=np.float64)
        if not np.isfinite(params[name]).all():
            raise ValueError(f"parameter {name} holds values that are not finite")
    return params


def _hidden(params: Params, head: str, observations: Array) -> tuple[Array, Array]:
    first = np.tanh(observations @ params[f"{head}/w0"] + params[f"{head}/b0"])
    second = np.tanh(first @ params[f"{head}/w1"] + params[f"{head}/b1"])
    return first, second


def logits(params: Params, observations: Array) -> Array:
    """Unnormalised log-probabilities of the actions: (n, 4) → (n, 2), or (4,) → (2,)."""
    _, second = _hidden(params, "policy", observations)
    out: Array = second @ params["policy/w2"] + params["policy/b2"]
    return out


def values(params: Params, observations: Array) -> Array:
    """The value of each observation: (n, 4) → (n,)."""
    _, second = _hidden(params, "value", observations)
    out: Array = (second @ params["value/w2"] + params["value/b2"])[..., 0]
    return out


def log_softmax(scores: Array) -> Array:
    """Log-probabilities along the last axis, safe for large scores."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out


def backward(params: Params, head: str, observations: Array, output_gradient: Array) -> Params:
    """Gradients of a head's parameters, given the gradient of a loss with respect to the head's output (n, k)."""
    first, second = _hidden(params, head, observations)
    into_second = (output_gradient @ params[f"{head}/w2"].T) * (1.0 - second**2)
    into_first = (into_second @ params[f"{head}/w1"].T) * (1.0 - first**2)
    return {
        f"{head}/w0": observations.T @ into_first,
        f"{head}/b0": into_first.sum(axis=0),
        f"{head}/w1": first.T @ into_second,
        f"{head}/b1": into_second.sum(axis=0),
        f"{head}/w2": second.T @ output_gradient,
        f"{head}/b2": output_gradient.sum(axis=0),
    }


@dataclass(slots=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with its state open for checkpoints."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5
    steps: int = 0
    first: Params = field(default_factory=dict)
    second: Params = field(default_factory=dict)

    def step(self, params: Params, gradients: Params) -> Params:
        """Return new parameters, one step down the gradients."""
        self.steps += 1
        rate = self.learning_rate * (1 - self.beta2**self.steps) ** 0.5 / (1 - self.beta1**self.steps)
        updated: Params = {}
        for name, gradient in gradients.items():
            first = self.first.get(name, np.zeros_like(gradient))
            second = self.second.get(name, np.zeros_like(gradient))
            self.first[name] = self.beta1 * first + (1 - self.beta1) * gradient
            self.second[name] = self.beta2 * second + (1 - self.beta2) * gradient**2
            updated[name] = params[name] - rate * self.first[name] / (np.sqrt(self.second[name]) + self.epsilon)
        return updated
