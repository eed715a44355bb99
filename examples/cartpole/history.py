"""What happened in a training run so far: the numbers behind the log lines, the metrics file and the plot."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

WINDOW = 100  # episodes of the moving mean


@dataclass(frozen=True, slots=True)
class Played:
    """A training episode that reached the learner."""

    seconds: float  # of training, over all starts of the learner
    steps: int  # of the environment, by all collectors, this episode's with them
    total: float  # its return


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Greedy episodes of the evaluator with one set of weights."""

    seconds: float
    version: int  # of the weights: how many updates made them
    episodes: int  # fewer than asked for when the bar was out of reach
    mean: float


@dataclass(slots=True)
class History:
    """Grows by appending."""

    played: list[Played] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps of the environment so far."""
        return self.played[-1].steps if self.played else 0

    def recent_mean(self) -> float:
        """The mean return of the last training episodes; 0 when there are none."""
        recent = [episode.total for episode in self.played[-WINDOW:]]
        return sum(recent) / len(recent) if recent else 0.0

    def lines(self) -> Iterator[str]:
        """The whole history as JSON lines, in the order of time."""
        events: list[tuple[float, dict[str, object]]] = [
            (it.seconds, {"kind": "episode", "seconds": it.seconds, "steps": it.steps, "return": it.total})
            for it in self.played
        ]
        events += [
            (
                it.seconds,
                {
                    "kind": "evaluation",
                    "seconds": it.seconds,
                    "version": it.version,
                    "episodes": it.episodes,
                    "mean": it.mean,
                },
            )
            for it in self.evaluated
        ]
        return (json.dumps(event) for _, event in sorted(events, key=lambda pair: pair[0]))
