"""`python3 -m diflow.inpod.check`: the node check, as an init container of a job's pods.

It measures its node, meets the peers, and reports the figures to the server until that answers that the work may begin.
While it waits, the allocator may place the gang again, which ends this pod. It never fails: what a node is worth is
decided from the figures of all, and a check that cannot report must not keep a job from its work. It ends within
DI_CHECK_SECONDS whatever the peers, the server and the disk do.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from diflow.client.place import Place, find
from diflow.client.wire import GoneError, Wire
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import DiflowError, InvalidError, NotFoundError, UnauthorizedError
from diflow.common.limits import LONGEST_FAILURE, MOST_PEERS
from diflow.inpod import accelerator, measures
from diflow.inpod.measures import Outcome
from diflow.inpod.meetings import PORT, Meetings

DEFAULT_SECONDS: Final = 120.0
_LONGEST_SECONDS: Final = 3600.0
_LOCAL_SHARE: Final = 0.3  # of the time, for the measurements of the node alone, which need about 3 s
_PEERS_SHARE: Final = 0.6  # of the time, after which no more peers are awaited
_FIGURES_SHARE: Final = 0.7  # of the time, for all measurements: they are judged soon after (nodecheck.PARTIAL_SHARE)
_POLL_SECONDS: Final = 1.0
_REQUESTS_PER_SECOND: Final = 25.0  # of all replicas of a job together; the server accepts twice as many
_ANSWER_SECONDS: Final = 5.0
_LONGEST_ROSTER: Final = 131_072

log = logging.getLogger("diflow.check")

Ask = Callable[[Mapping[str, Any]], Any]
"""Sends a report and returns the data of the answer. Raises DiflowError."""


def main(environ: Mapping[str, str] | None = None) -> int:
    """Run the check of this pod. Always returns 0."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    environ = os.environ if environ is None else environ
    # As the first process of its container it would ignore the signal, and delay the end of the pod.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    try:
        run(environ)
    except Exception:  # a defect of the check is no fault of the node
        log.exception("the check could not be done: the work begins")
    return 0


def run(
    environ: Mapping[str, str],
    *,
    ask: Ask | None = None,
    clock: Clock = SYSTEM,
    measure: Callable[..., Outcome] = measures.local,
    port: int = PORT,
) -> None:
    """Measure, meet the peers, report, and wait for the answer."""
    seconds = timeout_seconds(environ)
    began = clock.monotonic()
    until = began + seconds

    def left(share: float) -> float:
        return max(0.0, began + share * seconds - clock.monotonic())

    place = find(environ)
    hosts = [host for host in environ.get("DI_NODES", "")[:_LONGEST_ROSTER].split(",") if host]
    rank = place.rank if place is not None and place.rank is not None and place.rank < len(hosts) else None
    meetings = Meetings(rank, hosts, port=port, clock=clock) if rank is not None and len(hosts) > 1 else None
    if meetings is not None and not meetings.listen():
        log.warning("port %d is in use: the peers are not met", port)
        meetings = None
    try:
        outcome = measure(seconds=_LOCAL_SHARE * seconds)
        if meetings is not None:
            meetings.ready.set()
            meetings.meet(seconds=left(_PEERS_SHARE))
            meetings.await_lower(seconds=left(_PEERS_SHARE))
            outcome.figures |= meetings.figures()
        found = accelerator.measure(environ, rank or 0, hosts, seconds=left(_FIGURES_SHARE))
        outcome.figures |= found.figures
        outcome.failed = outcome.failed or found.failed
        for name, value in outcome.figures.items():
            log.info("%s: %.4g s", name, value)
        if outcome.failed:
            log.error("%s", outcome.failed)
        if ask is None and place is not None:
            ask = _asker(place)
        if ask is not None:
            _report(
                lambda: {**_body(outcome, meetings), "elapsedSeconds": round(clock.monotonic() - began, 1)},
                ask,
                max(1, len(hosts)),
                until=until,
                clock=clock,
            )
    finally:
        if meetings is not None:
            meetings.close()


def timeout_seconds(environ: Mapping[str, str]) -> float:
    """The time of the whole check from DI_CHECK_SECONDS."""
    try:
        given = float(environ.get("DI_CHECK_SECONDS", ""))
    except ValueError:
        return DEFAULT_SECONDS
    return min(given, _LONGEST_SECONDS) if given >= 1 else DEFAULT_SECONDS


def _body(outcome: Outcome, meetings: Meetings | None) -> dict[str, Any]:
    figures = {**outcome.figures, **(meetings.figures() if meetings is not None else {})}  # of late peers too
    body: dict[str, Any] = {"figures": {name: float(f"{value:.4g}") for name, value in figures.items()}}
    if outcome.failed:
        body["failed"] = outcome.failed[:LONGEST_FAILURE]
    if meetings is not None and (unmet := meetings.unmet()):
        body["unmet"] = list(unmet)[:MOST_PEERS]
    return body


def _asker(place: Place) -> Ask:
    wire = Wire(place)
    return lambda body: wire.ask(
        "POST", f"/v2alpha1/job/{place.job}/checks", body, key=None, timeout_seconds=_ANSWER_SECONDS
    )


def _report(
    body: Callable[[], Mapping[str, Any]],
    ask: Ask,
    replicas: int,
    *,
    until: float,
    clock: Clock,
) -> None:
    """Report until the server answers `go`, at most until `until`. Each request repeats the report, as a server may
    have been killed before it has stored it."""
    between = max(_POLL_SECONDS, replicas / _REQUESTS_PER_SECOND)
    said = ""
    while clock.monotonic() < until:
        wait = between
        try:
            answer = ask(body())
        except GoneError:
            said = _say(said, "the job has another round: this pod is about to end")
        except (InvalidError, NotFoundError, UnauthorizedError) as error:
            log.warning("the server does not take the report, and the work begins: %s", error)
            return
        except DiflowError as error:
            said = _say(said, f"the report is not taken yet: {error}")
            wait = max(between, min(getattr(error, "retry_after_seconds", None) or 0.0, 10.0))
        else:
            if not isinstance(answer, dict) or answer.get("verdict") != "wait":
                log.info("the work begins")
                return
            said = _say(said, str(answer.get("reason") or "waits for the results of the peers")[:1000])
        clock.sleep(max(0.0, min(wait, until - clock.monotonic())))
    log.warning("no decision in time: the work begins")


def _say(before: str, text: str) -> str:
    if text != before:
        log.info("%s", text)
    return text


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a measurement that hangs must not keep the process
