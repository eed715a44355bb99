"""A process gives back what it does not use any more."""

from __future__ import annotations

import subprocess
import sys

from diflow.daemon.memory import Heap

MIB = 2**20


def test_what_is_free_is_given_back_when_the_process_has_grown() -> None:
    size, trims = [100 * MIB], list[int]()

    def trim() -> None:
        trims.append(size[0])
        size[0] = 110 * MIB

    heap = Heap(lambda: size[0], trim)
    for now in (100, 120, 131):
        size[0] = now * MIB
        heap.look()
    assert trims == []
    size[0] = 140 * MIB
    heap.look()
    heap.look()
    assert trims == [140 * MIB]
    for now in (90, 120, 125):
        size[0] = now * MIB
        heap.look()
    assert trims == [140 * MIB, 125 * MIB], "growth counts from the least size"
    for _ in range(5):
        heap.look()
    assert len(trims) == 3, "what was freed after a trim does not show as growth"


_PROGRAM = """
import threading, time
from pathlib import Path
from diflow.daemon.memory import kept_small

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work():
    for _ in range(4):
        texts = [b"x" * 1000 + str(i).encode() for i in range(50_000)]
        kept.append(texts[::500])

kept = []
before = resident()
with kept_small():
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads
    time.sleep(8)
    print(resident() - before)
"""


def test_a_process_is_small_again_after_its_threads_used_much() -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert int(found.stdout) < 80 * MIB, "400 MB were used at once, and 3 MB are kept"
