"""A label for each word: trained on as a plain loop of `transformers` does, measured as seqeval does, and predicted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
)

from tests.processes import start_ranks
from tests.support import read_rows, records, write_config
from tests.trainer.kinds.test_chat import plain_loop
from tests.trainer.labelled_data import as_jsonl, bert_folder, written
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.labelled_words import CLASSES, word_job
from tests.trainer.made import encode
from trainer.common.errors import ConfigError, RecordError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import FinetuneJob, PredictJob
from trainer.data.encoded import encoded_details
from trainer.data.labelled import look
from trainer.kinds.labelled.predict import predict_texts
from trainer.kinds.labelled.predictions import describe
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.kinds.labelled.workload import Finetuning
from trainer.models.classifiers import load_classifier, outline_classifier
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LENGTH = 24


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT without dropout, whose head is there already: what a plain loop begins with too; not to be written to."""
    folder = bert_folder(tmp_path_factory.mktemp("models") / "bert", **DRY)
    torch.manual_seed(3)
    names = dict(enumerate(CLASSES))
    config = BertConfig.from_pretrained(folder, id2label=names, label2id={name: n for n, name in names.items()})
    BertForTokenClassification(config).save_pretrained(folder)
    return folder


def tagging_job(words: Path, store: Path, model: Path, **changes: Any) -> FinetuneJob:
    return word_job(words, store, model, **{"data__max_length": LENGTH, **changes})


