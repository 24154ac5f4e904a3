"""A job with several seeds: one run for each, with the mean and deviation of their figures."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainer.common.display import Table, any_reader, score, show_json, text_table
from trainer.common.errors import ConfigError
from trainer.config.files import Job, override
from trainer.records.evaluations import Result
from trainer.records.results import Outcome

if TYPE_CHECKING:
    from trainer.registry.compare_figures import Spread


def with_seeds(job: Job, seeds: str) -> list[Job]:
    """The job with each of the seeds, written as `0,1,2`; the seed is appended to the job's `run`, if set.

    Raises `ConfigError` unless there are two or more different seeds.
    """
    words = [word.strip() for word in seeds.split(",")]
    values: Any = job
    if not all(word.isdecimal() for word in words) or len({int(word) for word in words}) < max(2, len(words)):
        raise ConfigError(f"--seeds is {seeds!r}; expected two or more different seeds, such as 0,1,2")
    if values.resume == "fork":
        raise ConfigError(
            "--seeds needs resume: exact, but the job sets resume: fork, which continues a single run of a fixed name"
        )
    names = [f"run={values.run}-seed-"] if values.run else []
    return [override(job, [f"training.seed={int(word)}", *(f"{name}{int(word)}" for name in names)]) for word in words]


def run_seeds(
    run: Callable[[Any], Outcome], jobs: Sequence[Any], show: Callable[[Any, Any], None], as_json: bool
) -> None:
    """Run the jobs one after another; print each result when it is finished, and a summary of all at the end."""
    outcomes = []
    for job in jobs:
        outcomes.append(run(job))
        if not as_json:
            with any_reader():
                show(job, outcomes[-1])
    if as_json:
        show_json({"outcomes": outcomes, "spreads": by_split(outcomes)})
    else:
        with any_reader():
            print(f"\n{_table(jobs, outcomes)}", end="")


def by_split(outcomes: Sequence[Outcome]) -> "dict[str, dict[str, Spread]]":
    """The spread of each figure, for each split that all runs were measured on, and for lm-eval's tasks."""
    from trainer.registry.compare_figures import spreads_of  # slow to import

    scores = [measured_of(outcome).by_group() for outcome in outcomes]
    splits = [split for split in scores[0] if all(split in each for each in scores)]
    return {split: spreads_of([each[split] for each in scores]) for split in splits}


def measured_of(outcome: Outcome) -> Result:
    """The evaluation of a fine-tuned model, which exists because fine-tuning always holds examples out."""
    assert outcome.evaluation is not None
    return outcome.evaluation


def _table(jobs: Sequence[Any], outcomes: Sequence[Outcome]) -> str:
    """A table of each seed's figures, with their mean and standard deviation."""
    columns = ["", *(f"seed {job.training.seed}" for job in jobs), "mean", "deviation"]
    first = measured_of(outcomes[0])
    rows = [
        [f"{split} {first.label(name)}", *map(score, [*found.values, found.mean, found.deviation])]
        for split, figures in by_split(outcomes).items()
        for name, found in figures.items()
    ]
    return text_table(Table(columns, rows))
