"""What TensorBoard shows of a finished run: the final model's figures and samples, beside the hyperparameters.

runs/X/tensorboard/outcome.tfevents     written with the report, the same bytes for the same run
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from trainer.records.basis import HarnessResult
from trainer.runs.facts import RunFacts
from trainer.store.names import TENSORBOARD
from trainer.store.storage import Store

OUTCOME = "outcome.tfevents"
"""Read after the files of the processes that trained, whose names begin with `events.`."""

NO_FIGURES = {"tokens", "windows", "text_bytes"}
"""What evaluations count besides."""


def write_outcome(store: Store, facts: RunFacts, samples: Iterable[tuple[str, str]]) -> None:
    """Write the outcome of a run, with the prompts that its model continued. In the place of that of an earlier report."""
    from trainer.training.tracking import event_file, scalar, session_end, session_start, text  # half a second to load

    made = datetime.fromisoformat(facts.final.created).timestamp()
    evaluation = facts.evaluation or {}
    scores = evaluation.get("scores", {})
    harness = HarnessResult(**evaluation["harness"]).figures() if "harness" in evaluation else {}
    shown = [
        session_start(facts.job),
        *(scalar(f"final/{name}", value) for name, value in (*_figures(scores), *harness.items())),
        *(
            text(f"samples/{number}", f"Prompt:\n\n{_block(prompt)}\n\nContinuation:\n\n{_block(continuation)}")
            for number, (prompt, continuation) in enumerate(samples, start=1)
        ),
        session_end(made),
    ]
    store.write_bytes(f"{facts.key}/{TENSORBOARD}/{OUTCOME}", event_file(shown, facts.steps, made))


def _figures(scores: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """An evaluation's figures: `total/loss` and `corpora/code/loss`, or `validation/accuracy`."""
    for name, value in scores.items():
        if isinstance(value, dict):
            yield from _figures(value, f"{path}{name}/")
        elif value is not None and name not in NO_FIGURES:
            yield f"{path}{name}", value


def _block(text: str) -> str:
    """A text in markdown, as it is."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
