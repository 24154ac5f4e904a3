"""One job with several seeds: one run per seed, reused or resumed, and a summary of the figures."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from flows.seeds import by_split, with_seeds
from tests.flows.conftest import Done
from tests.processes import Ended
from tests.support import write_config
from tests.trainer.labelled_pairs import finetune_job, finetune_values, write_pairs
from tests.trainer.results import a_result
from trainer.common.display import score
from trainer.common.errors import ConfigError
from trainer.records.basis import HarnessBasis
from trainer.records.evaluations import HarnessRun, Scores, Task
from trainer.records.results import Outcome
from trainer.registry.compare_runs import compare_for_programs
from trainer.store.storage import Store


def job(**changes: Any) -> Any:
    return finetune_job(Path("pairs"), "store", "model", **changes)


def test_each_seed_is_a_job_of_its_own() -> None:
    made = with_seeds(job(training__seed=7), "0, 3")
    assert [each.training.seed for each in made] == [0, 3]
    assert [each.run for each in made] == [None, None]
    assert made[0].model_copy(update={"training": job().training}) == job()
    assert [each.run for each in with_seeds(job(run="mine"), "1,2")] == ["mine-seed-1", "mine-seed-2"]


@pytest.mark.parametrize("said", ["1", "1,1", "01,1", "", "a,b", "1;2", "-1,2", "1,,2"])
def test_what_are_no_seeds_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match=r"--seeds is .*; expected two or more different seeds, such as 0,1,2"):
        with_seeds(job(), said)


def test_seeds_that_no_job_can_have_and_forks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.seed"):
        with_seeds(job(), f"1,{2**32}")
    with pytest.raises(ConfigError, match="--seeds needs resume: exact"):
        with_seeds(job(run="mine", resume="fork"), "1,2")


def test_figures_of_lm_evals_tasks_are_taken_together_as_those_of_splits_are() -> None:
    outcomes = [outcome_of(number) for number in (0.25, 0.75)]
    spreads = by_split(outcomes)
    assert spreads.keys() == {"validation", "harness"} and spreads["harness"].keys() == {"tiny/acc"}
    assert (spreads["harness"]["tiny/acc"].mean, spreads["harness"]["tiny/acc"].values) == (0.5, [0.25, 0.75])
    without = outcomes[0].model_copy(update={"evaluation": outcomes[0].evaluation.model_copy(update={"harness": None})})
    assert by_split([without, outcomes[1]]).keys() == {"validation"}


def outcome_of(value: float) -> Outcome:
    """The outcome of a run on conversations, with figures of this value."""
    task = Task(version="1", identity="ab")
    harness = a_result(
        {}, by="task", key="runs/a/harness.json",
        groups={"tiny": Scores(figures={"acc": value}, counts={"examples": 4, "few_shot": 0})},
        measured_on=HarnessBasis(harness={"tiny": "ab"}),
        asked=HarnessRun(lm_eval="1", tasks={"tiny": task}),
    )  # fmt: skip
    evaluation = a_result({"validation": {"loss": value}}).beside(harness)
    return Outcome(run="runs/a", evaluation=evaluation, report="runs/a/report.html", promotion=None)


@pytest.mark.slow
@pytest.mark.deep
def test_seeds_are_run_one_after_the_other_found_again_and_compared(
    done: Done, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    pairs, model, store = (
        write_pairs(tmp_path / "pairs"),
        done.store / done.state.result().run / "final",
        tmp_path / "store",
    )
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, store, model, training__epochs=1))

    def finetune(*words: str) -> str:
        ended = command("finetune", config, *words)
        assert ended.status == 0, ended
        return ended.stdout

    told = finetune("--seeds", "0,1")
    runs = sorted((store / "runs").iterdir())
    assert len(runs) == 2 and len(list((store / "encoded").iterdir())) == 1
    table = told[told.rindex("seed 0") :].splitlines()
    assert table[0].split() == ["seed", "0", "seed", "1", "mean", "deviation"]
    weights = {run.name: (run / "final" / "model.safetensors").stat().st_mtime_ns for run in runs}

    again = json.loads(finetune("--seeds", "0,1,2", "--json"))
    assert len(list((store / "runs").iterdir())) == 3
    assert {run.name: (run / "final" / "model.safetensors").stat().st_mtime_ns for run in runs} == weights, "reused"
    losses = [each["evaluation"]["groups"]["validation"]["figures"]["loss"] for each in again["outcomes"]]
    spread = again["spreads"]["validation"]["loss"]
    assert spread == {"mean": fmean(losses), "deviation": stdev(losses), "values": losses} and stdev(losses) > 0

    keys = [each["run"].removeprefix("runs/") for each in again["outcomes"]]
    other = json.loads(finetune("training.learning_rate=2.0e-3", "--json"))["run"].removeprefix("runs/")
    compared = compare_for_programs(Store(str(store)), [*keys, other])
    together = compared["results"].blocks[-1]
    assert together.note == "Runs that differ only in the seed, as groups."
    assert together.table.columns == ["mean ± deviation", "A, B, C"]
    assert dict(together.table.rows)["loss, validation"] == f"{score(fmean(losses))} ± {score(stdev(losses))}"
    assert len(compare_for_programs(Store(str(store)), [keys[0], other])["results"].blocks) == 1
