"""The node check as a program: it reports until it is answered, never fails, and ends in its time."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from diflow.client.wire import GoneError
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, InvalidError, UnauthorizedError, UnavailableError
from diflow.inpod import accelerator, check, measures
from diflow.inpod.measures import NodeError, Outcome
from diflow.record.nodecheck import PARTIAL_SHARE

ENVIRON = {
    "DI_CHECK_SECONDS": "100",
    "DI_RANK": "0",
    "DI_NODES": "a",
    "DI_JOB_ID": "ns/job",
    "DI_SERVER_URL": "http://x",
}
GO = {"verdict": "go"}
WAIT = {"verdict": "wait", "reason": "1 of 2 replicas have been checked"}


class FakeTime:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def pause(self, seconds: float) -> None:
        self.at += max(seconds, 0.001)


def run(
    *answers: Any,
    environ: Mapping[str, str] = ENVIRON,
    outcome: Outcome | None = None,
    clock: FakeTime | None = None,
    **options: Any,
) -> tuple[list[Any], float]:
    """(what was reported, when the check ended) with these answers; the last one is repeated."""
    clock, sent = clock or FakeTime(), []
    left = list(answers)

    def ask(body: Mapping[str, Any]) -> Any:
        sent.append(body)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, DiflowError):
            raise answer
        return answer

    check.run(
        environ,
        ask=ask,
        clock=Clock(monotonic=clock.now, sleep=clock.pause),
        measure=lambda **_: outcome or Outcome({"product": 0.0123456}),
        **options,
    )
    return sent, clock.at


def test_it_reports_until_the_work_may_begin() -> None:
    sent, ended = run(WAIT, WAIT, GO)
    assert sent == [{"figures": {"product": 0.01235}, "elapsedSeconds": seconds} for seconds in (0.0, 1.0, 2.0)]
    assert ended < 10


def test_it_reports_before_those_that_have_reported_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a peer that never comes, and an all-reduce that waits for it as long as it may."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    clock = FakeTime()

    def hanging(*_: Any, seconds: float) -> Outcome:
        clock.pause(seconds)
        return Outcome()

    monkeypatch.setattr(accelerator, "measure", hanging)
    sent, _ = run(GO, environ={**ENVIRON, "DI_NODES": "127.0.0.1,127.0.0.2"}, clock=clock, port=port)
    assert sent[0]["unmet"] == [1]
    assert sent[0]["elapsedSeconds"] < 100 * PARTIAL_SHARE


def test_what_has_failed_is_reported() -> None:
    sent, _ = run(GO, outcome=Outcome({}, "x" * 1000))
    assert sent == [{"figures": {}, "failed": "x" * 200, "elapsedSeconds": 0.0}]


@pytest.mark.parametrize(
    "answer", [WAIT, UnavailableError("down"), UnavailableError("busy", retry_after_seconds=1e9), GoneError("round")]
)
def test_without_a_decision_the_work_begins_in_time(answer: Any) -> None:
    sent, ended = run(answer)
    assert 5 < len(sent) <= 101
    assert 99 <= ended <= 101


@pytest.mark.parametrize("answer", [InvalidError("no"), UnauthorizedError("no"), None, [], {"verdict": 7}])
def test_a_server_that_takes_no_reports_holds_up_nobody(answer: Any) -> None:
    sent, ended = run(answer)
    assert (len(sent), ended) == (1, 0)


def test_large_gangs_ask_less_often() -> None:
    hosts = ",".join(f"h{i}" for i in range(500))
    # Rank 600 is of no host: it meets nobody.
    sent, _ = run(WAIT, environ={**ENVIRON, "DI_NODES": hosts, "DI_RANK": "600"})
    assert len(sent) <= 100 * check._REQUESTS_PER_SECOND / 500 + 1


@pytest.mark.parametrize(
    ("given", "seconds"), [("", 120), ("x", 120), ("nan", 120), ("-1", 120), ("30", 30), ("1e9", 3600), ("inf", 3600)]
)
def test_its_time_is_bounded(given: str, seconds: float) -> None:
    assert check.timeout_seconds({"DI_CHECK_SECONDS": given}) == seconds


def test_a_defect_of_the_check_does_not_fail_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(check, "run", broken)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert check.main({}) == 0


def test_outside_a_job_it_measures_and_ends() -> None:
    check.run({}, measure=lambda **_: Outcome({"product": 1.0}))


def test_two_checks_on_one_node_with_one_port_report_both() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    sent: dict[str, Any] = {}

    def replica(rank: str) -> None:
        def ask(body: Mapping[str, Any]) -> Any:
            sent[rank] = body
            return GO

        environ = {"DI_CHECK_SECONDS": "10", "DI_RANK": rank, "DI_NODES": "127.0.0.1,127.0.0.2", "DI_JOB_ID": "a/b"}
        check.run(
            {**environ, "DI_SERVER_URL": "http://x"}, ask=ask, measure=lambda **_: Outcome({"product": 1.0}), port=port
        )

    # One port for both: the second cannot listen, as with two pods of a host network, and is not met.
    threads = [threading.Thread(target=replica, args=(rank,)) for rank in ("0", "1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(sent) == {"0", "1"}


def test_this_machine_is_measured() -> None:
    outcome = measures.local(seconds=30)
    assert outcome.failed == ""
    assert set(outcome.figures) <= {"product", "memory", "disk"}
    assert {"product", "memory"} <= set(outcome.figures)
    assert all(value > 0 for value in outcome.figures.values())


def test_the_product_is_measured_without_numpy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(measures, "_SECONDS", 0.05)
    assert measures.product() > 0


def test_a_wrong_product_is_a_fault() -> None:
    with pytest.raises(NodeError, match="the matrix product is wrong"):
        measures._check(False)


def test_a_measurement_that_hangs_is_a_fault_and_does_not_hang_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()

    def stuck(_: Callable[[], float]) -> float:
        held.wait(30)
        return 1.0

    monkeypatch.setattr(measures, "disk", stuck)
    start = time.monotonic()
    outcome = measures.local(seconds=4)
    held.set()
    assert outcome.failed == "the measurement of disk did not end within 4 s"
    assert time.monotonic() - start < 25


def test_a_disk_that_cannot_be_written_is_no_fault(tmp_path: Any) -> None:
    assert measures.disk(folder=str(tmp_path / "missing")) is None


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("print('noise'); print('{\"allreduce\": 0.5, \"other\": 1}')", Outcome({"allreduce": 0.5})),
        ('print(\'{"failed": "the GPU fails"}\')', Outcome({}, "the GPU fails")),
        ("print('x' * 100000)", Outcome()),
        ("print('[1]')", Outcome()),
        ("raise SystemExit(3)", Outcome()),
        ("import time; time.sleep(60)", Outcome()),
    ],
)
def test_what_torch_measures_comes_from_a_process_that_may_hang(
    program: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "_LEAST_SECONDS", 0.0)
    found = accelerator.measure({}, 0, ["a", "b"], seconds=3, program=(sys.executable, "-c", program))
    assert found == outcome


def test_without_torch_there_are_no_such_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert accelerator.measure({}, 0, ["a"], seconds=30) == Outcome()


@pytest.mark.parametrize(
    ("name", "text", "is_little"),
    [
        ("memory.max", "134217728\n", True),
        ("memory.max", "max\n", False),
        ("memory.max", "2147483648\n", False),
        ("memory/memory.limit_in_bytes", "67108864\n", True),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", False),
        ("other", "1\n", False),
    ],
)
def test_the_limit_of_memory_is_read_of_the_control_group(
    tmp_path: Path, name: str, text: str, is_little: bool
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / name).write_text(text)
    assert measures.has_little_memory(tmp_path) is is_little


def test_with_little_memory_numpy_is_not_loaded() -> None:
    program = "from diflow.inpod import measures; import sys, re\n"
    program += "measures.has_little_memory = lambda: True\n"
    program += "assert set(measures.local(seconds=30).figures) >= {'product', 'memory'}\n"
    program += "assert 'numpy' not in sys.modules\n"
    program += "highest = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
    program += "assert highest < 48 * 1024, highest\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
