"""Data-parallel training with torch's DistributedDataParallel that may be killed, resized and moved at any moment.

Each replica is one rank. The samples come in shards from diflow's server, so it does not matter how many ranks there
are, and a rank may take more of them than another. A checkpoint has the model, and which shards the model has seen: so
each sample counts once an epoch, whatever happens in between, and the end checks it. A shard is one batch, so no
checkpoint has half of one. On SIGTERM all ranks save together, and leave. A rank whose peers are gone leaves as well,
with the exit code of a program that was stopped: it has not failed itself.

    BATCH, STEP_SECONDS, EPOCHS, SAMPLES   sizes; STEP_SECONDS makes a step last longer, to watch it
    CHECKPOINT_STEPS                       steps between two checkpoints
    DATA                                   the folder in which each job has one, with its checkpoint and its history
                                           (default: /data); remove a job's before another one gets its name
"""

import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diflow import client
from diflow.client.shards import Shards

BATCH = int(os.environ.get("BATCH", "32"))
SAMPLES = int(os.environ.get("SAMPLES", "20000"))
EPOCHS = int(os.environ.get("EPOCHS", "2"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
CHECKPOINT_STEPS = int(os.environ.get("CHECKPOINT_STEPS", "20"))
DATA = Path(os.environ.get("DATA", "/data")) / os.environ.get("DI_JOB_ID", "alone").replace("/", ".")
FEATURES, CLASSES = 32, 4
EXIT_STOPPED = 143  # as a program that SIGTERM ends
LOST_PEER = re.compile("gloo|[Cc]onnection|[Bb]roken pipe|[Tt]ime(d )?out|[Ss]ocket")  # in the errors of collectives


def samples(indices: list[int]) -> tuple[Tensor, Tensor]:
    """The features and classes of these samples: points around four centres, the same for the same index."""
    features, classes = torch.zeros(len(indices), FEATURES), torch.zeros(len(indices), dtype=torch.long)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    for row, index in enumerate(indices):
        generator = torch.Generator().manual_seed(index + 1)
        classes[row] = index % CLASSES
        features[row] = 0.25 * centres[index % CLASSES] + torch.randn(FEATURES, generator=generator)
    return features, classes


def main() -> int:
    """Train until all samples of all epochs are used, or until SIGTERM. Returns the exit code."""
    try:
        return train()
    except RuntimeError as error:  # torch has no other for a collective that fails
        if not LOST_PEER.search(str(error)):
            raise
        say(f"stops, as a peer is gone: {str(error).splitlines()[0]}")
        return EXIT_STOPPED


def train() -> int:
    """As `main`. Raises RuntimeError if a peer is gone."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    DATA.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    shards = client.shards(
        dataset="train", size=SAMPLES, shard=BATCH, epochs=EPOCHS, shuffle_seed=1, prefetch=16, checkpointed=True
    )
    model, book = DistributedDataParallel(net), Book(net, optimizer, shards)
    step = book.load(is_first=rank == 0)
    dist.barrier()  # no rank takes a shard before the server knows what the checkpoint has
    stop: list[bool] = []
    client.on_stop(lambda: stop.append(True))  # until here there is nothing to save, and the signal ends the process
    saved, seen = step, sum(book.counts.values()) * BATCH
    say(f"rank {rank} of {world} goes on at step {step}")
    if rank == 0:
        note({"time": time.time(), "step": step, "loss": None, "world": world, "seen": seen})
    while True:
        began = time.perf_counter()
        shard = shards.take()  # None: this rank takes part without samples
        indices = list(shard or ())
        wish = torch.tensor([len(indices), bool(stop), shards.is_finished], dtype=torch.float32)
        dist.all_reduce(wish)  # so that all ranks decide the same
        total, stopping, finished = wish.tolist()
        if total:
            loss = learn(model, optimizer, indices, share=world / total)
            step, seen = step + 1, seen + int(total)
            if shard is not None:
                shard.done()
                book.units.append(shard.span.unit)
            time.sleep(STEP_SECONDS)
            spent = time.perf_counter() - began
            client.report(speed=total / spent / world, step=step, batch=len(indices) or None, step_seconds=spent,
                          progress=seen / (SAMPLES * EPOCHS))  # fmt: skip
            if rank == 0:
                note({"time": time.time(), "step": step, "loss": loss, "world": world, "seen": seen})
        else:
            time.sleep(0.2)
        is_over = not total and finished == world
        if stopping or step - saved >= CHECKPOINT_STEPS or (not total and step > saved):
            book.save(step, is_first=rank == 0)
            saved = step
        if stopping or is_over:
            shards.close()
            dist.barrier()
            say(f"rank {rank} {'is finished' if is_over else 'was stopped'} at step {step}")
            return book.verdict() if is_over else EXIT_STOPPED


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, indices: list[int], *, share: float) -> float:
    """One step of all ranks; a rank without samples takes part. Returns the mean loss over the samples of all ranks."""
    features, classes = samples(indices or [0])
    loss = nn.functional.cross_entropy(model(features), classes, reduction="sum") * (share if indices else 0.0)
    optimizer.zero_grad()
    loss.backward()  # the mean over ranks of each rank's sum, times ranks over samples
    optimizer.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return float(mean)


class Book:
    """The checkpoints. `units`: what this rank has learned since the last one; `counts`: how often the model of the
    last one has learned each shard of each epoch."""

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, shards: Shards) -> None:
        self._net, self._optimizer, self._shards = net, optimizer, shards
        self.units: list[int] = []
        self.counts: Counter[int] = Counter()

    def save(self, step: int, *, is_first: bool) -> None:
        """Store a checkpoint, and then report the shards that it has."""
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (self.units, self._shards.state_dict()))
        for units, _ in ranks:
            self.counts.update(units)
        self.units = []
        if is_first:
            models = {"net": self._net.state_dict(), "optimizer": self._optimizer.state_dict()}
            states = {"step": step, "counts": self.counts, "shards": [state for _, state in ranks]}
            torch.save({**models, **states}, DATA / "checkpoint.new")
            os.replace(DATA / "checkpoint.new", DATA / "checkpoint.pt")
        dist.barrier()
        self._shards.commit()

    def load(self, *, is_first: bool) -> int:
        """Go on from the checkpoint, if there is one. Returns its step."""
        path = DATA / "checkpoint.pt"
        if not path.exists():
            return 0
        state = torch.load(path)
        self._net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.counts = state["counts"]
        if is_first:
            for each in state["shards"]:
                self._shards.load_state_dict(each)
        return int(state["step"])

    def verdict(self) -> int:
        """0 if the model has learned each shard of each epoch once, else 1."""
        wrong = [unit for unit in range(-(-SAMPLES // BATCH) * EPOCHS) if self.counts[unit] != 1]
        say(f"{sum(self.counts.values())} shards learned; not exactly once: {wrong[:10] or 'none'}")
        return 1 if wrong else 0


def note(row: dict[str, Any]) -> None:
    """Add a line to the history. A start has no loss."""
    with (DATA / "history.jsonl").open("a") as out:
        out.write(json.dumps(row) + "\n")


def say(text: str) -> None:
    """Write a line to the log."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
