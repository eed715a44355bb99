"""ddp.train with a fault to order, for `make demo-training`: a rank that needs more memory from some moment on.

While the job's folder has a file `memory-RANK`, the rank holds as many MiB as the file says.
"""

import os
import sys
import threading
import time

from ddp import train


def hold() -> None:
    """Take the memory as soon as the file is there, and keep it."""
    path = train.DATA / f"memory-{os.environ.get('RANK', '0')}"
    while not path.exists():
        time.sleep(0.5)
    held = []
    for _ in range(int(path.read_text())):
        held.append(bytearray(os.urandom(1)) * (1 << 20))  # written, so that it is really there
    train.say(f"holds {len(held)} MiB more")
    while held:
        time.sleep(3600)


if __name__ == "__main__":
    threading.Thread(target=hold, daemon=True).start()
    sys.exit(train.main())
