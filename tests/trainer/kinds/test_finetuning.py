"""Fine-tuning: the loss, the same loop, and what comes out, against transformers and scikit-learn."""

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from tests import ROOT
from tests.processes import finish, start_module, start_warm
from tests.support import NO_DROPOUT, read_rows, records, write_config, write_rows
from tests.trainer.evaluation.test_measures import write_module
from tests.trainer.labelled_pairs import finetune_job, finetune_values
from tests.trainer.made import encode
from tests.trainer.small_jobs import Finished
from tests.trainer.test_refusals import message_of
from trainer.common.errors import ArtifactError, RunError
from trainer.common.progress import silent
from trainer.evaluation.metrics import RESERVED
from trainer.kinds.labelled.workload import Finetuning, read_inputs
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

TOLERANCE = 2e-4
"""Of losses, absolute: float32 sums taken in another order, carried through AdamW."""


def workload(pairs: Path, store: Path, model: Path, ranks: int = 1, **changes: Any) -> Finetuning:
    job = finetune_job(pairs, store, model, **changes)
    return Finetuning(job, Store(str(store)), encode(job, silent()), ranks)


def losses(store: Path) -> list[float]:
    return [record["loss"] for record in records(store, "train")]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_loss_is_the_one_that_transformers_computes_from_labels(
    pairs: Path, pretrained: Path, tmp_path: Path, task: str
) -> None:
    changes = {}
    if task == "regression":
        rows = [{**row, "label": 0.25 * len(row["summary"])} for row in read_rows(pairs / "train.jsonl")]
        write_rows(tmp_path / "train.jsonl", rows)
        changes = {"data__train": [str(tmp_path / "train.jsonl")], "data__validation": None, "data__test": None}
        changes |= {"data__task": "regression", "data__classes": None}
    work = workload(pairs, tmp_path / "store", pretrained, **changes)
    model = work.load_model(None).eval()
    batch = work.read_batch(0, 0)
    (inputs,) = batch.micro_batches
    ours = work.make_objective(model)(**inputs) / batch.targets
    labels = inputs["labels"].float() if task == "regression" else inputs["labels"]
    theirs = model(**{k: v for k, v in inputs.items() if k not in ("labels", "weights")}, labels=labels).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_figures_with_the_names_of_fields_of_a_record_are_recorded_beside_them(
    pairs: Path, pretrained: Path, tmp_path: Path
) -> None:
    figures = str(dict.fromkeys(RESERVED, 0.25))
    own = write_module(tmp_path / "own.py", figures)
    train(
        finetune_job(pairs, tmp_path / "store", pretrained, evaluation__metrics=[str(own)], training__epochs=1),
        silent(),
    )
    found = records(tmp_path / "store", "evaluation")
    assert found
    for record in found:
        assert {name: record[f"own/{name}"] for name in RESERVED} == dict.fromkeys(RESERVED, 0.25)
        assert record["examples"] > 1 and record["loss"] > 0.25


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_shares_together_are_the_batch_and_a_rank_without_examples_weighs_nothing(
    pairs: Path, pretrained: Path, tmp_path: Path, ranks: int
) -> None:
    whole, divided = (
        workload(pairs, tmp_path / "store", pretrained, count, training__global_batch=4) for count in (1, ranks)
    )
    idle = 0
    for number in range(whole.plan.steps_per_epoch):
        expected = whole.read_batch(number, 0)
        shares = [divided.read_batch(number, rank) for rank in range(ranks)]
        assert {(share.targets, share.tokens) for share in shares} == {(expected.targets, expected.tokens)}
        rows = [row for batch in [expected] for row in _texts(batch)]
        assert sorted(row for share in shares for row in _texts(share)) == sorted(rows)
        idle += sum(not _texts(share) for share in shares)
    assert idle == (ranks - whole.plan.examples % 4) % ranks if ranks == 4 else idle == 0


