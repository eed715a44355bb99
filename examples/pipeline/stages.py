"""The programs of the pipeline's pods: `python3 -m pipeline.stages STAGE`.

The model is a line, fitted to noisy points by stochastic gradient descent. The learner has the weights; workers fetch
them, and send gradients of some points. Workers may come and go at any time, so their number can change while the
learner trains. It needs only the standard library.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PORT = 22270
_RATE = 0.05
_BATCH = 16
_PAUSE_SECONDS = 0.1
# How long the learner still answers when it is done, and how long a worker waits for a learner that does not answer.
_LINGER_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0
_LONGEST_BODY = 4096

Points = list[tuple[float, float]]


class Model:
    """The line y = a x + b, and the number of steps of its training. Threads may share it."""

    def __init__(self, steps: int) -> None:
        self._lock = threading.Lock()
        self._a = self._b = 0.0
        self._left = steps
        self.done = threading.Event()

    def weights(self) -> dict[str, Any]:
        """The weights, and whether the training is done."""
        with self._lock:
            return {"a": self._a, "b": self._b, "done": self.done.is_set()}

    def descend(self, a: float, b: float) -> None:
        """Take one step against this gradient."""
        with self._lock:
            if self._left <= 0:
                return
            self._a, self._b, self._left = self._a - _RATE * a, self._b - _RATE * b, self._left - 1
            if self._left == 0:
                self.done.set()


def prepare(count: int = 100) -> Points:
    """Points around the line y = 3 x - 2."""
    chance = random.Random(0)
    xs = [chance.uniform(-1, 1) for _ in range(count)]
    return [(round(x, 3), round(3 * x - 2 + chance.gauss(0, 0.1), 3)) for x in xs]


def gradient(points: Points, a: float, b: float) -> tuple[float, float]:
    """The gradient of the mean squared error of these points."""
    errors = [(a * x + b - y, x) for x, y in points]
    return sum(2 * e * x for e, x in errors) / len(points), sum(2 * e for e, _ in errors) / len(points)


def loss(points: Points, a: float, b: float) -> float:
    """The mean squared error."""
    return sum((a * x + b - y) ** 2 for x, y in points) / len(points)


def serve(model: Model, port: int = PORT) -> ThreadingHTTPServer:
    """A server of the weights, which also takes gradients."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            length = min(int(self.headers.get("content-length", 0)), _LONGEST_BODY)
            found = json.loads(self.rfile.read(length))
            model.descend(float(found["a"]), float(found["b"]))
            self._answer()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name in the base class)
            pass

        def _answer(self) -> None:
            body = json.dumps(model.weights()).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def learn(steps: int, result: Path = Path("/dev/termination-log")) -> None:
    """The learner: serve until the training is done. Its result is the step's output `result`."""
    model = Model(steps)
    server = serve(model)
    model.done.wait()
    weights = model.weights()
    result.write_text(json.dumps({"a": weights["a"], "b": weights["b"]}))
    time.sleep(_LINGER_SECONDS)  # the workers see that it is done
    server.shutdown()


def work(url: str, points: Points, *, pause_seconds: float = _PAUSE_SECONDS) -> None:
    """A worker: send gradients until the learner says that the training is done."""
    chance = random.Random()
    weights: dict[str, Any] = {}
    gives_up = time.monotonic() + _PATIENCE_SECONDS
    while not weights.get("done"):
        body = None
        if weights:
            a, b = gradient(chance.sample(points, min(_BATCH, len(points))), weights["a"], weights["b"])
            body = json.dumps({"a": a, "b": b}).encode()
        try:
            with urllib.request.urlopen(url, body, timeout=10) as answer:  # noqa: S310 (our own learner)
                weights = json.load(answer)
            gives_up = time.monotonic() + _PATIENCE_SECONDS
        except (urllib.error.URLError, OSError):
            if time.monotonic() > gives_up:
                raise
        time.sleep(pause_seconds)


def main(stage: str) -> None:
    """Run one stage, with its inputs in environment variables."""
    if stage == "prepare":
        Path("/tmp/data.json").write_text(json.dumps(prepare()))  # noqa: S108 (inside the container)
        return
    if stage == "learner":
        learn(int(os.environ["STEPS"]))
        return
    points = [(float(x), float(y)) for x, y in json.loads(os.environ["DATA"])]
    if stage == "worker":
        work(f"http://{os.environ['DI_LEARNER_NODES']}:{PORT}/", points)
    elif stage == "evaluate":
        model = json.loads(os.environ["MODEL"])
        Path("/tmp/loss").write_text(f"{loss(points, model['a'], model['b']):.4f}")  # noqa: S108
    else:
        raise SystemExit(f"there is no stage {stage!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
