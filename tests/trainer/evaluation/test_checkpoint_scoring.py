"""Measuring any checkpoint of a fine-tuned run, as the run itself measured it."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Finished
from trainer.common.errors import ArtifactError, ConfigError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.checkpoint_scoring import identify_checkpoint
from trainer.evaluation.measuring import evaluate_any
from trainer.records.evaluations import FinetuneEvaluation
from trainer.runs.references import References
from trainer.store.storage import Store
from trainer.training.runtime import Runtime


@pytest.fixture
def run(tuned: Finished, tmp_path: Path) -> Finished:
    """A copy of a fine-tuned run, to be written to."""
    return Finished(Path(shutil.copytree(tuned.store, tmp_path / "store")), tuned.run)


def measure(run: Finished, checkpoint: str, **changes: Any) -> FinetuneEvaluation:
    result = evaluate_any(EvaluateJob(store=str(run.store), checkpoint=checkpoint, **changes), silent())
    assert isinstance(result, FinetuneEvaluation)
    return result


@pytest.mark.deep
def test_every_checkpoint_has_the_figures_that_were_measured_when_it_was_saved(run: Finished, runtime: Runtime) -> None:
    folders = sorted((run.store / run.run / "checkpoints").iterdir())
    saved = {folder: json.loads((folder / "manifest.json").read_text())["details"]["scores"] for folder in folders}
    measured = {folder: scores for folder, scores in saved.items() if scores}
    assert measured
    for folder, scores in measured.items():
        key = f"{run.run}/checkpoints/{folder.name}"
        result = measure(run, key, evaluation={"batch": 7})
        assert {name: pytest.approx(value, abs=1e-5) for name, value in scores.items()} == result.scores["validation"]
        assert (result.checkpoint, result.model, result.predictions) == (key, key, {})
        assert result.key == f"evaluations/{folder.name}-{result.fingerprint}.json"
        assert list(result.classification) == list(result.scores) == ["validation"], "the test split has no labels"
        assert measure(run, key) == result.model_copy(update={"reused": True})


@pytest.mark.deep
def test_the_final_model_is_measured_as_its_run_did_and_otherwise_apart(run: Finished, runtime: Runtime) -> None:
    own = measure(run, "pairs")
    assert (own.reused, own.key) == (True, f"{run.run}/eval.json")
    job = EvaluateJob(store=str(run.store), checkpoint="pairs", precision="bf16")  # a process keeps the precision it began with
    other = identify_checkpoint(Store(job.store), job)
    assert other is not None and other.wanted.key == f"evaluations/pairs-{other.wanted.fingerprint}.json"
    assert other.wanted.fingerprint != own.fingerprint and other.job.training.precision == "bf16"
    (run.store / run.run / "eval.json").unlink()
    again = measure(run, "pairs")
    assert (again.scores, again.predictions) == (own.scores, own.predictions)
    encoded = again.encoded
    assert encoded in References(Store(str(run.store))).reached([run.run])


def test_what_goes_with_language_models_only_is_refused_or_said(
    run: Finished, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    for setting, value in {"shards": ["shards/code-0123456789abcdef"], "context": 32}.items():
        with pytest.raises(
            ConfigError, match=f"^{setting} goes with language models, but pairs is a classifier.*; leave {setting} out"
        ):
            measure(run, "pairs", **{setting: value})
    with caplog.at_level(logging.INFO):
        measure(run, "pairs", evaluation={"prompts": ["def "]})
    assert "pairs is a classifier: evaluation.prompts has no meaning for it" in caplog.text


def test_a_classifier_of_no_run_and_one_whose_data_is_gone_are_refused(run: Finished, tmp_path: Path, runtime: Runtime) -> None:
    folder = shutil.copytree(run.store / run.run / "final", tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="elsewhere is a classifier of no run in this store"):
        measure(run, str(folder))
    shutil.rmtree(run.store / "encoded")
    (run.store / run.run / "eval.json").unlink()
    with pytest.raises(ArtifactError, match="holds no encoded data set; encode it first: run its fine-tuning job again"):
        measure(run, "pairs")
