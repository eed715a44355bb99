"""What the shards of a data set are: `size` samples, cut into shards, in the order of a seed, over several epochs.

All shards of all epochs are numbered: unit `u` is the shard at position `u % per_epoch` of epoch `u // per_epoch`. With
a seed, each epoch has another order of the shards: a permutation that is computed for each position and stored nowhere
(a Feistel network over the next power of four, applied again while the result is outside the range).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from diflow.common.errors import InvalidError

MOST_SAMPLES: Final = 10**12
MOST_EPOCHS: Final = 10**6
MOST_SEED: Final = 2**63 - 1
MOST_UNITS: Final = 10**15
"""Shards of all epochs. JSON numbers up to 2^53 are exact in all languages."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_ROUNDS: Final = 4


def is_name(text: object) -> bool:
    """Whether this can be the name of a data set: 1 to 63 letters, digits, `.`, `_`, `-`."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Span:
    """The samples of a unit: the indices from `start` to `stop` - 1, in epoch `epoch` (from 0)."""

    unit: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """`size` samples in shards of `shard` (the last may be smaller), `epochs` times. Raises InvalidError."""

    size: int
    shard: int
    epochs: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("size", self.size, 1, MOST_SAMPLES)
        _check("shard", self.shard, 1, MOST_SAMPLES)
        _check("epochs", self.epochs, 1, MOST_EPOCHS)
        if self.seed is not None:
            _check("seed", self.seed, 0, MOST_SEED)
        if self.units > MOST_UNITS:
            raise InvalidError(f"at most {MOST_UNITS:,} shards in all epochs: make them larger", path="shard")

    @property
    def per_epoch(self) -> int:
        """Shards of one epoch."""
        return -(-self.size // self.shard)

    @property
    def units(self) -> int:
        """Shards of all epochs."""
        return self.per_epoch * self.epochs

    def span(self, unit: int) -> Span:
        """The samples of a unit (0 to `units` - 1)."""
        epoch, position = divmod(unit, self.per_epoch)
        at = position if self.seed is None else permuted(position, self.per_epoch, seed=self.seed, epoch=epoch)
        start = at * self.shard
        return Span(unit, epoch, start, min(start + self.shard, self.size))


def permuted(position: int, length: int, *, seed: int, epoch: int) -> int:
    """The image of `position` under a permutation of 0 to `length` - 1 that depends on seed and epoch."""
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    key = seed.to_bytes(8, "big") + epoch.to_bytes(8, "big")
    at = position
    while True:  # of less than four values on average, one is in the range
        left, right = at >> half, at & mask
        for number in range(_ROUNDS):
            text = bytes((number,)) + right.to_bytes(8, "big")
            left, right = right, left ^ (int.from_bytes(blake2b(text, digest_size=8, key=key).digest()) & mask)
        at = left << half | right
        if at < length:
            return at


def _check(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidError(f"must be a whole number from {least:,} to {most:,}", path=name)