def plain_losses(work: Finetuning, rows: list[dict[str, Any]], model: Path, steps: int) -> list[float]:
    """What a plain loop makes of the same batches, each collated as a whole."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    collate = DataCollatorForTokenClassification(tokenizer)
    learner = AutoModelForTokenClassification.from_pretrained(model).train()
    features = []
    for row in rows:
        inputs = dict(made := tokenizer(row["tokens"], truncation=True, is_split_into_words=True, max_length=LENGTH))
        ids, seen = made.word_ids(), set()
        inputs["labels"] = [
            -100 if word is None or word in seen or seen.add(word) else CLASSES.index(row["ner_tags"][word])
            for word in ids
        ]
        features.append(inputs)
    batches = (collate([features[example] for example in work.order.examples(step)]) for step in range(steps))
    return plain_loop(learner, batches, work.plan.total_steps)


def test_the_losses_are_those_of_a_plain_loop_of_transformers(
    words: Path, bert: Path, tmp_path: Path, runtime: Runtime
) -> None:
    changes = {"training__micro_batch": 2, "training__max_steps": 20, "training__epochs": None}
    job = tagging_job(words, tmp_path / "store", bert, **changes)
    train(job, silent())
    ours = [record["loss"] for record in records(tmp_path / "store", "train")]
    theirs = plain_losses(
        Finetuning(job, Store(job.store), encode(job, silent()), 1), read_rows(words / "train.jsonl"), bert, 20
    )
    assert len(ours) == 20
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] < ours[0]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("changes", [{}, {"class_weights": {"O": 0.25, "B-CODE": 3.0}, "label_smoothing": 0.1}])
def test_the_loss_of_a_global_batch_is_the_mean_over_its_words_however_it_is_divided(
    words: Path, bert: Path, tmp_path: Path, ranks: int, changes: dict[str, Any]
) -> None:
    training = {f"training__{name}": value for name, value in changes.items()}
    job = tagging_job(words, tmp_path / "store", bert, training__global_batch=12, training__micro_batch=2, **training)
    work = Finetuning(job, Store(job.store), encode(job, silent()), ranks)
    model = work.load_model(None).eval()
    objective, batches = work.make_objective(model), [work.read_batch(0, rank) for rank in range(ranks)]
    (targets,) = {batch.targets for batch in batches}
    ours = sum(objective(**inputs) for batch in batches for inputs in batch.micro_batches) / targets
    (whole,) = Finetuning(tagging_job(words, tmp_path / "store", bert, training__global_batch=12), Store(job.store),
                          encode(job, silent()), 1).read_batch(0, 0).micro_batches  # fmt: skip
    labels, inputs = whole["labels"], {name: part for name, part in whole.items() if name not in ("labels", "weights")}
    by_class = torch.tensor([changes.get("class_weights", {}).get(name, 1.0) for name in CLASSES])
    logits = model(**inputs).logits.flatten(0, 1)
    theirs = F.cross_entropy(
        logits,
        labels.flatten(),
        weight=by_class,
        label_smoothing=changes.get("label_smoothing", 0.0),
        ignore_index=-100,
    )
    assert float(ours.detach()) == pytest.approx(theirs.item(), rel=1e-5)


def test_balanced_weights_are_those_of_the_words_that_are_trained_on(words: Path, bert: Path, tmp_path: Path) -> None:
    job = tagging_job(words, tmp_path / "store", bert, training__class_weights="balanced")
    labelled_preflight(job, silent())
    work = Finetuning(job, Store(job.store), encode(job, silent()), 1)
    seen = work._train.labels
    assert 0 < len(seen) < sum(len(row["tokens"]) for row in read_rows(words / "train.jsonl"))
    expected = compute_class_weight("balanced", classes=np.arange(len(CLASSES)), y=seen)
    weights = work.make_objective(work.load_model(None)).class_weights
    assert weights is not None and weights.tolist() == pytest.approx(expected.tolist())
    batch = work.read_batch(0, 0)
    chosen = seen[work._train.rows(work.order.examples(0))]
    assert batch.targets == pytest.approx(float(expected[chosen].sum()))


def test_a_class_of_no_word_that_is_seen_cannot_be_balanced(bert: Path, tmp_path: Path) -> None:
    rows = [
        {"tokens": ["return", "the", "end"], "ner_tags": ["O", "B-CODE", "O"]},
        {"tokens": ["a", "b"], "ner_tags": ["O", "O"]},
    ]
    path = [written(tmp_path / "rows.jsonl", as_jsonl(rows))]
    changes = {"data__train": path, "data__validation": path, "data__test": None, "data__id_column": None}
    job = tagging_job(
        tmp_path, tmp_path / "store", bert, **changes, data__classes=["O", "B-CODE"], data__max_length=3,
        training__class_weights="balanced",
    )  # fmt: skip
    data = encode(job, silent())
    for work in (lambda: Finetuning(job, Store(job.store), data, 1), lambda: labelled_preflight(job, silent())):
        with pytest.raises(ConfigError, match="is balanced, but no training example has the class 'B-CODE'"):
            work()


def test_a_run_is_trained_measured_told_and_predicts(words: Path, bert: Path, tmp_path: Path, runtime: Runtime) -> None:
    job = tagging_job(words, tmp_path / "store", bert, run="tagger", evaluation__best_by="f1", training__final="best",
                      training__epochs=6, training__learning_rate=5e-3, evaluation__batch=7)  # fmt: skip
    assert labelled_preflight(job, silent()).metrics == ["seqeval"]
    run = train(job, silent())
    found = evaluate_run(job, run.key, silent())
    folder = Path(job.store) / run.key
    lines = read_rows(folder / "predictions" / "validation.jsonl")
    rows = read_rows(words / "validation.jsonl")
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    assert [len(line["prediction"]) for line in lines] == [len(row["tokens"]) for row in rows]

    tokenizer = AutoTokenizer.from_pretrained(folder / "final")
    model = AutoModelForTokenClassification.from_pretrained(folder / "final").eval()
    assert model.config.id2label == dict(enumerate(CLASSES))
    told, true, losses = [], [], []
    for row, line in zip(rows, lines, strict=True):
        inputs = tokenizer(
            row["tokens"], is_split_into_words=True, truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        places: dict[int, int] = {}
        for place, word in enumerate(inputs.word_ids()):
            if word is not None:
                places.setdefault(word, place)
        names = [CLASSES[int(logits[places[n]].argmax())] if n in places else None for n in range(len(row["tokens"]))]
        chances = [
            float(logits[places[n]].softmax(-1).max()) if n in places else None for n in range(len(row["tokens"]))
        ]
        assert line["prediction"] == names
        assert line["probabilities"] == pytest.approx(chances, abs=1e-4)
        told.append([name for name in names if name is not None])
        true.append([row["ner_tags"][n] for n in sorted(places)])
        ids = torch.tensor([CLASSES.index(tag) for tag in true[-1]])
        losses += F.cross_entropy(logits[sorted(places.values())], ids, reduction="none").tolist()
    assert any(name is None for line in lines for name in line["prediction"]), "no word was cut off"
    scores = found.groups["validation"].figures
    assert set(found.groups) == {"validation"}, "the test split has no labels"
    assert scores == pytest.approx({
        "loss": sum(losses) / len(losses), "precision": precision_score(true, told), "recall": recall_score(true, told),
        "f1": f1_score(true, told), "accuracy": accuracy_score(true, told),
    }, abs=1e-5)  # fmt: skip
    assert 0.3 < scores["f1"] < 1, "figures that would be told from others"
    report = classification_report(true, told, output_dict=True)
    for each in found.classification["validation"].classes:
        own = report[each.name]
        assert (each.precision, each.recall, each.f1, each.support) == pytest.approx(
            (own["precision"], own["recall"], own["f1-score"], own["support"]))  # fmt: skip
    assert [each.name for each in found.classification["validation"].classes] == ["CODE", "NAME"]

    make_report(Store(job.store), run.key)
    page, card = ((folder / name).read_text() for name in ("report.html", "final/README.md"))
    assert "Entities: validation" in page and "by their label" not in page
    assert all(told in page for told in ("Words of each class", "Words not seen", "nats a word"))
    assert "pipeline_tag: token-classification" in card and "AutoModelForTokenClassification" in card
    program = card.split("```python\n")[1].split("```")[0].replace(f"{run.key}/final", str(folder / "final"))
    exec(compile(program, "card", "exec"), {"print": lambda pairs: told.append(pairs)})
    assert [word for word, _ in told.pop()] == ["The", "words", "of", "the", "text", "."]

    texts = finetune_job(words, job.store, bert, run="texts", data__text_columns=["id"], data__max_length=LENGTH,
                         **texts_of(words, tmp_path))  # fmt: skip
    other = train(texts, silent()).key
    with pytest.raises(ConfigError, match=r"texts/final predicts one label per text, but .* one label per word"):
        evaluate_run(job, run.key, silent(), other=other)
    with pytest.raises(ConfigError, match=r"tagger/final predicts one label per word, but .* one label per text"):
        evaluate_run(texts, other, silent(), other=run.key)

    values = {"source": "jsonl", "paths": [str(words / "validation.jsonl")], "id_column": "id"}
    made = predict_texts(PredictJob.model_validate({"store": job.store, "model": "tagger", "data": values}), silent())
    again = (Path(job.store) / made.key / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in again] == [line["prediction"] for line in lines]
    assert made.predicted == {name: sum(each.count(name) for each in told) for name in CLASSES}
    everything, unseen = (sum(map(len, each)) for each in ([row["tokens"] for row in rows], told))
    assert (made.words, made.words - made.unseen_words) == (everything, unseen)
    assert f"; {everything - unseen} words of {everything} got no label" in describe(Store(job.store), made)
    values = {"source": "jsonl", "paths": [str(tmp_path / "texts.jsonl")]}
    (tmp_path / "texts.jsonl").write_text(json.dumps({"tokens": "not in words"}) + "\n")
    with pytest.raises(RecordError, match="line 1: column 'tokens' holds str, not a list of words"):
        predict_texts(PredictJob.model_validate({"store": job.store, "model": "tagger", "data": values}), silent())
    values = {"source": "csv", "paths": [written(tmp_path / "texts.csv", "tokens\nwords\n")]}
    with pytest.raises(
        ConfigError, match=r"tagger labels words .* data.source is csv, which has no lists: use jsonl or parquet"
    ):
        predict_texts(PredictJob.model_validate({"store": job.store, "model": "tagger", "data": values}), silent())
    assert evaluate_checkpoint(EvaluateJob(store=job.store, checkpoint="tagger"), silent()).reused
    another = evaluate_checkpoint(EvaluateJob(store=job.store, checkpoint=f"{run.key}/checkpoint-last"), silent())
    assert set(another.figures()) == set(scores)


def texts_of(words: Path, folder: Path) -> dict[str, Any]:
    """Files that tell of the words' ids alone, a text each, whether they are even."""
    files: dict[str, Any] = {"data__test": None, "data__id_column": None}
    for split in ("train", "validation"):
        rows = [
            {"id": row["id"], "label": ["other", "match"][n % 2]}
            for n, row in enumerate(read_rows(words / f"{split}.jsonl"))
        ]
        files[f"data__{split}"] = [written(folder / f"texts-{split}.jsonl", as_jsonl(rows))]
    return files


