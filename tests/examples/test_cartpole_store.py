"""Checkpoints of the CartPole example, damaged as by disks and kills."""

import os
from pathlib import Path

import numpy as np
import pytest

from cartpole import model, ppo
from cartpole.episodes import Player
from cartpole.faults import StoreError
from cartpole.history import Evaluated, History, Played
from cartpole.store import State, Store

RATE = 1e-3


def _state(*, updates: int) -> State:
    rng = np.random.default_rng(updates)
    params, optimiser = model.initial(rng), model.Adam(RATE)
    data = ppo.batch(params, [Player(np.random.SeedSequence(updates)).explore(params)])
    for _ in range(updates):
        params = ppo.improve(params, optimiser, data, rng)
    history = History([Played(1.5, 20, 20.0), Played(2.0, 50, 30.0)], [Evaluated(1.75, 1, 8, 44.5)])
    return State(params, optimiser, version=updates, seconds=2.5, history=history)


def _opened(folder: Path) -> Store:
    store = Store(folder)
    store.open(patience_seconds=0)
    return store


def test_a_checkpoint_brings_back_all_of_the_state(tmp_path: Path) -> None:
    before = _state(updates=3)
    store = _opened(tmp_path / "new" / "folder")
    store.save(before)
    after = store.load(learning_rate=RATE)
    assert after is not None
    assert (after.version, after.seconds, after.solved) == (3, 2.5, False)
    assert after.history == before.history
    assert after.optimiser.steps == before.optimiser.steps > 0
    for name in before.params:
        np.testing.assert_array_equal(after.params[name], before.params[name])
        np.testing.assert_array_equal(after.optimiser.first[name], before.optimiser.first[name])
        np.testing.assert_array_equal(after.optimiser.second[name], before.optimiser.second[name])


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert _opened(tmp_path).load(learning_rate=RATE) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = _opened(tmp_path)
    store.save(_state(updates=1))
    store.save(_state(updates=2))
    data = bytearray(store.newest.read_bytes())
    match damage:
        case "cut":
            store.newest.write_bytes(data[: len(data) // 2])
        case "flipped":
            data[len(data) // 2] ^= 0xFF
            store.newest.write_bytes(data)
        case "empty":
            store.newest.write_bytes(b"")
        case "text":
            store.newest.write_text("not a checkpoint")
        case _:
            store.newest.unlink()
    state = store.load(learning_rate=RATE)
    assert state is not None
    assert state.version == 1
    said = capsys.readouterr().out
    assert ("cannot be read" in said) == (damage != "gone")


def test_with_every_checkpoint_damaged_the_run_starts_afresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = _opened(tmp_path)
    for path in (store.newest, store.previous):
        path.write_bytes(b"PK\x03\x04 and then nothing of use")
    assert store.load(learning_rate=RATE) is None
    assert capsys.readouterr().out.count("cannot be read") == 2


def test_a_pickle_in_a_checkpoint_is_never_opened(tmp_path: Path) -> None:
    store = _opened(tmp_path)
    np.savez(store.newest, about=np.array([{"a": 1}], dtype=object))
    assert store.load(learning_rate=RATE) is None


def test_a_kill_between_the_renames_leaves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _opened(tmp_path)
    store.save(_state(updates=1))
    real = Path.replace
    done = 0

    def replace(self: Path, target: Path) -> Path:
        nonlocal done
        done += 1
        if done == 2:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        store.save(_state(updates=2))
    monkeypatch.undo()
    state = store.load(learning_rate=RATE)
    assert state is not None
    assert state.version == 1


def test_the_next_run_does_not_resume_a_solved_one(tmp_path: Path) -> None:
    store = _opened(tmp_path)
    for updates in (1, 2):
        store.save(_state(updates=updates))
    store.close_run()
    assert store.load(learning_rate=RATE) is None
    assert store.final.exists()


def test_two_learners_never_share_a_folder(tmp_path: Path) -> None:
    first = _opened(tmp_path)
    with pytest.raises(StoreError, match="another learner is at work"):
        _opened(tmp_path)
    assert first.load(learning_rate=RATE) is None


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=f"give user {os.getuid()} the right to write"):
        _opened(tmp_path / "file" / "folder")


def test_the_metrics_are_json_lines_in_the_order_of_time(tmp_path: Path) -> None:
    store = _opened(tmp_path)
    store.save(_state(updates=1))
    assert store.metrics.read_text().splitlines() == [
        '{"kind": "episode", "seconds": 1.5, "steps": 20, "return": 20.0}',
        '{"kind": "evaluation", "seconds": 1.75, "version": 1, "episodes": 8, "mean": 44.5}',
        '{"kind": "episode", "seconds": 2.0, "steps": 50, "return": 30.0}',
    ]
