"""Shards: never a sample lost, never two honest owners, each once an epoch; and texts that anybody may have written."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from diflow.common.errors import ConflictError, InvalidError, UnavailableError
from diflow.shards import ledger as ledger_module
from diflow.shards.dataset import MOST_SAMPLES, Dataset, permuted
from diflow.shards.ledger import GRACE_SECONDS, Answer, Ask, Ledger, Living

SECONDS = 100.0


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_the_order_of_an_epoch_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    order = [permuted(at, length, seed=seed, epoch=epoch) for at in range(length)]
    assert sorted(order) == list(range(length))


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {
        tuple(permuted(at, 100, seed=seed, epoch=epoch) for at in range(100)) for seed in range(5) for epoch in range(5)
    }
    assert len(orders) == 25
    assert permuted(0, MOST_SAMPLES, seed=1, epoch=0) < MOST_SAMPLES


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 3), st.none() | st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_shards_of_an_epoch_have_each_sample_once(size: int, shard: int, epochs: int, seed: int | None) -> None:
    dataset = Dataset(size, shard, epochs, seed)
    for epoch in range(epochs):
        units = range(epoch * dataset.per_epoch, (epoch + 1) * dataset.per_epoch)
        spans = [dataset.span(unit) for unit in units]
        assert {span.epoch for span in spans} == {epoch}
        assert sorted(i for span in spans for i in range(span.start, span.stop)) == list(range(size))


@pytest.mark.parametrize(
    "wrong",
    [(0, 1), (1, 0), (MOST_SAMPLES + 1, 1), (MOST_SAMPLES, 1, 10**6), (1, 1, 0), (1, 1, 1, -1), (True, 1), (1.0, 1)],
)
def test_an_impossible_data_set_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidError):
        Dataset(*wrong)


DATASET = Dataset(1000, 10)


def ask(ledger: Ledger, worker: str, *, now: float = 0.0, living: Living | None = None, **over: Any) -> Answer:
    given = {"name": "train", "dataset": DATASET, "wants": 2, "seconds": SECONDS, **over}
    return ledger.ask(Ask(worker=worker, **given), now=now, living=living or Living())


def units(answer: Answer) -> list[int]:
    return [span.unit for span in answer.leases]


def test_a_repeated_request_has_the_same_answer_and_changes_nothing() -> None:
    ledger = Ledger()
    first = ask(ledger, "a")
    text = ledger.text()
    assert ask(ledger, "a") == first
    assert ledger.text() == text
    assert units(ask(ledger, "a", done=(0,))) == units(ask(ledger, "a", done=(0,))) == [1, 2]


def test_units_of_a_lost_worker_come_back_first() -> None:
    ledger = Ledger()
    assert units(ask(ledger, "uid-a/1")) == [0, 1]
    assert units(ask(ledger, "uid-b/1")) == [2, 3]
    # Known to be gone only by a copy of the cluster's state that is newer than its last request.
    assert units(ask(ledger, "uid-b/1", now=20, wants=3, living=Living({"uid-b"}, as_of=0.0))) == [2, 3, 4]
    assert units(ask(ledger, "uid-b/1", now=20, wants=4, living=Living({"uid-b"}, as_of=8.0))) == [0, 2, 3, 4]
    assert units(ask(ledger, "uid-c/1", now=SECONDS + 6)) == [1, 5], "its time was over"


def test_a_lease_that_has_ended_is_still_its_workers_until_another_gets_it() -> None:
    ledger = Ledger()
    ask(ledger, "a")
    assert ask(ledger, "a", now=SECONDS + 6, done=(0,), wants=0).refused == ()
    assert units(ask(ledger, "b", now=3 * SECONDS)) == [1, 2]
    assert ask(ledger, "a", now=3 * SECONDS, done=(1,), wants=0).refused == (1,)
    assert list(ledger.tables["train"].done()) == [(0, 1)]


def test_a_worker_that_leaves_gives_its_leases_back() -> None:
    ledger = Ledger()
    ask(ledger, "a")
    ask(ledger, "a", done=(0,), leaves=True)
    assert units(ask(ledger, "b", now=1)) == [1, 2]


def test_another_cannot_report_what_it_did_not_lease() -> None:
    ledger = Ledger()
    ask(ledger, "a")
    assert ask(ledger, "b", done=(0, 1), wants=0).refused == (0, 1)
    assert list(ledger.tables["train"].done()) == []
    with pytest.raises(InvalidError, match="never leased"):
        ask(ledger, "b", done=(2,))


def test_workers_that_describe_a_data_set_differently_are_told() -> None:
    ledger = Ledger()
    ask(ledger, "a")
    with pytest.raises(ConflictError, match="1000 samples in shards of 10"):
        ask(ledger, "b", dataset=Dataset(1000, 20))


def test_the_number_of_data_sets_is_bounded() -> None:
    ledger = Ledger()
    for number in range(ledger_module.MOST_DATASETS):
        ask(ledger, "a", name=f"set-{number}")
    with pytest.raises(ConflictError, match="at most 16"):
        ask(ledger, "a", name="one-more")


def test_a_full_ledger_gives_out_lost_units_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MOST_BYTES", 700)
    ledger = Ledger()
    held: dict[str, list[int]] = {}
    with contextlib.suppress(UnavailableError):
        for number in range(100):
            held[f"w{number}"] = units(ask(ledger, f"w{number}"))
    with pytest.raises(UnavailableError):
        ask(ledger, "one more")
    assert len(held) < 20
    assert len(ledger.text()) < 700
    assert Ledger.read(json.loads(ledger.text())).text() == ledger.text()
    assert units(ask(ledger, "w0", done=tuple(held["w0"]))), "there is room again"
    assert units(ask(ledger, "late", now=SECONDS + 6, wants=1)) == held["w1"][:1]


def test_the_workers_are_bounded_and_lost_units_are_given_out_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pod may call itself many workers, and each request of the job looks at all of them."""
    monkeypatch.setattr(ledger_module, "MOST_WORKERS", 3)
    ledger = Ledger()
    for worker in "abc":
        ask(ledger, worker)
    with pytest.raises(UnavailableError, match="3 workers"):
        ask(ledger, "d")
    assert units(ask(ledger, "a", wants=3)) == [0, 1, 6], "it is none more"
    assert units(ask(ledger, "d", now=SECONDS + 6, wants=1)) == [0]


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_requests_at_one_time_have_the_answers_that_they_have_one_by_one(random: Random) -> None:
    """Lost workers are looked for once for all of them."""
    together, text = Ledger(), Ledger().text()
    for now in (0.0, 1.5 * SECONDS, 4.0 * SECONDS):
        living = Living(frozenset(random.sample(["a", "b", "c", "d"], 3)), as_of=now - 5.0)
        for _ in range(12):
            worker, done = f"{random.choice('abcd')}/{random.choice('12')}", random.sample(range(10), 2)
            alone = Ledger.read(json.loads(text))
            known = alone.tables["train"].next if "train" in alone.tables else 0
            asked = Ask(
                "train",
                DATASET,
                worker,
                done=tuple(unit for unit in done if unit < known),
                wants=random.randint(0, 3),
                seconds=SECONDS,
                leaves=random.random() < 0.2,
            )
            assert together.ask(asked, now=now, living=living) == alone.ask(asked, now=now, living=living)
            text = alone.text()
            assert together.text() == text
            assert together._bytes == Ledger.read(json.loads(text))._bytes


