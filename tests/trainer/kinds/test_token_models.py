"""Models that label words: how large they are said to be, read by rows, and asked by several ranks."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification

from tests.processes import start_ranks
from tests.support import read_rows, write_config
from tests.trainer.labelled_data import bert_folder
from tests.trainer.labelled_words import CLASSES, word_job
from tests.trainer.made import encode
from trainer.common.progress import silent
from trainer.data.encoded import encoded_details
from trainer.kinds.labelled import preflight
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.models.classifiers import load_classifier, outline_classifier
from trainer.store.storage import Store


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


def test_the_look_measures_a_model_that_labels_words(
    words: Path, tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = word_job(words, tmp_path / "store", tagger)
    parameters = BertForTokenClassification.from_pretrained(tagger).num_parameters()
    assert labelled_preflight(job, silent()).parameters == parameters, "without the pooler of one that classifies texts"
    monkeypatch.setattr(preflight, "library_bytes", lambda: 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    changes = {"training__global_batch": 8, "training__processes": None}
    whole, shared = (
        labelled_preflight(
            word_job(words, tmp_path / "store", tagger, **changes, training__sharding=sharding), silent()
        )
        for sharding in ("none", "fsdp")
    )
    assert 4 * parameters <= shared.about_host_bytes < whole.about_host_bytes


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
