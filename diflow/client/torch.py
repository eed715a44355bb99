"""`ShardedIndices`: the indices of a data set's shards as an IterableDataset of torch, if torch is there.

from diflow.client.torch import ShardedIndices

loader = DataLoader(ShardedIndices(read, dataset="train", size=len(samples), shard=1000), batch_size=32)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from diflow.client.process import Client

try:
    from torch.utils.data import IterableDataset  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # the class can be iterated without torch
    IterableDataset = object


class ShardedIndices(IterableDataset):  # type: ignore[misc, unused-ignore]
    """`read(index)` of each index of this process's shards. `shards` are the arguments of `Client.shards`.

    Each worker process of a DataLoader has leases of its own, and in a job each is a worker to the server. A shard
    counts as done when its last sample has been read: batches that wait in the DataLoader are lost with the process.
    """

    def __init__(self, read: Callable[[int], Any], **shards: Any) -> None:
        super().__init__()
        self._read = read
        self._shards = shards

    def __iter__(self) -> Iterator[Any]:
        with Client().shards(**self._shards) as shards:
            for shard in shards:
                for index in shard:
                    yield self._read(index)