def test_a_thousand_workers_on_a_billion_samples_fit() -> None:
    ledger = Ledger()
    dataset = Dataset(10**9, 1000, 3, 7)
    for number in range(1000):
        given = Ask("train", dataset, f"0b0ff3a4-59a1-4a9c-8b4e-{number:012d}/worker-0", wants=4)
        assert len(ledger.ask(given, now=1.8e9).leases) == 4
    assert len(ledger.text()) < ledger_module.MOST_BYTES


GOOD: dict[str, Any] = {"format": 1, "at": 5, "datasets": {"train": {
    "size": 100, "shard": 10, "epochs": 1, "seed": None, "next": 5, "held": {"a": [1, 2, 3, 4]}}}}  # fmt: skip


_BAD_TABLES: list[dict[str, Any]] = [
    {"size": 0},
    {"next": 11},
    {"next": 1e400},
    {"held": {"a": [1, 2, 5]}},
    {"held": {"a": [1, 2, 3, 3]}},
    {"held": {"a": [1, 2, 3], "b": [1, 2, 3]}},
    {"held": {"a": []}},
    {"held": {"a": [1, 2, -1]}},
    {"held": {"": [1, 2, 3]}},
    {"held": {"a": [1, 2, *range(100)]}},
    {"held": {"ü": [1, 2, 3]}},
    {"size": 10**6, "next": 9000, "held": {f"w{i}": [1, 2, i] for i in range(9000)}},
]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"at": -1},
        {"at": True},
        {"datasets": []},
        {"datasets": {f"s{i}": GOOD["datasets"]["train"] for i in range(17)}},
        {"datasets": {"/": GOOD["datasets"]["train"]}},
        {"datasets": {"train": 3}},
        *({"datasets": {"train": {**GOOD["datasets"]["train"], **bad}}} for bad in _BAD_TABLES),
    ],
)
def test_a_text_that_no_server_wrote_is_refused(change: Any) -> None:
    Ledger.read(GOOD)
    with pytest.raises(ValueError, match=r"is|has|leases"):
        Ledger.read({**GOOD, **change})


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_model_that_goes_on_from_its_checkpoints_has_each_unit_once(random: Random) -> None:
    """All workers die at any moment, also between the checkpoint and its reports; a new round has other workers, of
    which the first reports what the checkpoint has before any asks for units."""
    dataset, ledger, now = Dataset(40, 3, 2, 5), Ledger(), 1000.0
    saved, covered = Counter[int](), list[int]()
    for round_ in range(1, 400):
        workers = [f"uid-{round_}-{rank}/0" for rank in range(random.randint(1, 4))]
        living = Living({worker.partition("/")[0] for worker in workers}, now + 1e6)
        given = Ask("train", dataset, workers[0], tuple(covered), 0)
        assert not ledger.ask(given, now=now, living=living).refused
        model, trained, unreported = saved.copy(), {w: list[int]() for w in workers}, {w: list[int]() for w in workers}
        for _ in range(random.randint(1, 30)):
            now += 1
            worker = random.choice(workers)
            given = Ask("train", dataset, worker, tuple(unreported[worker]), len(trained[worker]) + 2)
            answer = ledger.ask(given, now=now, living=living)
            unreported[worker] = []
            fresh = [span.unit for span in answer.leases if span.unit not in trained[worker]]
            if fresh:
                model[fresh[0]] += 1
                trained[worker].append(fresh[0])
            if random.random() < 0.3:  # a checkpoint of all workers
                saved = model.copy()
                covered = [unit for each in workers for unit in (*trained[each], *unreported[each])]
                if random.random() < 0.3:
                    break  # killed before anything is reported
                for each in workers:
                    unreported[each], trained[each] = unreported[each] + trained[each], []
        if len(saved) == dataset.units and not covered:
            break
    assert saved == Counter(range(dataset.units))