def test_labels_that_mark_no_entities_are_measured_by_words(
    words: Path, bert: Path, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for split in ("train", "validation"):
        rows = [
            {"tokens": r["tokens"], "ner_tags": [t.rpartition("-")[2] for t in r["ner_tags"]]}
            for r in read_rows(words / f"{split}.jsonl")
        ]
        files[f"data__{split}"] = [written(tmp_path / f"{split}.jsonl", as_jsonl(rows))]
    changes = {**files, "data__test": None, "data__id_column": None, "data__classes": None, "training__epochs": 1}
    job = tagging_job(words, tmp_path / "store", bert, **changes, evaluation__best_by="accuracy")
    assert labelled_preflight(job, silent()).metrics == ["word_accuracy"]
    monkeypatch.setattr(look, "WHOLE_BYTES", 0)
    assert labelled_preflight(job, silent()).metrics == ["word_accuracy"], "where only the first rows are looked at"
    with pytest.raises(
        ConfigError, match=r"metric 'seqeval' needs entity labels .*, but the labels are CODE, NAME, O; use word_acc"
    ):
        labelled_preflight(
            tagging_job(words, tmp_path / "store", bert, **changes, evaluation__metrics=["seqeval"]), silent()
        )
    with pytest.raises(
        ConfigError, match=r"best_by is the metric 'word_accuracy', not one of its figures, .* are loss, accuracy"
    ):
        labelled_preflight(
            tagging_job(words, tmp_path / "store", bert, **changes, evaluation__best_by="word_accuracy"), silent()
        )
    run = train(job, silent())
    found = evaluate_run(job, run.key, silent())
    assert set(found.groups["validation"].figures) == {"loss", "accuracy"}
    confusion = torch.tensor(found.classification["validation"].confusion)
    assert found.groups["validation"].figures["accuracy"] == pytest.approx(float(confusion.trace() / confusion.sum()))
    make_report(Store(job.store), run.key)
    assert (
        "Words by their label (rows) and prediction (columns)."
        in (Path(job.store) / run.key / "report.html").read_text()
    )


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a head for words, to which they are not all alike; not to be written to."""
    folder = bert_folder(tmp_path_factory.mktemp("models") / "tagger")
    names = dict(enumerate(CLASSES))
    torch.manual_seed(5)
    model = BertForTokenClassification(
        BertConfig.from_pretrained(folder, id2label=names, label2id={n: i for i, n in names.items()})
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    return folder


def test_the_look_measures_a_model_that_labels_words(words: Path, tagger: Path, tmp_path: Path) -> None:
    found = labelled_preflight(word_job(words, tmp_path / "store", tagger), silent())
    parameters = BertForTokenClassification.from_pretrained(tagger).num_parameters()
    assert found.parameters == parameters, "without the pooler of one that classifies texts"


def test_the_rows_that_ranks_read_make_the_whole_model(words: Path, tagger: Path, tmp_path: Path) -> None:
    job = word_job(words, tmp_path / "store", tagger)
    store = Store(job.store)
    details = encoded_details(store, encode(job, silent()).key)
    whole = load_classifier(store, job, details, tagger).state_dict()
    halves = [
        outline_classifier(job, details, tagger, lambda rows, rank=rank: (rank * rows // 2, (rank + 1) * rows // 2))
        for rank in range(2)
    ]
    parameters = dict(halves[0].model.named_parameters()) if halves[0] else {}
    assert parameters["classifier.weight"].shape == (len(CLASSES), 16) and not any(
        "pooler" in name for name in parameters
    )
    assert set(parameters) == set(whole)
    for name, expected in whole.items():
        torch.testing.assert_close(torch.cat([half.read(name) for half in halves if half]), expected, rtol=0, atol=0)


@pytest.mark.deep
@pytest.mark.slow
def test_two_ranks_label_words_as_one_does(words: Path, tagger: Path, tmp_path: Path) -> None:
    found = []
    for ranks in (1, 2):
        store = tmp_path / str(ranks)
        data = {
            "source": "jsonl", "paths": [f"{words}/train.jsonl"], "text_columns": ["tokens"], "id_column": "id",
            "max_length": 16,
        }  # fmt: skip
        config = write_config(
            tmp_path / f"{ranks}.yaml", {"store": str(store), "model": str(tagger), "batch": 5, "data": data}
        )
        ended = [rank.wait() for rank in start_ranks(tmp_path / f"said-{ranks}", ranks, "trainer.predict", config)]
        assert [each.status for each in ended] == [0] * ranks, ended
        assert "got no label" in ended[0].stdout
        (path,) = store.glob("predictions/*/predictions.jsonl")
        found.append(read_rows(path))
    assert len(found[0]) == len((words / "train.jsonl").read_text().splitlines())
    for one, two in zip(*found, strict=True):
        assert (one["id"], one["prediction"]) == (two["id"], two["prediction"])
        pairs = list(zip(one["probabilities"], two["probabilities"], strict=True))
        assert all(other is None if each is None else each == pytest.approx(other, abs=1e-5) for each, other in pairs)
    told = {each for line in found[0] for each in line["prediction"]}
    assert None in told and len(told) > 2, "words are cut off, and are not all alike to it"
