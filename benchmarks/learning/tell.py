"""What a run of ``benchmarks.learning`` says: accuracy, seconds and rollouts after each round."""

import json

GOAL = 0.8


class Curve:
    """Grows by a round at a time."""

    def __init__(self, first: float) -> None:
        self.accuracy = [first]
        self.seconds = [0.0]
        self.rollouts = [0]

    def add(self, seconds: float, rollouts: int, accuracy: float) -> None:
        """A round: what it took, and the held-out accuracy after it."""
        self.seconds.append(self.seconds[-1] + seconds)
        self.rollouts.append(self.rollouts[-1] + rollouts)
        self.accuracy.append(accuracy)

    def tell(self) -> None:
        """As one line of JSON."""
        print(json.dumps(vars(self)), flush=True)


def enough(curve: Curve) -> bool:
    """Whether the goal is reached."""
    return curve.accuracy[-1] >= GOAL
