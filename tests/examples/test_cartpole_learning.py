"""The numbers of the CartPole example, compared with slower or independent computations."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cartpole import model, ppo, wire
from cartpole.episodes import Player, pack, unpack


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 40),
    discount=st.floats(0, 1),
    trace=st.floats(0, 1),
)
def test_advantages_are_the_discounted_sum_of_all_later_errors(
    seed: int, steps: int, discount: float, trace: float
) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=steps), rng.normal(size=steps + 1)
    slow = [
        sum(
            (discount * trace) ** (later - step) * (rewards[later] + discount * values[later + 1] - values[later])
            for later in range(step, steps)
        )
        for step in range(steps)
    ]
    fast = ppo.advantages(rewards, values, discount=discount, trace=trace)
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9)


def _part(rng: np.random.Generator, params: model.Params, *, count: int) -> ppo.Batch:
    observations = rng.normal(size=(count, model.OBSERVATION_SIZE))
    actions = rng.integers(0, model.ACTIONS, size=count)
    now = model.log_softmax(model.logits(params, observations))[np.arange(count), actions]
    return ppo.Batch(
        observations=observations,
        actions=actions,
        # Some ratios inside the clipping range, some far outside on either side; none on its edge.
        log_probs=now + rng.choice([-0.6, -0.05, 0.07, 0.5], size=count),
        advantages=rng.normal(size=count),
        targets=rng.normal(size=count),
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_agree_with_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = {name: value + 0.05 * rng.normal(size=value.shape) for name, value in model.initial(rng).items()}
    part = _part(rng, params, count=32)
    rule = dataclasses.replace(ppo.RULE, entropy_weight=0.05)
    _, gradients, _ = ppo.loss(params, part, rule)
    assert gradients.keys() == params.keys()
    for name, value in params.items():
        for flat in rng.choice(value.size, size=min(6, value.size), replace=False):
            where = np.unravel_index(flat, value.shape)
            losses = []
            for step in (1e-5, -1e-5):
                moved = dict(params) | {name: value.copy()}
                moved[name][where] += step
                losses.append(ppo.loss(moved, part, rule)[0])
            slope = (losses[0] - losses[1]) / 2e-5
            assert gradients[name][where] == pytest.approx(slope, rel=1e-4, abs=1e-7), (name, where)


def test_adam_goes_to_the_minimum_of_a_bowl() -> None:
    params = {"x": np.array([3.0, -2.0])}
    optimiser = model.Adam(0.05)
    for _ in range(500):
        params = optimiser.step(params, {"x": 2 * (params["x"] - np.array([1.0, 0.5]))})
    np.testing.assert_allclose(params["x"], [1.0, 0.5], atol=1e-3)


def test_the_first_step_of_adam_is_one_learning_rate_against_the_sign_of_the_gradient() -> None:
    optimiser = model.Adam(0.01)
    moved = optimiser.step({"x": np.zeros(3)}, {"x": np.array([5.0, -2.0, 100.0])})
    np.testing.assert_allclose(moved["x"], [-0.01, 0.01, -0.01], rtol=1e-3)


def test_a_fall_ends_the_value_and_a_time_limit_does_not() -> None:
    params = model.initial(np.random.default_rng(0))
    episode = dataclasses.replace(Player(np.random.SeedSequence(0)).explore(params), terminated=True)
    fell = ppo.batch(params, [episode]).targets
    cut = ppo.batch(params, [dataclasses.replace(episode, terminated=False)]).targets
    rest = model.values(params, episode.observations[-1:].astype(np.float64))[0]
    assert fell[-1] == pytest.approx(ppo.RULE.reward_scale)
    assert cut[-1] == pytest.approx(ppo.RULE.reward_scale + ppo.RULE.discount * rest)


def test_an_episode_records_what_was_played() -> None:
    params = model.initial(np.random.default_rng(3))
    episode = Player(np.random.SeedSequence(3)).explore(params)
    assert episode.observations.shape == (episode.steps + 1, 4)
    assert episode.total == episode.steps
    assert episode.terminated
    log_all = model.log_softmax(model.logits(params, episode.observations[:-1].astype(np.float64)))
    taken = log_all[np.arange(episode.steps), episode.actions.astype(np.int64)]
    np.testing.assert_allclose(episode.log_probs, taken, atol=1e-12)


def test_packed_episodes_come_apart_as_they_were() -> None:
    params = model.initial(np.random.default_rng(4))
    player = Player(np.random.SeedSequence(4))
    episodes = [player.explore(params) for _ in range(5)]
    for before, after in zip(episodes, unpack(pack(episodes)), strict=True):
        for field in dataclasses.fields(before):
            np.testing.assert_array_equal(getattr(before, field.name), getattr(after, field.name))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lengths", np.array([0, 1]), "lengths of episodes"),
        ("lengths", np.array([501]), "lengths of episodes"),
        ("lengths", np.array([[3]]), "lengths of episodes"),
        ("actions", np.full(3, 2, dtype=np.uint8), "an action that the environment has not"),
        ("observations", np.full((4, 4), np.nan, dtype=np.float32), "not finite"),
        ("observations", np.zeros((3, 4), dtype=np.float32), "observations has shape"),
        ("log_probs", np.full(3, -np.inf), "not finite"),
        ("rewards", np.zeros(2, dtype=np.float32), "rewards has shape"),
        ("terminated", np.zeros(2, dtype=np.uint8), "terminated has shape"),
    ],
)
def test_episodes_that_no_collector_would_send_are_refused(
    name: str, value: "np.typing.NDArray[np.generic]", message: str
) -> None:
    good: wire.Arrays = {
        "lengths": np.array([3], dtype=np.int64),
        "terminated": np.array([1], dtype=np.uint8),
        "observations": np.zeros((4, 4), dtype=np.float32),
        "actions": np.zeros(3, dtype=np.uint8),
        "rewards": np.ones(3, dtype=np.float32),
        "log_probs": np.zeros(3),
    }
    assert len(unpack(dict(good))) == 1
    with pytest.raises(ValueError, match=message):
        unpack(dict(good) | {name: value})
    with pytest.raises(ValueError, match=f"episodes without {name}"):
        unpack({key: array for key, array in good.items() if key != name})


def test_weights_of_another_network_are_refused() -> None:
    params = model.initial(np.random.default_rng(0))
    assert model.checked(dict(params)).keys() == params.keys()
    with pytest.raises(ValueError, match="has shape"):
        model.checked(dict(params) | {"policy/b0": np.zeros(3)})
    with pytest.raises(ValueError, match="not finite"):
        model.checked(dict(params) | {"policy/b0": np.full(model.HIDDEN, np.inf)})
    with pytest.raises(ValueError, match="are named"):
        model.checked({"policy/w0": params["policy/w0"]})
