"""Runs that continue, or are started again when they have finished, with a changed setting that is not their name's."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import forget_after, records, small_job
from tests.trainer.training.test_training import train_here
from trainer.common.progress import silent
from trainer.config.files import validate_job
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.kind import evaluation_of, identify
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed, require_sealed, write_sealed
from trainer.registry.listing import find_runs
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.identity import recorded, with_untrained
from trainer.training.job_progress import find_standing

OFTEN: dict[str, Any] = {"training__save_every": 2, "training__keep_last": 9, "training__evaluate_every": 2}


def test_a_finished_run_keeps_what_decided_its_best_checkpoint(raw: Path, stocked: Path, data: PreparedData) -> None:
    key = train_here(raw, stocked, data, **OFTEN)
    store = Store(str(stocked))
    before = require_sealed(store, f"{key}/config.json")["job"]["evaluation"]
    changes = {**OFTEN, "evaluation__best_by": "bits_per_byte", "evaluation__during_training": 2}
    assert train_here(raw, stocked, data, **changes, evaluation__prompts=["class "]) == key
    after = require_sealed(store, f"{key}/config.json")["job"]["evaluation"]
    assert after == {**before, "prompts": ["class "]}
    job = small_job(raw, stocked, **changes, evaluation__prompts=["class "])
    evaluate_checkpoint(evaluation_of(job, key), silent())
    make_report(store, key)
    assert "by bits_per_byte" not in store.read_bytes(f"{key}/report.html").decode()
    (line,) = find_runs(store)
    assert (line.figure, line.best) == ("loss", require_sealed(store, f"{key}/checkpoint-best")["scores"]["loss"])


def test_tasks_of_lm_eval_stay_with_their_figure_that_decided(raw: Path, stocked: Path, data: PreparedData) -> None:
    decided = {"best_by": "harness/tiny/acc", "harness": {"tasks": ["tiny"], "every": 3}}
    job, other = (
        small_job(raw, stocked, evaluation=decided),
        small_job(raw, stocked, evaluation={"prompts": ["class "]}),
    )
    config = {"job": recorded(job), "data": {}, "inputs": {}}
    noted = with_untrained(config, identify(job, data), other, data)["job"]
    after = validate_job(PipelineJob, noted, "config.json").evaluation
    assert after == job.evaluation.model_copy(update={"prompts": ["class "]})


def test_a_run_that_continues_with_another_figure_for_the_best_checkpoint_warns(
    raw: Path, stocked: Path, data: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    key = train_here(raw, stocked, data, **OFTEN)
    forget_after(stocked / key, 2)
    assert train_here(raw, stocked, data, **OFTEN) == key
    assert "no longer count" not in caplog.text
    forget_after(stocked / key, 2)
    assert train_here(raw, stocked, data, **OFTEN, evaluation__best_by="bits_per_byte") == key
    assert "the rule for its loss, has changed: results up to step 2 no longer count" in caplog.text


def test_the_settings_by_which_earlier_steps_were_computed_are_kept(
    raw: Path, stocked: Path, data: PreparedData
) -> None:
    key = train_here(raw, stocked, data, **OFTEN)
    store, described = Store(str(stocked)), f"{key}/environment.json"
    forget_after(stocked / key, 4)
    train_here(raw, stocked, data, **OFTEN, training__micro_batch=4, training__gradient_checkpointing=True)
    told = "gradient_checkpointing: False -> True; micro_batch: 8 -> 4"
    environment = require_sealed(store, described)
    assert environment["until step 4"] == told and environment["micro_batch"] == 4

    forget_after(stocked / key, 2)
    older = {name: environment[name] for name in ("python", "packages", "device", "threads", "ranks", "precision")}
    write_sealed(store, described, older)
    train_here(raw, stocked, data, **OFTEN)
    assert not any(name.startswith("until") for name in read_sealed(store, described) or {}), "it is not known"


def test_losses_on_both_sides_of_a_changed_evaluation_are_not_compared(
    raw: Path, stocked: Path, data: PreparedData
) -> None:
    key = train_here(raw, stocked, data, **OFTEN)
    forget_after(stocked / key, 2)
    changes = {**OFTEN, "evaluation__during_training": None}
    assert train_here(raw, stocked, data, **changes) == key
    few, *_, all_of_it = (record["tokens"] for record in records(stocked, "evaluation"))
    assert few < all_of_it
    evaluate_checkpoint(evaluation_of(small_job(raw, stocked, **changes), key), silent())
    store = Store(str(stocked))
    make_report(store, key)
    page = store.read_bytes(f"{key}/report.html").decode()
    assert "Before and after training" not in page and "Validation loss" in page
    assert f"(from step 0 on {few:,} tokens; from step 4 on {all_of_it:,} tokens)" in page


def test_the_watchdog_finds_a_run_that_somebody_continued_with_other_settings_of_execution(
    raw: Path, stocked: Path, data: PreparedData
) -> None:
    train_here(raw, stocked, data, training__log_every=5, card={"license": "mit"})
    assert find_standing(small_job(raw, stocked)).step == 6
    for changes in ({"training__seed": 1}, {"training__evaluate_every": 2}):
        assert find_standing(small_job(raw, stocked, **changes)).step == 0
