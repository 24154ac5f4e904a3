"""Classifiers with low-rank adapters: their head is trained whole, and all that follows training takes both forms."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForMaskedLM,
)

from tests.support import cpu_runtime, only_run
from tests.trainer.labelled_data import bert_folder
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.labelled_words import CLASSES, word_job, write_words
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import FinetuneJob, PredictJob
from trainer.kinds.kind import kind_of
from trainer.kinds.labelled.predict import predict_texts
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.records.steps import here
from trainer.registry.promotion import promote
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.identity import data_keys

LORA: dict[str, Any] = {"rank": 2, "dropout": 0.1}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that was pretrained on masks: it has neither a head nor a pooler for texts; not to be written to."""
    folder = bert_folder(tmp_path_factory.mktemp("models") / "bert")
    BertForMaskedLM(BertConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def tune(
    pairs: Path,
    store: Path,
    bert: Path,
    lora: dict[str, Any],
    make: Callable[..., FinetuneJob] = finetune_job,
    **changes: Any,
) -> str:
    cpu_runtime()
    job = make(
        pairs,
        store,
        bert,
        model__lora=lora,
        training__max_steps=6,
        training__epochs=None,
        training__save_every=3,
        **changes,
    )
    kind = kind_of(job)
    kind.preflight(job, silent())
    data = kind.prepare(job, here(silent()))
    run = train(job, silent(), data).key
    evaluate_run(job, run, silent(), data_keys(data))
    return run


@pytest.fixture(scope="module")
def adapted(pairs: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with a run whose final model is an adapter; not to be written to."""
    store = tmp_path_factory.mktemp("adapted") / "store"
    return store, tune(pairs, store, bert, {**LORA, "publish": "adapter"})


def predicted(store: Path, path: str, **data: Any) -> str:
    """The lines that the one run of a store predicts for a file."""
    values = {
        "store": str(store), "model": only_run(store).removeprefix("runs/"), "name": "new", "device": "cpu",
        "data": {"source": "jsonl", "paths": [path], "id_column": "id", **data},
    }  # fmt: skip
    made = predict_texts(validate_job(PredictJob, values, "test"), silent())
    return (store / made.key / "predictions.jsonl").read_text()


def test_the_head_and_a_new_pooler_are_saved_with_the_adapter(adapted: tuple[Path, str]) -> None:
    folder = adapted[0] / adapted[1] / "checkpoints" / "step-00000006"
    names = {name.removeprefix("base_model.model.") for name in load_file(folder / "adapter_model.safetensors")}
    assert {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight"} <= names
    assert all("lora_" in name or name.startswith(("classifier.", "bert.pooler.")) for name in names)
    assert json.loads((folder / "adapter_config.json").read_text())["modules_to_save"] == ["bert.pooler", "classifier"]


def test_an_adapter_is_measured_and_predicts_as_the_merged_model_does(
    pairs: Path, bert: Path, adapted: tuple[Path, str], tmp_path: Path
) -> None:
    store, run = adapted
    merged = tune(pairs, tmp_path / "store", bert, LORA)
    one, other = (json.loads((each / "eval.json").read_text()) for each in (store / run, tmp_path / "store" / merged))
    assert one["groups"] == other["groups"]
    assert (
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "store" / merged / "final").config.num_labels == 2
    )
    told = [predicted(each, f"{pairs}/test.jsonl", max_length=32) for each in (store, tmp_path / "store")]
    assert told[0] == told[1]


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own, in the card
def test_an_adapter_that_labels_words_is_measured_and_predicts_as_the_merged_model_does(
    bert: Path, tmp_path: Path
) -> None:
    words = write_words(tmp_path / "words", 60)
    stores = {"adapter": tmp_path / "adapter", "merged": tmp_path / "merged"}
    runs = {
        publish: store / tune(words, store, bert, {**LORA, "publish": publish}, word_job, training__learning_rate=5e-3)
        for publish, store in stores.items()
    }
    one, other = (json.loads((run / "eval.json").read_text()) for run in runs.values())
    assert one["groups"] == other["groups"]
    saved = load_file(runs["adapter"] / "final" / "adapter_model.safetensors")
    names = {name.removeprefix("base_model.model.") for name in saved}
    assert {"classifier.weight", "classifier.bias"} <= names
    assert not any("pooler" in name for name in names), "a model that labels words has none"
    assert AutoModelForTokenClassification.from_pretrained(runs["merged"] / "final").config.num_labels == len(CLASSES)
    told = [predicted(store, f"{words}/validation.jsonl") for store in stores.values()]
    assert told[0] == told[1] == (runs["merged"] / "predictions" / "validation.jsonl").read_text()
    make_report(Store(str(stores["adapter"])), only_run(stores["adapter"]))
    card = (runs["adapter"] / "final" / "README.md").read_text()
    program = card.split("```python\n")[1].split("```")[0].replace('"runs/', f'"{stores["adapter"]}/runs/')
    said: list[list[tuple[str, str]]] = []
    exec(compile(program, "card", "exec"), {"print": said.append})
    assert [word for word, _ in said[0]] == ["The", "words", "of", "the", "text", "."]


def test_an_adapter_becomes_champion_and_is_measured_under_that_name(adapted: tuple[Path, str]) -> None:
    store, run = Store(str(adapted[0])), adapted[1]
    promote(store, "judge", run, {"loss": 0.7}, "tried")
    cpu_runtime()
    found = evaluate_checkpoint(EvaluateJob(store=store.url, checkpoint="models/judge/champion"), silent())
    assert found.reused


def test_a_further_job_does_not_begin_with_an_adapter(pairs: Path, adapted: tuple[Path, str]) -> None:
    job = finetune_job(pairs, *adapted)
    with pytest.raises(ConfigError, match=r"is an adapter without its base model's weights"):
        kind_of(job).preflight(job, silent())


def test_the_head_is_no_target(pairs: Path, bert: Path, tmp_path: Path) -> None:
    job = finetune_job(pairs, tmp_path, bert, model__lora={"targets": ["classifier"]})
    with pytest.raises(ConfigError, match=r"classifier is in the head, which is trained fully; remove 'classifier'"):
        kind_of(job).preflight(job, silent())