KEYS = st.sampled_from(["format", "at", "datasets", "train", "size", "held"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text()


@pytest.mark.slow
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        Ledger.read(value)
    except ValueError:
        return
    raise AssertionError


WRITES = st.sampled_from(["good", "good", "good", "answer lost", "write lost"])
TURNS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([4, 4, 2, 1, 0]), WRITES, st.integers(0, 3)), min_size=1, max_size=4
)


class Shards(RuleBasedStateMachine):
    """Workers, and two servers that share one stored text. A server may work on an old copy, crash at a write, have a
    clock of its own, and know the pods as they were some time ago, or not at all.

    A worker is honest: it works on the units of its newest answer while they last, by its own clock.
    """

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.dataset = Dataset(70, 3, 2, 5)
        self.now = 1000.0
        self.stored = (0, Ledger().text())
        self.living = [Living(), Living()]
        self.wrong = [0.0, 0.0]  # seconds by which the clocks of the servers are wrong
        self.copies = [self.stored, self.stored]
        self.alive: set[str] = set()
        self.held: dict[str, dict[int, float]] = {}  # what each knows to have, and until when
        self.unreported: dict[str, dict[int, float]] = {}  # and until when they were its own
        self.done: dict[int, int] = {}
        self.may_repeat: set[int] = set()
        self.number = 0

    @rule(target=workers)
    def start(self) -> str:
        self.number += 1
        name = f"uid-{self.number}/0"
        self.alive.add(name)
        self.held[name], self.unreported[name] = {}, {}
        return name

    @rule(worker=workers, turns=TURNS)
    def work(self, worker: str, turns: list[tuple[int, int, str, int]]) -> None:
        """It asks, and works on some of what it has, a few times."""
        for server, wants, write, units in turns:
            self.call(worker, server, wants, write)
            self.no_two_owners()
            for _ in range(units):
                self.do(worker)

    def call(self, worker: str, server: int, wants: int, write: str, *, leaves: bool = False) -> None:
        if worker not in self.alive:
            return
        done = tuple(sorted(self.unreported[worker]))
        now = self.now + self.wrong[server]
        while True:
            version, text = self.copies[server]
            ledger = Ledger.read(json.loads(text))
            given = Ask("train", self.dataset, worker, done, wants, SECONDS, leaves)
            if not wants and not done and not leaves:
                return
            try:
                answer = ledger.ask(given, now=now, living=self.living[server])
            except InvalidError:  # of an old copy: the server reads before it says so
                assert version != self.stored[0]
                self.copies[server] = self.stored
                continue
            if write == "write lost":
                self.copies[server] = self.stored  # the server restarts
                return
            if version != self.stored[0]:
                self.copies[server] = self.stored  # a conflict
                continue
            self.stored = self.copies[server] = (version + 1, ledger.text())
            break
        if write == "answer lost":
            return
        self.unreported[worker] = {}
        self.held[worker] = {span.unit: self.now + answer.seconds for span in answer.leases}

    def do(self, worker: str) -> None:
        ready = [unit for unit, ends in self.held.get(worker, {}).items() if ends > self.now]
        if worker in self.alive and ready:
            unit = min(ready)
            self.unreported[worker][unit] = self.held[worker].pop(unit)
            self.done[unit] = self.done.get(unit, 0) + 1

    @rule(worker=consumes(workers))
    def crash(self, worker: str) -> None:
        self.alive.discard(worker)
        self.held[worker] = {}
        self.may_repeat.update(self.unreported.pop(worker, {}))

    @rule(worker=consumes(workers), server=st.integers(0, 1), write=WRITES)
    def leave(self, worker: str, server: int, write: str) -> None:
        """It works no more, reports, and ends. A report that is lost is not sent again."""
        self.held[worker] = {}
        self.call(worker, server, 0, write, leaves=True)
        self.crash(worker)

    @rule(server=st.integers(0, 1))
    def restart(self, server: int) -> None:
        self.copies[server], self.living[server] = self.stored, Living()

    @rule(server=st.integers(0, 1))
    def look(self, server: int) -> None:
        """The server's copy of the pods is new. What it says of its age is by its own clock, as the server has it."""
        as_of = self.now + self.wrong[server] - (GRACE_SECONDS + 1)
        self.living[server] = Living({name.partition("/")[0] for name in self.alive}, as_of)

    @rule(server=st.integers(0, 1), seconds=st.sampled_from([-GRACE_SECONDS / 2, 0.0, GRACE_SECONDS / 2]))
    def set_clock(self, server: int, seconds: float) -> None:
        """Two servers' clocks differ by no more than what the ledger allows for."""
        self.wrong[server] = seconds

    @rule(seconds=st.floats(0, 10) | st.sampled_from([1.0, SECONDS / 2 - 1, SECONDS - 1, SECONDS + 2]))
    def wait(self, seconds: float) -> None:
        """What a worker has done and not reported when its lease ends may be repeated."""
        self.now += seconds
        for units in self.unreported.values():
            self.may_repeat.update(unit for unit, ends in units.items() if ends <= self.now)

    @invariant()
    def no_two_owners(self) -> None:
        owned = [u for held in self.held.values() for u, ends in held.items() if ends > self.now]
        assert len(owned) == len(set(owned))

    @invariant()
    def nothing_is_done_that_nobody_did(self) -> None:
        table = Ledger.read(json.loads(self.stored[1])).tables.get("train")
        for first, last in table.done() if table else ():
            assert all(unit in self.done for unit in range(first, last))

    def teardown(self) -> None:
        """One more worker does the rest: nothing is left out, and what is repeated is known."""
        self.wrong = [0.0, 0.0]
        for worker in list(self.alive):
            self.call(worker, 0, 0, "good")
        for worker in list(self.alive):
            self.crash(worker)
        self.wait(2 * SECONDS)
        last = str(self.start())
        for _ in range(100):
            self.call(last, 0, 4, "good")
            for _ in range(4):
                self.do(last)
        self.call(last, 0, 0, "good")
        assert Ledger.read(json.loads(self.stored[1])).tables["train"].is_finished
        assert set(self.done) == set(range(self.dataset.units))
        assert {unit for unit, times in self.done.items() if times > 1} <= self.may_repeat


