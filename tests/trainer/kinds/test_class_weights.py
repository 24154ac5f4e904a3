"""Weights of classes and label smoothing, against torch and scikit-learn."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.made import encode
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.data.labelled.encoded import find_class_weights, open_encoded
from trainer.kinds.labelled.kind import identify
from trainer.kinds.labelled.measure import score, split_lines
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.kinds.labelled.workload import Finetuning, read_inputs
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

WEIGHTS = {"match": 2.5, "other": 0.25}
"""The classes of the pairs, in another order than that of their ids."""


def test_weights_for_no_class_are_none_and_name_the_same_run(tmp_path: Path) -> None:
    jobs = [finetune_job(tmp_path, tmp_path, "any", training__class_weights=each) for each in ({}, None)]
    assert jobs[0] == jobs[1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("changes", "weights"),
    [({"class_weights": WEIGHTS, "label_smoothing": 0.1}, [0.25, 2.5]), ({"label_smoothing": 0.2}, None),
     ({"class_weights": {"other": 3}}, [3.0, 1.0])],
)  # fmt: skip
def test_the_loss_of_a_global_batch_is_the_mean_that_torch_computes_whatever_the_ranks(
    pairs: Path, pretrained: Path, tmp_path: Path, ranks: int, changes: dict[str, Any], weights: list[float] | None
) -> None:
    training = {f"training__{name}": value for name, value in changes.items()}
    job = finetune_job(
        pairs, tmp_path / "store", pretrained, training__global_batch=12, training__micro_batch=2, **training
    )
    work = Finetuning(job, Store(job.store), encode(job, silent()), ranks)
    model = work.load_model(None).eval()
    objective, batches = work.make_objective(model), [work.read_batch(0, rank) for rank in range(ranks)]
    (targets,) = {batch.targets for batch in batches}
    ours = sum(objective(**inputs) for batch in batches for inputs in batch.micro_batches) / targets
    examples = work.order.examples(0)
    inputs = read_inputs(work._train, examples)
    labels = inputs.pop("labels")
    assert len(set(labels.tolist())) == 2
    by_class = None if weights is None else torch.tensor(weights)
    theirs = F.cross_entropy(
        model(**inputs).logits, labels, weight=by_class, label_smoothing=changes.get("label_smoothing", 0.0)
    )
    assert float(ours.detach()) == pytest.approx(theirs.item(), rel=1e-5)
    assert not objective.state_dict().keys() - {f"model.{name}" for name in model.state_dict()}, (
        "a checkpoint is as before"
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_have_no_figures_and_predict_nothing(
    number: float, pairs: Path, pretrained: Path, tmp_path: Path, runtime: Runtime
) -> None:
    job = finetune_job(pairs, tmp_path / "store", pretrained)
    data = open_encoded(Store(job.store), encode(job, silent()).key)
    held = data.splits["validation"]
    logits = np.zeros((len(held), 2), dtype=np.float32)
    assert all(map(math.isfinite, score(logits, data, "validation", job, runtime).values()))
    logits[3] = number
    figures = score(logits, data, "validation", job, runtime)
    assert {"loss", "accuracy", "f1"} <= figures.keys() and not any(map(math.isfinite, figures.values()))
    lines = [json.loads(line, parse_constant=pytest.fail) for line in split_lines(held, logits, ["a", "b"], False)]
    assert [line["prediction"] for line in lines[2:5]] == ["a", None, "a"] and lines[3]["probabilities"] is None


def test_balanced_weights_are_scikit_learns() -> None:
    labels = np.array([0] * 7 + [1] * 2 + [2] * 11)
    counts = {name: int((labels == number).sum()) for number, name in enumerate("abc")}
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert find_class_weights("balanced", list("abc"), counts) == pytest.approx(expected.tolist())


def test_a_class_that_is_not_named_counts_one_and_what_is_none_is_refused() -> None:
    assert find_class_weights({"b": 2.0}, ["a", "b"], None) == [1.0, 2.0]
    with pytest.raises(
        ConfigError, match="class_weights has 'goood', but the classes are 'bad', 'good'; did you mean 'good'"
    ):
        find_class_weights({"goood": 2.0}, ["bad", "good"], None)
    with pytest.raises(ConfigError, match="class_weights is balanced, but no training example has the class 'b'"):
        find_class_weights("balanced", ["a", "b"], {"a": 3, "b": 0})


@pytest.mark.parametrize("encoded", [False, True])
def test_bad_weights_are_refused_before_any_work(pairs: Path, pretrained: Path, tmp_path: Path, encoded: bool) -> None:
    if encoded:
        encode(finetune_job(pairs, tmp_path, pretrained), silent())
    with pytest.raises(ConfigError, match="class_weights has 'matches', but the classes are 'other', 'match'"):
        labelled_preflight(finetune_job(pairs, tmp_path, pretrained, training__class_weights={"matches": 2}), silent())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__class_weights": {"match": 0}}, "training.class_weights"),
        ({"training__class_weights": "balance"}, "training.class_weights"),
        ({"training__label_smoothing": 1.0}, "training.label_smoothing"),
        ({"training__label_smoothing": 0.1, "data__task": "regression", "data__classes": None},
         "training.label_smoothing requires data.task classification or tokens, not regression"),
        ({"training__class_weights": "balanced", "data__task": "multi-label"},
         "training.class_weights requires data.task classification or tokens, not multi-label"),
        ({"training__class_weights": "balanced", "data__task": "regression", "data__classes": None},
         "training.class_weights requires data.task classification or tokens, not regression"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        finetune_job(Path("pairs"), "store", "model", **changes)


def test_they_name_the_run(pairs: Path, pretrained: Path, tmp_path: Path) -> None:
    data = ArtifactRef(key="encoded/pairs-0", fingerprint="0", size=1)

    def identity(**changes: Any) -> tuple[str, dict[str, Any]]:
        run = identify(finetune_job(pairs, tmp_path, pretrained, **changes), data)
        return run.fingerprint, run.identity

    plain, _ = identity()
    others = [
        {"training__class_weights": "balanced"}, {"training__class_weights": WEIGHTS},
        {"training__label_smoothing": 0.1},
        {"training__class_weights": {"match": 2.5}},
    ]  # fmt: skip
    assert len({plain, *(identity(**each)[0] for each in others)}) == 5
    assert identity(training__class_weights=WEIGHTS) == identity(
        training__class_weights=dict(reversed(WEIGHTS.items()))
    )


def test_whole_numbers_name_classes_too() -> None:
    job = finetune_job(Path("pairs"), "store", "model", data__classes=["0", "1"], training__class_weights={0: 2, 1: 1})
    assert job.training.class_weights == {"0": 2.0, "1": 1.0}
