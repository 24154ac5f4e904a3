"""When gradients are not finite: skip the step, then go back to the last commit past that stretch of data, then give up."""

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

from trainer.common.errors import RunError
from trainer.training.checkpoint import TrainState

log = logging.getLogger(__name__)

MAX_SKIPS = 25
"""Steps in a row that may be skipped. In fp16 the loss scale halves at each, from 2**16: a sound run needs far fewer."""

MAX_ROLLBACKS = 3


class Stretch(NamedTuple):
    """Global batches `[first, last]` whose gradients were not finite, after a step."""

    step: int
    first: int
    last: int


@dataclass
class Divergence:
    """Watches for steps that were skipped, in a row."""

    global_batch: int
    skips: int = 0
    stretches: list[Stretch] = field(default_factory=list)

    def note(self, skipped: bool, state: TrainState) -> bool:
        """Take in a step that was tried; returns whether to go back to the last commit.

        Raises `RunError` once going back has not helped.
        """
        if not skipped:
            self.skips = 0
            return False
        self.skips += 1
        if self.skips < MAX_SKIPS:
            return False
        self.stretches.append(Stretch(state.step, state.attempts - self.skips, state.attempts - 1))
        self.skips = 0
        if len(self.stretches) > MAX_ROLLBACKS:
            raise RunError(f"training has diverged: {self.describe()}. Lower training.learning_rate, or look at those samples")
        return True

    def describe(self) -> str:
        """The stretches of data whose gradients were not finite."""
        return "; ".join(
            f"after step {s.step} the gradients of {s.last - s.first + 1} batches in a row were not finite "
            f"(samples {s.first * self.global_batch} to {(s.last + 1) * self.global_batch - 1})"
            for s in self.stretches
        )
