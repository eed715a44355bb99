"""The server of `diflow server run`: connects the API and the status page to one cache. Wiring only."""

from __future__ import annotations

from functools import partial

from diflow.daemon.memory import kept_small
from diflow.server.api.app import create_app
from diflow.server.api.cache import Cache
from diflow.server.http.serving import serve
from diflow.server.page import mount
from diflow.server.page.cache import PageCache
from diflow.server.settings import ServerSettings
from diflow.server.telemetry import CountedCluster, Telemetry


def run(cluster: CountedCluster, settings: ServerSettings) -> int:
    """Serve until a signal. Returns the exit code. Raises InvalidError for an unusable address or certificate.

    It serves from the start, with 503 until the cache is filled; /readyz reports whether the cluster can be reached.
    """
    telemetry = Telemetry()
    cluster.on_request = telemetry.asked
    page = PageCache(cluster, namespace=settings.watched_namespace)
    cache = Cache(
        cluster,
        namespace=settings.watched_namespace,
        stale_seconds=settings.stale_seconds,
        reading_share=settings.reading_share,
        kept_mib=settings.kept_mib,
        beside=page.beside,
    )
    app = create_app(
        cluster=cluster,
        cache=cache,
        settings=settings,
        on_answer=telemetry.answered,
        routes=partial(mount.mounted, page=page, argo_url=settings.argo_url),
    )
    core = app.state.core

    def trouble() -> str:
        good, why = core.readiness()
        return "" if good else str(why)

    telemetry.trouble = trouble
    telemetry.ages = lambda: {
        reflector.kind.plural: reflector.age_seconds for reflector in (cache.workflows, cache.pods)
    }
    cache.start()
    page.start(cache)
    try:
        with kept_small():
            return serve(app, settings, telemetry=telemetry, on_ending=lambda: setattr(core, "is_ending", True))
    finally:
        page.stop()
        cache.stop()
