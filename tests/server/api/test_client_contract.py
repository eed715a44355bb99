"""The client of a training process and the server, over a socket: each understands the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from diflow.allocator.watch import reports
from diflow.client import Client
from diflow.common import keys
from diflow.common.errors import InvalidError, NotFoundError, UnauthorizedError
from tests.server.place import Place, asynchronous, elastic, soon

_SECONDS = 60.0


@contextlib.asynccontextmanager
async def served(place: Place) -> AsyncIterator[str]:
    """The server over this place, on a socket. Gives its URL."""
    async with place.asked():
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(place.app, lifespan="off", log_config=None, ws="none")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
            listening.close()


def replica(url: str, token: Path, *, job: str = "elastic", rank: int = 0, replicas: int = 2) -> Client:
    """The client in a container of this replica."""
    nodes = ",".join(f"{job}-worker-{i}.di-{job}" for i in range(replicas))
    return Client(
        {
            "DI_JOB_ID": f"default/{job}",
            "DI_SERVER_URL": url,
            "DI_TOKEN_FILE": str(token),
            "DI_RANK": str(rank),
            "DI_NODES": nodes,
        }
    )


@asynchronous
async def test_a_replica_asks_and_changes_how_many_there_are(place: Place, tmp_path: Path) -> None:
    place.running(elastic(replicas=2))
    token = tmp_path / "token"
    token.write_text(place.authority.pod_token("elastic-worker-1-1", job="elastic"))
    async with served(place) as url:
        with replica(url, token, rank=1) as client:
            found = await asyncio.to_thread(client.replicas, timeout_seconds=_SECONDS)
            assert found == ["10.0.0.1:22270", "10.0.0.2:22270"]
            await asyncio.to_thread(client.add_replicas, 3, timeout_seconds=_SECONDS)
            assert json.loads(place.parameter("elastic", keys.PARAM_REPLICAS)) == {"worker": 5}
            await asyncio.to_thread(client.delete_replicas, 1, "worker", timeout_seconds=_SECONDS)
            assert json.loads(place.parameter("elastic", keys.PARAM_REPLICAS)) == {"worker": 4}
            with pytest.raises(InvalidError, match="status 422"):
                await asyncio.to_thread(client.add_replicas, 100, timeout_seconds=_SECONDS)
            with pytest.raises(InvalidError, match="status 400"):
                await asyncio.to_thread(client.add_replicas, 1, "nobody", timeout_seconds=_SECONDS)


@asynchronous
async def test_reports_of_replicas_become_what_the_allocator_reads(place: Place, tmp_path: Path) -> None:
    place.running(elastic(replicas=2))
    async with served(place) as url:
        for rank in range(2):
            token = tmp_path / f"token-{rank}"
            token.write_text(place.authority.pod_token(f"elastic-worker-1-{rank}", job="elastic"))
            client = replica(url, token, rank=rank)
            client.report(
                speed=100 + rank,
                step=7,
                batch=32,
                step_seconds=0.32,
                compute_seconds=0.3,
                grad_norm=1,
                grad_var=2,
                progress=0.5,
                local_batch_bounds=(16, 64),
                init_batch_size=64,
                max_batch_size=1024,
                gradient_accumulation=True,
                memory_bytes=2**30,
            )
            await asyncio.to_thread(client.close, _SECONDS)
        await soon(lambda: '"1":{' in place.parameter("elastic", keys.PARAM_PROFILINGS), "both ranks are written")
        text = place.parameter("elastic", keys.PARAM_PROFILINGS)
    assert json.loads(text)["ranks"]["1"] == {
    "task": "worker", "speed": 101, "step": 7, "batch": 32, "stepSeconds": 0.32, "syncSeconds": 0.02,
    "memoryBytes": 2**30,
    }  # fmt: skip
    assert reports.speed(text) == pytest.approx(201.0)
    profile = reports.profile(text)
    assert profile is not None
    assert (profile.grad_sqr, profile.grad_var, profile.fraction_done) == (1.0, 2.0, 0.5)
    assert (profile.initial_batch, profile.max_batch, profile.min_local_batch, profile.max_local_batch) == (
    64, 1024, 16, 64,
    )  # fmt: skip
    assert profile.observations[-1, :5].tolist() == [1, 2, 32, 0.3, 0.32]


@asynchronous
async def test_a_report_for_several_replicas_is_taken_as_that(place: Place, tmp_path: Path) -> None:
    place.running(elastic(replicas=2))
    token = tmp_path / "token"
    token.write_text(place.authority.pod_token("elastic-worker-1-0", job="elastic"))
    async with served(place) as url:
        client = replica(url, token)
        client.report(speed=500.0, batch=32, replicas=2)
        await asyncio.to_thread(client.close, _SECONDS)
        await soon(lambda: "500" in place.parameter("elastic", keys.PARAM_PROFILINGS), "it is written")
        assert reports.speed(place.parameter("elastic", keys.PARAM_PROFILINGS)) == 500.0


@asynchronous
async def test_a_replica_of_an_earlier_round_ends_its_reports_without_a_warning(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="diflow.client")
    place.running(elastic(replicas=2))
    place.set("elastic", rounds=["1", "2"], current="2", granted={"1": {"worker": 2}, "2": {"worker": 3}})
    token = tmp_path / "token"
    token.write_text(place.authority.pod_token("elastic-worker-1-0", job="elastic"))
    async with served(place) as url:
        client = replica(url, token)
        for step in range(2):
            client.report(speed=100, step=step)
            await soon(lambda: caplog.records, "the client has its answer")
        await asyncio.to_thread(client.close, _SECONDS)
    [record] = [r for r in caplog.records if r.name == "diflow.client"]
    assert record.levelno == logging.INFO
    assert "earlier round: the job is in round 2 (status 410)" in record.getMessage()
    assert not place.api.seen("PATCH")


@asynchronous
async def test_a_token_of_another_job_or_none_is_told_so(place: Place, tmp_path: Path) -> None:
    place.running(elastic(replicas=2))
    place.running(elastic("other", replicas=2))
    token = tmp_path / "token"
    async with served(place) as url:
        with replica(url, token) as client:
            with pytest.raises(UnauthorizedError, match="has no token"):
                await asyncio.to_thread(client.replicas, timeout_seconds=_SECONDS)
            token.write_text(place.authority.pod_token("other-worker-1-0", job="other"))
            with pytest.raises(UnauthorizedError, match="status 403"):
                await asyncio.to_thread(client.replicas, timeout_seconds=_SECONDS)
            token.write_text(place.authority.person("ada", ("get", "default", "*")))
            assert len(await asyncio.to_thread(client.replicas, timeout_seconds=_SECONDS)) == 2
        with replica(url, token, job="gone") as client, pytest.raises(NotFoundError):
            await asyncio.to_thread(client.replicas, timeout_seconds=_SECONDS)
