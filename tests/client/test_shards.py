"""The shards of a process: alone, and of a server that keeps a ledger as diflow's does."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diflow.client import Client
from diflow.client.shards import Shard, Shards
from diflow.common.errors import ConflictError, InvalidError
from diflow.shards.dataset import Dataset
from diflow.shards.ledger import Ask, Ledger, Living
from tests.client.fakeserver import Answer, FakeServer, Seen, envelope, failed, serving


class Leasing(FakeServer):
    """It carries out the requests as the server does."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.dead = frozenset[str]()

    def take(self, seen: Seen) -> Answer:
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()
            if self.answers and (scripted := self.answers.popleft()) is not None:
                return scripted
            return Answer(body=envelope(self._lease(seen.body)))

    def _lease(self, body: dict[str, Any]) -> dict[str, Any]:
        dataset = Dataset(body["size"], body["shard"], body["epochs"], body["seed"])
        ask = Ask(
            body["dataset"],
            dataset,
            body["worker"],
            tuple(body["done"]),
            body["want"],
            body["leaseSeconds"],
            body["leave"],
        )
        workers = {worker for table in self.ledger.tables.values() for worker in table.held}
        living = Living(workers - self.dead, time.time() + 60)
        answer = self.ledger.ask(ask, now=time.time(), living=living)
        return {
            "shards": [{"unit": s.unit, "epoch": s.epoch, "start": s.start, "stop": s.stop} for s in answer.leases],
            "refused": list(answer.refused),
            "leaseSeconds": answer.seconds,
            "finished": answer.is_finished,
        }


@pytest.fixture
def server() -> Iterator[Leasing]:
    with serving(fake=Leasing()) as found:
        assert isinstance(found, Leasing)
        yield found


@pytest.fixture
def client(server: Leasing, tmp_path: Path) -> Client:
    (tmp_path / "token").write_text("a token")
    return Client({"DI_JOB_ID": "ml/vision", "DI_SERVER_URL": server.url, "DI_TOKEN_FILE": str(tmp_path / "token")})


TRAIN: dict[str, Any] = {"dataset": "train", "size": 95, "shard": 10, "epochs": 2, "shuffle_seed": 3}


def test_alone_each_sample_comes_once_an_epoch() -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    for shard in Client({}).shards(**TRAIN):
        assert len(list(shard)) == len(shard)
        seen[shard.epoch] += shard
    assert seen[0] != seen[1]
    assert [sorted(each) for each in seen.values()] == [list(range(95))] * 2


def test_alone_a_saved_state_goes_on_with_what_was_not_done() -> None:
    shards = Client({}).shards(**TRAIN)
    seen = []
    for number, shard in enumerate(shards):
        if number == 5:
            break
        seen += [(shard.epoch, index) for index in shard]
    state = json.loads(json.dumps(shards.state_dict()))
    again = Client({}).shards(**TRAIN)
    again.load_state_dict(state)
    seen += [(shard.epoch, index) for shard in again for index in shard]
    assert sorted(seen) == [(epoch, index) for epoch in range(2) for index in range(95)]
    with pytest.raises(InvalidError, match="size"):
        Client({}).shards(**{**TRAIN, "size": 96}).load_state_dict(state)


def test_two_workers_share_the_samples(client: Client) -> None:
    seen: list[tuple[int, int]] = []

    def work() -> None:
        with client.shards(**TRAIN, prefetch=2) as shards:
            for shard in shards:
                seen.extend((shard.epoch, index) for index in shard)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == [(epoch, index) for epoch in range(2) for index in range(95)]


def test_a_server_that_is_away_for_a_while_loses_nothing(server: Leasing, client: Client) -> None:
    away = [failed(503), Answer(cut=10)]
    server.will(*away)
    seen = [index for shard in client.shards(dataset="train", size=30, shard=10) for index in shard]
    assert seen == list(range(30))
    assert server.ledger.tables["train"].is_finished


def test_a_worker_that_leaves_gives_its_shards_back(server: Leasing, client: Client) -> None:
    with client.shards(dataset="train", size=100, shard=10) as shards:
        next(iter(shards)).done()
    assert list(server.ledger.tables["train"].done()) == [(0, 1)]
    assert {holder.ends for holder in server.ledger.tables["train"].held.values()} == {0.0}


def test_a_server_that_is_away_when_a_worker_leaves_gets_its_shards_a_moment_later(
    server: Leasing, client: Client
) -> None:
    with client.shards(dataset="train", size=100, shard=10) as shards:
        next(iter(shards)).done()
        server.will(failed(503), failed(503))
    assert list(server.ledger.tables["train"].done()) == [(0, 1)]
    assert {holder.ends for holder in server.ledger.tables["train"].held.values()} == {0.0}


def test_a_refusal_ends_the_loop(server: Leasing, client: Client) -> None:
    server.will(failed(409, "data set train has 95 samples"))
    with pytest.raises(ConflictError, match="95 samples"):
        next(iter(client.shards(**TRAIN)))


