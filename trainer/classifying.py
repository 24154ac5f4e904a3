"""Measuring a fine-tuned model: figures on the labelled splits, and predictions of all that were not trained on.

runs/X/eval.json                          figures, confusion matrix, figures by class
runs/X/predictions/validation.jsonl       id, prediction and probabilities of each example
runs/X/predictions/test.jsonl
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch import nn

from trainer.classifiers import load_classifier
from trainer.encoded import EncodedSet, open_encoded
from trainer.finetune_config import FinetuneJob
from trainer.manifest import FileRecord, digest_file
from trainer.measured import FORMAT, find_scoring, identify_scoring
from trainer.places import FINAL
from trainer.predicting import Predictions, decide, gather_scores, label_count, predict, probabilities
from trainer.progress import Progress
from trainer.results import Classification, ClassScore, FinetuneEvaluation
from trainer.runtime import start_runtime
from trainer.storage import Store

PREDICTED = ("validation", "test")


def evaluate_run(job: FinetuneJob, run_key: str, progress: Progress) -> FinetuneEvaluation:
    """Score a run's final model and write its predictions; an evaluation already made is reused. Called by every rank.

    Raises `ArtifactError` if the final model is missing or damaged.
    """
    store = Store(job.store)
    wanted = identify_scoring(store, job, run_key)
    found, encoded, name, key = wanted
    runtime = start_runtime(job.training.precision, job.training.device)
    earlier = runtime.on_first(lambda: find_scoring(store, wanted))
    if earlier is not None:
        return earlier
    data = open_encoded(store, encoded)
    model = load_classifier(store, job, data.details, Path(found.folder))
    cast(nn.Module, model).to(runtime.device)
    scores: dict[str, dict[str, float]] = {}
    details: dict[str, Classification] = {}
    files: dict[str, FileRecord] = {}
    splits = [split for split in PREDICTED if split in data.splits]
    with progress.bar("evaluate", sum(len(data.splits[split]) for split in splits), "example") as bar:
        for split in splits:
            logits = np.zeros((len(data.splits[split]), label_count(model)), dtype=np.float32)
            rounds = _noting(predict(model, data.splits[split], job.evaluation.batch, runtime, bar.advance), logits)
            labels = data.splits[split].labels
            if labels is None:
                for _ in rounds:
                    pass
            else:
                scores[split] = gather_scores(rounds, data, split, job, runtime)
                if data.details["classes"]:
                    details[split] = classify(decide(logits, data), labels, data.details["classes"])
            files[split] = runtime.on_first(partial(_write, store, f"{run_key}/predictions/{split}.jsonl", data, split, logits))
    result = FinetuneEvaluation(
        format=FORMAT, fingerprint=name, key=key, checkpoint=f"{run_key}/{FINAL}", encoded=encoded,
        scores=scores, classification=details, predictions={record.name: record.sha256 for record in files.values()},
    )  # fmt: skip
    runtime.on_first(lambda: store.write_json(key, result.model_dump(exclude={"reused"})))
    return result


def classify(predicted: NDArray[Any], labels: NDArray[Any], names: list[str]) -> Classification:
    """The confusion matrix (rows are labels, columns predictions) and each class's precision, recall, F1 and support."""
    classes = list(range(len(names)))
    figures = precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0.0)
    return Classification(
        confusion=confusion_matrix(labels, predicted, labels=classes).tolist(),
        classes=[
            ClassScore(name=name, precision=float(p), recall=float(r), f1=float(f), support=int(s))
            for name, p, r, f, s in zip(names, *figures, strict=True)
        ],
    )


def _noting(rounds: Iterator[Predictions], logits: NDArray[np.float32]) -> Iterator[Predictions]:
    """Pass rounds on, and put their logits where they belong."""
    for round_ in rounds:
        logits[round_.examples] = round_.logits
        yield round_


def _write(store: Store, key: str, data: EncodedSet, split: str, logits: NDArray[np.float32]) -> FileRecord:
    """Write a split's predictions, one JSON object a line, in the split's order."""
    classes: list[str] | None = data.details["classes"]
    decided = decide(logits, data)
    chances = probabilities(logits) if classes else None
    with store.writing(key) as path:
        with open(path, "w", encoding="utf-8") as file:
            for place, name in enumerate(data.splits[split].ids):
                line: dict[str, Any] = {"id": name}
                if classes and chances is not None:
                    line["prediction"] = classes[int(decided[place])]
                    line["probabilities"] = {c: round(float(p), 6) for c, p in zip(classes, chances[place], strict=True)}
                else:
                    line["prediction"] = float(decided[place])
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return digest_file(path, key)
