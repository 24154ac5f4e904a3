"""Newcomers' mistakes in commands and the answers to them, one row of a table each.

All commands run in one process, one after another, in a folder with a job of each kind and wrong files. Rows with
--dry-run start nothing; the others are refused before anything starts.
"""

import random
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import AutoConfig, BertForSequenceClassification

from tests.one_process import run_each
from tests.processes import Ended
from tests.support import small_values, write_config
from tests.trainer.chats import chat_model
from tests.trainer.labelled_data import bert_folder
from tests.trainer.raw_files import docstrings
from trainer.common.errors import EXIT_BAD_INPUT

TEXT = "Some text of two lines,\nand nothing that is not text.\n" * 300
NOISE = random.Random(0)


class Wrong(NamedTuple):
    """A mistake, the typed command, its exit status, and a part of its output."""

    mistake: str
    typed: str
    says: str
    status: int = EXIT_BAD_INPUT


TABLE = [
    # Text that is none, found before anything is published.
    Wrong(
        "random bytes",
        "run job.yaml data.corpora.0.paths=[random.txt] --dry-run",
        "random.txt: byte 0 (0xcd) is not valid UTF-8",
    ),
    Wrong("random bytes, prepared", "prepare job.yaml data.corpora.0.paths=[random.txt]", "is not valid UTF-8"),
    Wrong(
        "UTF-16 without a mark",
        "prepare job.yaml data.corpora.0.paths=[utf16le.txt] --dry-run",
        "NUL, as in UTF-16 without a byte order mark; expected text in UTF-8: convert it",
    ),
    Wrong(
        "a CSV read as JSON Lines",
        "run job.yaml data.corpora.0.paths=[labels.csv] data.corpora.0.format=jsonl --dry-run",
        "by its name it is a CSV file, but it is read as JSON Lines",
    ),
    # Labelled files and conversations.
    Wrong(
        "a labelled CSV with another delimiter",
        "finetune labelled.yaml data.train=[semicolons.csv] --dry-run",
        "semicolons.csv has no column 'text'; it has text;label; its columns seem to be separated by semicolons",
    ),
    Wrong(
        "a wrong delimiter that is given",
        "finetune labelled.yaml data.train=[good.csv] data.delimiter=; --dry-run",
        "its columns seem to be separated by commas: set delimiter to ','",
    ),
    Wrong(
        "a labelled CSV in UTF-16",
        "finetune labelled.yaml data.train=[utf16.txt] --dry-run",
        "utf16.txt is UTF-16, by its byte",
    ),
    Wrong(
        "a CSV for conversations",
        "finetune chat.yaml data.source=csv data.train=[labels.csv] --dry-run",
        "csv cannot hold conversations: write",
    ),
    Wrong(
        "a CSV given as conversations",
        "finetune chat.yaml data.train=[labels.csv] --dry-run",
        "by its name it is a CSV file, but it is read as JSON Lines",
    ),
    # New texts to predict.
    Wrong(
        "an empty text to predict",
        "predict predict.yaml data.paths=[empty.csv] --dry-run",
        "empty.csv: line 3: column 'text' is empty (max_bad_records is 0",
    ),
    Wrong(
        "no classifier to predict with",
        "predict predict.yaml model=llama --dry-run",
        "llama is not a finished classifier",
    ),
    Wrong(
        "texts that are cut",
        "predict predict.yaml data.max_length=4 --dry-run",
        "cut to 4\nwould predict 1 file with bert",
        0,
    ),
    # Words for other settings, and settings in other words.
    Wrong(
        "ranks of the engine",
        "run job.yaml engine.ranks=2",
        "engine.ranks: unknown key; did you mean 'training.processes'?",
    ),
    Wrong(
        "ranks of training", "run job.yaml training.ranks=2", "training.ranks: unknown key; did you mean 'processes'?"
    ),
    Wrong(
        "a setting without its section",
        "run job.yaml learning_rate=1",
        "learning_rate: unknown key; did you mean 'training.learning_rate'?",
    ),
    Wrong(
        "the entry of a list",
        "run job.yaml 'data.corpora[0].format=text'",
        "index of a list entry after a dot: data.corpora.0.format=text",
    ),
    Wrong(
        "an option",
        "run job.yaml --training.max_steps 9",
        "write settings as key=value, without dashes: training.max_steps=9",
    ),
    Wrong(
        "an option with an equals sign",
        "finetune labelled.yaml --learning-rate=1",
        "without dashes: training.learning_rate=1",
    ),
    Wrong(
        "megabytes",
        "run job.yaml data.shards.shard_bytes=256MB",
        "found '256MB'; in bytes that is 256000000 (256 MiB: 268435456)",
    ),
    Wrong(
        "minutes", "run job.yaml 'engine={kind: ray, resize_seconds: 10min}'", "found '10min'; in seconds that is 600"
    ),
    Wrong(
        "minutes for steps",
        "run job.yaml training.max_steps=10min",
        "found '10min'; write a plain number without a unit",
    ),
    Wrong("thousands", "run job.yaml training.max_steps=10k", "found '10k'; written out that is 10000"),
    Wrong("a tenth of the steps", "run job.yaml training.warmup_steps=10%", "expected a whole number, found '10%'"),
    Wrong("a decimal comma", "run job.yaml training.learning_rate=1,5", "expected a number, found '1,5'"),
    Wrong(
        "an option without a value",
        "run job.yaml --training.max_steps --dry-run",
        "write settings as key=value, without dashes: training.max_steps=…",
    ),
    # What may be meant, and probably is not: said before anything starts.
    Wrong(
        "a learning rate of 100",
        "run job.yaml training.learning_rate=100 --dry-run",
        "training.learning_rate is 100, which is high: the loss will probably diverge; with adamw, 1e-05 to 0.01 is "
        "usual",
        0,
    ),
    Wrong(
        "one class only",
        "finetune labelled.yaml data.train=[one.csv] data.classes=[a,b] --dry-run",
        "every example of the train split has the class 'a'",
        0,
    ),
    # Sizes.
    Wrong(
        "a model that is too large",
        "run job.yaml 'model.config={model_type: gpt2, n_layer: 96, n_embd: 12288, n_head: 96, n_positions: 32}' "
        "--dry-run",
        "a model of 173,966,647,296 parameters is too large to train here: its weights and gradients alone take "
        "1.3 TiB",
    ),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with valid jobs, and with files that do not fit them."""
    folder = tmp_path_factory.mktemp("typed")
    values = small_values(folder, "store", data__corpora=[{"name": "text", "paths": ["good.txt"]}])
    write_config(folder / "job.yaml", values)
    bert = bert_folder(folder / "bert")
    BertForSequenceClassification(AutoConfig.from_pretrained(bert)).save_pretrained(bert)
    chat_model(folder / "llama")
    training = {"epochs": 1, "global_batch": 4}
    labelled = {"source": "csv", "train": ["good.csv"], "text_columns": ["text"]}
    write_config(folder / "labelled.yaml", job(labelled, "bert", training=training))
    write_config(
        folder / "chat.yaml", job({"task": "chat", "source": "jsonl", "train": ["x.jsonl"]}, "llama", training=training)
    )
    new = {"source": "csv", "paths": ["good.csv"], "text_columns": ["text"]}
    write_config(folder / "predict.yaml", {"store": "store", "model": "bert", "data": new})
    rows = "".join(
        f"{' '.join(text.split()).replace(',', '').replace(chr(34), '') or '-'},{n % 2}\n"
        for n, text in enumerate(docstrings(40))
    )
    (folder / "store").mkdir()
    (folder / "good.txt").write_text(TEXT)
    (folder / "good.csv").write_text(f"text,label\n{rows}")
    (folder / "semicolons.csv").write_text(f"text,label\n{rows}".replace(",", ";"))
    (folder / "labels.csv").write_text(f"body,label\n{rows}")
    (folder / "one.csv").write_text("text,label\n" + "".join(f"text {n},a\n" for n in range(40)))
    (folder / "empty.csv").write_text("text,label\ngood,1\n,0\n")
    (folder / "random.txt").write_bytes(NOISE.randbytes(50_000))
    (folder / "utf16.txt").write_bytes(TEXT.encode("utf-16"))
    (folder / "utf16le.txt").write_bytes(TEXT.encode("utf-16-le"))
    return folder


def job(data: dict[str, Any], model: str, **sections: Any) -> dict[str, Any]:
    return {"store": "store", "data": data, "model": {"pretrained": model}, **sections}


@pytest.fixture(scope="module")
def said(here: Path, server: dict[str, str]) -> dict[str, Ended]:
    """How the command of each row of the table ended."""
    ended, _ = run_each([shlex.split(wrong.typed) for wrong in TABLE], here, **server)
    return {wrong.mistake: each for wrong, each in zip(TABLE, ended, strict=True)}


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: wrong.mistake)
def test_what_is_typed_wrongly_is_answered_with_what_to_type(wrong: Wrong, said: dict[str, Ended]) -> None:
    status, printed, told = said[wrong.mistake]
    assert wrong.says in told + printed
    assert status == wrong.status
    assert "Traceback" not in told + printed


def test_nothing_was_published_by_any_of_it(here: Path, said: dict[str, Ended]) -> None:
    published = [path for path in (here / "store").rglob("manifest.json")]
    assert published == []
