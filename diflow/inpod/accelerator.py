"""What the node check measures with torch, if the image has it: a product on each GPU, and an all-reduce of the gang.

`python3 -m diflow.inpod.accelerator RANK REPLICAS HOST SECONDS` runs in a process of its own: a collective that waits
for a lost peer, or a driver that hangs, cannot be interrupted in any other way.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from diflow.inpod.measures import Outcome, repeated

PORT: Final = 29512
_ELEMENTS: Final = 4 * 2**20  # of 4 bytes
_SIDE: Final = 4096
_MOST_OUTPUT: Final = 4096
_LEAST_SECONDS: Final = 5.0


def measure(
    environ: Mapping[str, str],
    rank: int,
    hosts: Sequence[str],
    *,
    seconds: float,
    program: Sequence[str] | None = None,
) -> Outcome:
    """The figures with torch, within `seconds`; none without torch, or without enough time for it."""
    if program is None:
        if importlib.util.find_spec("torch") is None:
            return Outcome()
        program = (sys.executable, "-m", "diflow.inpod.accelerator")
    if seconds < _LEAST_SECONDS:
        return Outcome()
    host = hosts[0] if hosts else "localhost"
    command = [*program, str(rank), str(max(1, len(hosts))), host, f"{seconds:.1f}"]
    try:
        done = subprocess.run(  # noqa: S603 (a program of its own)
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=seconds, env=dict(environ), check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome()  # a peer is missing: the reports of the others show which one
    except OSError:
        return Outcome()
    return _read(done.stdout[-_MOST_OUTPUT:])


def _read(output: bytes) -> Outcome:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        found = {}
    if not isinstance(found, dict):
        return Outcome()
    figures = {name: float(found[name]) for name in ("gpu", "allreduce") if isinstance(found.get(name), int | float)}
    return Outcome(figures, str(found.get("failed") or ""))


def main(rank: int, replicas: int, host: str, seconds: float) -> dict[str, Any]:
    """The figures of this process's GPUs and of the gang's all-reduce."""
    import torch  # noqa: PLC0415 (half a minute on some disks, and most images have none)

    has_gpu = torch.cuda.is_available()
    out: dict[str, Any] = {}
    if has_gpu:
        try:
            out["gpu"] = max(_gpu(torch, index) for index in range(torch.cuda.device_count()))
        except RuntimeError as error:
            return {"failed": f"the GPU fails: {str(error).splitlines()[0][:120]}"}
    if replicas > 1:
        out["allreduce"] = _allreduce(torch, rank, replicas, host, seconds, has_gpu=has_gpu)
    return {name: value for name, value in out.items() if value is not None}


def _gpu(torch: Any, index: int) -> float:
    device = torch.device("cuda", index)
    one = torch.ones(_SIDE, _SIDE, device=device)

    def once() -> None:
        torch.mm(one, one)
        torch.cuda.synchronize(device)

    if float(torch.mm(one, one)[0, 0]) != _SIDE:
        raise RuntimeError(f"the matrix product of GPU {index} is wrong")
    return repeated(once, time.perf_counter, seconds=0.5)


def _allreduce(torch: Any, rank: int, replicas: int, host: str, seconds: float, *, has_gpu: bool) -> float | None:
    import torch.distributed as dist  # noqa: PLC0415

    limit = datetime.timedelta(seconds=max(1.0, seconds))
    device = torch.device("cuda", 0) if has_gpu else torch.device("cpu")
    try:
        dist.init_process_group(
            "nccl" if has_gpu else "gloo",
            init_method=f"tcp://{host}:{PORT}",
            rank=rank,
            world_size=replicas,
            timeout=limit,
        )
        data = torch.ones(_ELEMENTS, device=device)

        def once() -> None:
            dist.all_reduce(data)
            if has_gpu:
                torch.cuda.synchronize(device)

        once()
        times = []
        for _ in range(5):  # the same number in each process: it is a collective
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
        dist.barrier()
        dist.destroy_process_group()
        return sorted(times)[len(times) // 2]
    except Exception:  # such as a missing peer: the reports of the others show which one
        return None


if __name__ == "__main__":
    given = sys.argv[1:5]
    print(json.dumps(main(int(given[0]), int(given[1]), given[2], float(given[3]))), flush=True)  # noqa: T201
    os._exit(0)
