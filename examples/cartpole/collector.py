"""A collector: plays episodes with the learner's newest weights and sends them, until the learner says stop."""

import os

import numpy as np

from cartpole import model, settings
from cartpole.episodes import Episode, Player, pack
from cartpole.faults import exit_on_sigterm, run, say
from cartpole.link import Link
from cartpole.wire import Kind, Message

STEPS_A_REQUEST = 400  # whole episodes, at least so many steps: one good episode, or some dozens of early ones


def main() -> int:
    """Play until the job is solved."""
    exit_on_sigterm()
    own = settings.read(os.environ)
    seed = np.random.SeedSequence(None if own.seed is None else [own.seed, own.rank])
    player = Player(seed)
    link = Link(own.learner, role="collector", name=own.name)
    say(f"collector of rank {own.rank}: looking for the learner at {own.learner}")
    answer = link.ask(Message(Kind.FETCH, {"have": -1}))
    say("learner found")
    version = -1
    params: model.Params = {}
    sent = 0
    while answer.kind is not Kind.STOP:
        if answer.kind is Kind.WEIGHTS:
            version, params = answer.integer("version"), model.checked(answer.arrays)
        episodes: list[Episode] = []
        while sum(episode.steps for episode in episodes) < STEPS_A_REQUEST:
            episodes.append(player.explore(params))
        answer = link.ask(Message(Kind.EPISODES, {"have": version, "version": version}, pack(episodes)))
        sent += len(episodes)
    link.bye()
    say(f"the job is solved: {sent} episodes sent")
    return 0


if __name__ == "__main__":
    run(main)