@pytest.mark.slow
def test_long_histories() -> None:
    """The same in the proportions of a real job: mostly work, and a lease that ends or a worker that dies at times."""
    for seed in range(300):
        random, machine = Random(seed), Shards()
        for _ in range(60):
            alive, server = sorted(machine.alive), random.randint(0, 1)
            if len(alive) < 2 or (len(alive) < 4 and random.random() < 0.1):
                machine.start()
                continue
            worker, write = random.choice(alive), random.choice(["good"] * 8 + ["answer lost", "write lost"])
            rare = random.random()
            if rare < 0.04:
                machine.crash(worker)
            elif rare < 0.06:
                machine.leave(worker, server, write)
            elif rare < 0.1:
                machine.restart(server)
            elif rare < 0.14:
                machine.set_clock(server, random.uniform(-GRACE_SECONDS / 2, GRACE_SECONDS / 2))
            elif rare < 0.3:
                machine.look(server)
            elif rare < 0.5:
                machine.wait(random.choice([0.1, 1.0, 5.0, SECONDS / 3, SECONDS - 1, SECONDS + 2]))
            else:
                machine.call(worker, server, random.choice([0, 1, 4, 4]), write)
                machine.no_two_owners()
                for _ in range(random.randint(0, 4)):
                    machine.do(worker)
            machine.no_two_owners()
            machine.nothing_is_done_that_nobody_did()
        machine.teardown()


TestShards = pytest.mark.slow(Shards.TestCase)
TestShards.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
