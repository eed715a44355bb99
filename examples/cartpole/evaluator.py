"""The evaluator: plays greedy episodes with the learner's weights, and ends the job when they reach the bar.

The bar is a mean return of 475 over 100 consecutive episodes, all with the same weights.
"""

import os
import time

import numpy as np

from cartpole import model, settings
from cartpole.episodes import LONGEST, Player
from cartpole.exchange import EVALUATION_EPISODES
from cartpole.faults import exit_on_sigterm, run, say
from cartpole.link import Link
from cartpole.wire import Arrays, Kind, Message

PAUSE_SECONDS = 0.5  # between two questions, when there are no newer weights


def returns_of(player: Player, params: model.Params, *, target: float) -> list[float]:
    """Returns of up to 100 greedy episodes: it ends early when the target is out of reach."""
    returns: list[float] = []
    for left in range(EVALUATION_EPISODES - 1, -1, -1):
        returns.append(player.greedy_return(params))
        if sum(returns) + left * LONGEST < target * EVALUATION_EPISODES:
            break
    return returns


def main() -> int:
    """Evaluate until the learner agrees that the job is solved."""
    exit_on_sigterm()
    own = settings.read(os.environ)
    player = Player(np.random.SeedSequence(None if own.seed is None else [own.seed, own.rank]))
    link = Link(own.learner, role="evaluator", name=own.name)
    say(f"evaluator of rank {own.rank}: looking for the learner at {own.learner}; the bar is {own.target:g}")
    answer = link.ask(Message(Kind.FETCH, {"have": -1}))
    say("learner found")
    while answer.kind is not Kind.STOP:
        if answer.kind is not Kind.WEIGHTS:
            time.sleep(PAUSE_SECONDS)
            answer = link.ask(Message(Kind.FETCH, {"have": answer.integer("version")}))
            continue
        version, params = answer.integer("version"), model.checked(answer.arrays)
        claim = _evaluate(player, version, params, target=own.target)
        answer = link.ask(claim)
        # Say it until the learner agrees: it may have been restarted before it had saved the news.
        while claim.fields["solved"] and answer.kind is not Kind.STOP:
            time.sleep(PAUSE_SECONDS)
            answer = link.ask(claim)
    link.bye()
    say("the job is solved")
    return 0


def _evaluate(player: Player, version: int, params: model.Params, *, target: float) -> Message:
    returns = np.array(returns_of(player, params, target=target))
    mean = float(returns.mean())
    solved = len(returns) == EVALUATION_EPISODES and mean >= target
    note = "solved" if solved else f"{target:g} is out of reach"
    say(f"weights {version}: mean return {mean:.1f} over {len(returns)} episodes: {note}")
    arrays: Arrays = {"returns": returns}
    if solved:
        arrays |= params
    return Message(Kind.EVALUATION, {"have": version, "version": version, "solved": solved}, arrays)


if __name__ == "__main__":
    run(main)
