"""The controller's observability: log lines, metrics for Prometheus, and probes for the kubelet.

/healthz fails if a look at a job hangs; /readyz if the process neither leads with fresh caches nor stands by.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from diflow.daemon import probes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diflow.controller.daemon import Controller

STILL_SECONDS: Final = 300.0
"""A look at a job has up to about ten requests of at most 30 s each; a longer one hangs."""
_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """Metrics and health of a controller, which is set by `watch`. Pass `look` to it as its `on_look`."""

    def __init__(self) -> None:
        self._controller: Controller | None = None
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        here: dict[str, Any] = {"namespace": "diflow", "subsystem": "controller", "registry": self.registry}
        self.seconds = Histogram("look_seconds", "How long a look at a job took.", buckets=_BUCKETS, **here)
        gauges: tuple[tuple[str, str, Callable[[Controller], float]], ...] = (
            ("jobs", "DIJob objects.", lambda c: len(c.caches.jobs())),
            ("queue", "Jobs that are to be looked at, at once or later.", lambda c: len(c.queue)),
            ("refused_jobs", "Jobs that wait, as the last look at them failed.", lambda c: len(c.reconciler.refused)),
            ("held_jobs", "Objects for which their namespace has no room.", lambda c: sum(c.caches.full().values())),
            ("cache_age_seconds", "How old what is known of the cluster is.", lambda c: c.caches.all.age_seconds),
            (
                "late_seconds",
                "How long a change has waited whose namespace costs more than its part to read.",
                lambda c: c.caches.all.late(),
            ),
            ("leader", "1 while this process leads.", lambda c: float(c.elector.is_leader())),
        )
        for name, text, of in gauges:
            Gauge(name, text, **here).set_function(partial(self._value, of))
        self.registry.register(_Writes(self))

    def watch(self, controller: Controller) -> None:
        """Set the controller to observe."""
        self._controller = controller

    def look(self, seconds: float) -> None:
        """Count a look at a job."""
        self.seconds.observe(seconds)

    def _value(self, of: Callable[[Controller], float]) -> float:
        return float(of(self._controller)) if self._controller is not None else 0.0

    def writes(self) -> dict[str, int]:
        """The writes so far, by what was written."""
        return dict(self._controller.reconciler.made) if self._controller is not None else {}

    def health(self) -> str:
        """Why this process should be restarted, or ""."""
        still = self._controller.longest_look_seconds if self._controller is not None else 0.0
        return f"a look at a job has lasted for {still:.0f} s" if still > STILL_SECONDS else ""

    def readiness(self) -> tuple[bool, str]:
        """(whether it is ready, the state or reason as text)."""
        if self._controller is None:
            return False, "starting"
        elector = self._controller.elector
        trouble = self._controller.caches.all.trouble(self._controller.settings.stale_seconds)
        if elector.is_leader():
            trouble = self.health() or trouble
            return not trouble, trouble or "leading"
        trouble = elector.trouble or trouble
        return not trouble, trouble or f"standing by; {elector.holder or 'nobody'} leads"

    def app(self) -> probes.App:
        """The WSGI application that serves all three pages."""
        return probes.probes(make_wsgi_app(self.registry), health=self.health, readiness=self.readiness)


class _Writes(Collector):
    """The writes, as a counter."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterable[CounterMetricFamily]:
        """The present numbers."""
        family = CounterMetricFamily(
            "diflow_controller_writes", "Writes that the API server accepted.", labels=["object"]
        )
        for name, number in self._telemetry.writes().items():
            family.add_metric([name], number)
        yield family