def test_all_ranks_have_as_many_micro_batches(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    """Ranks that share a model wait for each other in each."""
    ranks, examples = 3, workload(pairs, tmp_path / "store", pretrained).plan.examples
    batch = next(size for size in range(18, examples, 3) if examples % size % 3)
    work = workload(pairs, tmp_path / "store", pretrained, ranks, training__global_batch=batch, training__micro_batch=1)
    for number in range(work.plan.steps_per_epoch):
        shares = [work.read_batch(number, rank) for rank in range(ranks)]
        assert len({len(share.micro_batches) for share in shares}) == 1
        assert sum(len(_texts(share)) for share in shares) == shares[0].targets
    assert shares[0].targets % ranks, "the last batch is not divided evenly"


def _texts(batch: Any) -> list[tuple[list[int], int]]:
    found = []
    for inputs in batch.micro_batches:
        for ids, mask, label, weight in zip(
            inputs["input_ids"], inputs["attention_mask"], inputs["labels"], inputs["weights"], strict=True
        ):
            if weight:
                found.append((ids[mask.bool()].tolist(), int(label)))
    return found


def test_padding_changes_nothing(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    work = workload(pairs, tmp_path / "store", pretrained, data__text_columns=["summary"])
    model = work.load_model(None).eval()
    split = work._train
    order = np.argsort(split.lengths)
    together = read_inputs(split, np.array([order[0], order[-1]]))
    alone = read_inputs(split, np.array([order[0]]))
    assert together["input_ids"].shape[1] > alone["input_ids"].shape[1]
    with torch.no_grad():
        a, b = (
            model(input_ids=i["input_ids"], attention_mask=i["attention_mask"]).logits[0] for i in (together, alone)
        )
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.deep
def test_the_final_model_predicts_in_transformers_with_the_class_names_as_its_file_says(tuned: Finished) -> None:
    final = tuned.folder / "final"
    model = AutoModelForSequenceClassification.from_pretrained(final)
    assert model.config.id2label == {0: "other", 1: "match"}
    assert model.config.problem_type == "single_label_classification"
    tokenizer = AutoTokenizer.from_pretrained(final)
    job = json.loads((tuned.folder / "config.json").read_text())["job"]
    rows = read_rows(Path(job["data"]["test"][0]))
    predicted = read_rows(tuned.folder / "predictions" / "test.jsonl")
    assert [line["id"] for line in predicted] == [row["id"] for row in rows]
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    said = classify(
        [{"text": row["summary"], "text_pair": row["code"]} for row in rows], truncation=True, max_length=32
    )
    assert [answer["label"] for answer in said] == [line["prediction"] for line in predicted]
    for answer, line in zip(said, predicted, strict=True):
        assert line["probabilities"][answer["label"]] == pytest.approx(answer["score"], abs=1e-4)
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_the_figures_are_scikit_learns_on_the_predictions_whatever_the_batch_size(
    copied: Finished, batch: int, runtime: Runtime
) -> None:
    job = copied.job(evaluation={"batch": batch, "metrics": ["accuracy", "f1"]})
    (copied.folder / "eval.json").unlink()
    assert not evaluate_run(job, copied.run, silent()).reused
    assert evaluate_run(job, copied.run, silent()).reused
    assert job.data.validation is not None
    _assert_figures(copied.folder, Path(job.data.validation[0]))


@pytest.fixture
def copied(tuned: Finished, tmp_path: Path) -> Finished:
    """A copy of the fine-tuned run, to be written to."""
    return tuned.copy(tmp_path)


def _assert_figures(run: Path, validation: Path) -> None:
    truth = [row["label"] for row in read_rows(validation)]
    predicted = read_rows(run / "predictions" / "validation.jsonl")
    answers = [line["prediction"] for line in predicted]
    found = json.loads((run / "eval.json").read_text())
    assert set(found["groups"]) == {"validation"}, "the test split has no labels"
    scores = found["groups"]["validation"]["figures"]
    assert scores["accuracy"] == pytest.approx(accuracy_score(truth, answers), abs=1e-12)
    assert scores["f1"] == pytest.approx(f1_score(truth, answers, pos_label="match"), abs=1e-12)
    chances = [[line["probabilities"]["match"], line["probabilities"]["other"]] for line in predicted]
    assert scores["loss"] == pytest.approx(log_loss(truth, chances, labels=["match", "other"]), abs=1e-5)
    confusion = confusion_matrix(truth, answers, labels=["other", "match"]).tolist()
    assert found["classification"]["validation"]["confusion"] == confusion


def test_damaged_predictions_are_written_again(
    copied: Finished, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    job = copied.job()
    path = copied.folder / "predictions" / "test.jsonl"
    evaluate_run(job, copied.run, silent())
    before = path.read_bytes()
    path.write_bytes(before[:-10])
    assert not evaluate_run(job, copied.run, silent()).reused
    assert "test.jsonl is missing or changed: measuring again" in caplog.text
    assert path.read_bytes() == before


def test_figures_named_by_a_metrics_file_are_measured_again_under_its_new_name(
    copied: Finished, runtime: Runtime, tmp_path: Path
) -> None:
    own = write_module(tmp_path / "own.py", '{"loss": 1.0}')
    evaluate_run(copied.job(evaluation__metrics=[str(own)]), copied.run, silent())
    found = evaluate_run(copied.job(evaluation__metrics=[str(own.rename(tmp_path / "new.py"))]), copied.run, silent())
    assert "new/loss" in found.figures()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {"training__class_weights": "balanced", "training__label_smoothing": 0.1},
            marks=pytest.mark.deep,
            id="weights",
        ),
    ],
)
@pytest.mark.deep
def test_two_ranks_train_as_one_and_measure_the_same(
    pairs: Path, pretrained: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = {}
    for ranks in (1, 2):
        store = tmp_path / f"store-{ranks}"
        no_dropout = _without_dropout(pretrained, tmp_path / f"model-{ranks}")
        values = finetune_values(pairs, store, no_dropout, run="pairs", evaluation__batch=7, **changes)
        config = write_config(tmp_path / "job.yaml", values)
        finish(tmp_path / f"said-{ranks}", config, ranks)
        _assert_figures(store / "runs" / "pairs", pairs / "validation.jsonl")
        evaluation = json.loads((store / "runs" / "pairs" / "eval.json").read_text())
        found[ranks] = (losses(store), evaluation["groups"]["validation"]["figures"])
    np.testing.assert_allclose(found[1][0], found[2][0], atol=TOLERANCE)
    assert found[1][1]["loss"] == pytest.approx(found[2][1]["loss"], abs=TOLERANCE)


def _without_dropout(model: Path, folder: Path) -> Path:
    """A copy of a model, so that ranks, which drop out other units, can be compared."""
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **NO_DROPOUT}))
    return folder