@pytest.mark.parametrize("wrong", [{"dataset": "a/b"}, {"size": 0}, {"prefetch": 0}, {"lease_seconds": 1}])
def test_impossible_arguments_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        Client({}).shards(**{**TRAIN, **wrong})


def _take(shards: Shards) -> Shard:
    found = shards.take(30)
    assert found is not None
    return found


def test_a_worker_that_takes_shards_does_not_wait_for_those_of_others(server: Leasing, client: Client) -> None:
    with client.shards(dataset="train", size=20, shard=10, prefetch=2) as first:
        mine = [_take(first), _take(first)]
        with client.shards(dataset="train", size=20, shard=10) as second:
            assert second.take(0.2) is None
            assert not second.is_finished
            for shard in mine:
                shard.done()
            server.until(lambda seen: any(one.body["done"] for one in seen))
            assert second.take(30) is None
            assert second.is_finished


def test_alone_shards_can_be_taken_as_well() -> None:
    shards = Client({}).shards(dataset="train", size=20, shard=10)
    first, second = _take(shards), _take(shards)
    assert shards.take() is None
    assert not shards.is_finished
    first.done()
    second.done()
    assert shards.is_finished


def test_what_a_checkpoint_does_not_have_is_not_done(server: Leasing, client: Client) -> None:
    with client.shards(dataset="train", size=50, shard=10, checkpointed=True) as shards:
        first, second = _take(shards), _take(shards)
        first.done()
        state = shards.state_dict()
        second.done()
        assert state["done"] == [first.span.unit]
        assert not any(one.body["done"] for one in server.seen)
        shards.commit()
        server.until(lambda seen: any(one.body["done"] for one in seen))
    assert [one.body["done"] for one in server.seen if one.body["done"]] == [[first.span.unit]]
    assert list(server.ledger.tables["train"].done()) == [(0, 1)], "the second shard is given back"


def test_a_training_that_was_killed_between_checkpoint_and_report_goes_on_behind_it(
    server: Leasing, client: Client
) -> None:
    killed = client.shards(dataset="train", size=50, shard=10, checkpointed=True)
    for shard in (_take(killed), _take(killed)):
        shard.done()
    state = json.loads(json.dumps(killed.state_dict()))
    again = client.shards(dataset="train", size=50, shard=10, checkpointed=True)
    with pytest.raises(ConflictError, match="other workers have shards of the checkpoint"):
        again.load_state_dict(state, timeout_seconds=0.5)
    server.dead = frozenset(server.ledger.tables["train"].held)
    again.load_state_dict(state)
    assert _take(again).start == 20
    killed.close()
    again.close()


def test_a_checkpoint_names_what_the_last_one_had_until_the_server_knows_it(server: Leasing, client: Client) -> None:
    with client.shards(dataset="train", size=50, shard=10, checkpointed=True) as shards:
        first, second = _take(shards), _take(shards)
        server.will(*[failed(503)] * 3)
        first.done()
        shards.state_dict()
        shards.commit()
        second.done()
        assert shards.state_dict()["done"] == [0, 1]
        server.until(lambda seen: any(one.body["done"] for one in seen[-1:]))
        deadline = time.monotonic() + 30
        while shards.state_dict()["done"] != [1] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert shards.state_dict()["done"] == [1]


def test_a_saved_state_of_another_data_set_is_refused(server: Leasing, client: Client) -> None:
    state = client.shards(dataset="train", size=50, shard=10).state_dict()
    with pytest.raises(InvalidError, match="size"):
        client.shards(dataset="train", size=60, shard=10).load_state_dict(state)
    assert not server.seen


@pytest.mark.usefixtures("server")
def test_a_training_without_checkpoints_says_why_it_gets_no_more_shards(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with client.shards(dataset="train", size=100, shard=1, prefetch=8, checkpointed=True) as shards:
        for _ in range(64):
            _take(shards).done()
        deadline = time.monotonic() + 30
        while "64 shards wait for a checkpoint" not in caplog.text and time.monotonic() < deadline:
            assert shards.take(0.1) is None
        assert "64 shards wait for a checkpoint" in caplog.text
        shards.state_dict()
        shards.commit()
        _take(shards)


def test_the_data_set_of_torch_reads_each_index(monkeypatch: pytest.MonkeyPatch) -> None:
    class IterableDataset:
        pass

    data = ModuleType("torch.utils.data")
    data.IterableDataset = IterableDataset  # type: ignore[attr-defined]
    for name, module in {"torch": ModuleType("torch"), "torch.utils": ModuleType("utils"), data.__name__: data}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "diflow.client.torch", raising=False)
    made = importlib.import_module("diflow.client.torch").ShardedIndices(str, dataset="train", size=25, shard=10)
    monkeypatch.delitem(sys.modules, "diflow.client.torch")
    assert list(made) == [str(index) for index in range(25)]