def test_a_new_head_is_said_once_and_follows_from_the_seed(
    pairs: Path, pretrained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    heads = [
        workload(pairs, tmp_path / "store", pretrained, training__seed=seed).load_model(None).score.weight
        for seed in (1, 1, 2)
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    said = [record.getMessage() for record in caplog.records if "newly initialised" in record.getMessage()]
    assert said == [f"{pretrained} has no head for this task: newly initialised weights: score.weight"] * 3


def test_a_head_that_is_kept_for_other_classes_is_warned_of(
    pairs: Path, tuned: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Path(shutil.copytree(tuned.folder / "final", tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    own = list(config["id2label"].values())

    def warned(names: list[str]) -> list[str]:
        caplog.clear()
        (model / "config.json").write_text(json.dumps({**config, "id2label": dict(enumerate(names))}))
        workload(pairs, tmp_path / "store", model).load_model(None)
        return [record.getMessage() for record in caplog.records if "the outputs of" in record.getMessage()]

    (told,) = warned(own[::-1])
    assert told.startswith(
        f"the outputs of {model} are for {', '.join(own[::-1])}, and training starts with them for {', '.join(own)}; "
    )
    assert warned(own) == warned(["LABEL_0", "LABEL_1"]) == []


def test_a_run_is_not_forked_for_other_classes_whose_places_in_the_head_are_others(
    pairs: Path, pretrained: Path, tmp_path: Path, runtime: Runtime
) -> None:
    short = {"run": "one", "training__max_steps": 1, "training__epochs": None}
    train(finetune_job(pairs, tmp_path, pretrained, **short), silent())
    forked = finetune_job(pairs, tmp_path, pretrained, **short, data__classes=["match", "other"], resume="fork")
    said = r"runs/one cannot be forked for other labels: classes: \['other', 'match'\] -> .* model.pretrained"
    with pytest.raises(RunError, match=said):
        train(forked, silent())
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]
    again = finetune_job(pairs, tmp_path, pretrained, **short, training__seed=1, resume="fork")
    fork = train(again, silent()).key
    make_report(Store(str(tmp_path)), fork)
    card = (tmp_path / fork / "final" / "README.md").read_text()
    assert "fine-tuned from runs/one/checkpoints/step-00000001 on" in card


@pytest.mark.deep
def test_training_ends_early_when_nothing_gets_better_and_the_best_becomes_final_even_without_its_pointer(
    pairs: Path, pretrained: Path, tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    job = finetune_job(
        pairs, store, pretrained, training__evaluate_every=4, training__early_stopping=3, training__final="best",
        training__learning_rate=5e-2, training__epochs=20, evaluation__best_by="loss",
    )  # fmt: skip
    run = train(job, silent())
    measured = [(record["step"], record["loss"]) for record in records(store, "evaluation")][1:]
    best = min(measured, key=lambda pair: pair[1])
    assert [step for step, _ in measured][-1] < 20 * 30
    assert measured.index(best) == len(measured) - 4, "three evaluations without a new best, and no more"
    final = json.loads((store / run.key / "final" / "manifest.json").read_text())
    assert final["details"]["step"] == best[0]
    weights = {
        name: (store / run.key / name / "model.safetensors").read_bytes()
        for name in ("final", f"checkpoints/step-{best[0]:08d}")
    }
    assert len(set(weights.values())) == 1
    assert json.loads((store / run.key / "checkpoint-best").read_text())["step"] == best[0]
    assert train(job, silent()).reused
    pointer = (store / run.key / "checkpoint-best").read_bytes()
    shutil.rmtree(store / run.key / "final")
    (store / run.key / "checkpoint-best").unlink()
    assert not train(job, silent()).reused
    assert (store / run.key / "final" / "model.safetensors").read_bytes() == weights["final"]
    assert (store / run.key / "checkpoint-best").read_bytes() == pointer
    shutil.rmtree(store / run.key / "final")
    shutil.rmtree(store / run.key / f"checkpoints/step-{best[0]:08d}")
    with pytest.raises(
        ArtifactError,
        match=f"the best checkpoint of .*, of step {best[0]}, is not intact: .*missing.* restore it",
    ):
        train(job, silent())
    assert "before the run ends; a later step may still become the best" in caplog.text, "told when it continues"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation__best_by": "bleu"}, "best_by is 'bleu', but the measured figures are loss, accuracy, f1"),
        (
            {"evaluation__best_by": "pearsonr"},
            "best_by is 'pearsonr', but the measured figures are loss, accuracy, f1; se",
        ),
        ({"evaluation__metrics": ["pearsonr"]}, "pearsonr"),
        ({"evaluation__metrics": ["acuracy"]}, "acuracy"),
        (
            {"training__schedule_options": {"num_cycle": 2}},
            "training.schedule_options do not fit the schedule 'linear'",
        ),
        ({"training__early_stopping": 0}, "training.early_stopping"),
        ({"model__pretrained": "no/such/model/here"}, "no checkpoint 'no/such/model/here'"),
        ({"data__label_column": "code"}, "the column 'code' occurs twice"),
        ({"data__max_length": 33}, "33"),
        ({"data__classes": ["yes", "no"]}, "match"),
    ],
)
def test_bad_settings_are_refused_with_one_message_before_training(
    pairs: Path, pretrained: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, tmp_path / "store", pretrained, **changes))
    assert message in message_of(start_warm(tmp_path / "said", "trainer.__main__", config).wait())
    assert not list((tmp_path / "store").glob("runs/*/checkpoints"))


@pytest.mark.deep
@pytest.mark.slow
def test_a_notebook_launches_it_on_two_processes(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, store, pretrained, run="pairs"))
    cell = (
        "from accelerate import notebook_launcher\nfrom trainer.jobs import train\n"
        f"notebook_launcher(train, ({str(config)!r},), num_processes=2)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", cell], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((store / "runs" / "pairs" / "plan.json").read_text())["ranks"] == 2
    _assert_figures(store / "runs" / "pairs", pairs / "validation.jsonl")


@pytest.mark.deep
@pytest.mark.slow
def test_accelerates_configuration_file_is_heeded(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    values = finetune_values(pairs, store, pretrained, run="pairs", training__epochs=1)
    config = write_config(tmp_path / "job.yaml", values)
    settings = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "num_processes": 1, "num_machines": 1}
    accelerate = write_config(tmp_path / "accelerate.yaml", {**settings, "mixed_precision": "bf16", "use_cpu": True})
    arguments = ["--config_file", accelerate, "-m", "trainer", config]
    ended = start_module(tmp_path / "said", "accelerate.commands.launch", *arguments).wait(200)
    assert ended.status == 0, ended.stderr
    environment = json.loads((store / "runs" / "pairs" / "environment.json").read_text())
    assert environment["precision"] == "bf16"
    _assert_figures(store / "runs" / "pairs", pairs / "validation.jsonl")
