"""Runs of every kind, killed and continued, on one rank and on two, end with the bytes of one that was not."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.processes import start_trainers
from tests.support import SMALL_MODEL, final_bytes, only_run, records, small_values, steps_recorded, write_config
from tests.trainer.adapted_runs import LORA, lora_values, write_base
from tests.trainer.chats import chat_model, chat_values, write_chats
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.labelled_words import word_values, write_words
from trainer.records.plans import PreparedData

pytestmark = [pytest.mark.deep, pytest.mark.slow]

Ask = Callable[[str], Any]
Job = Callable[[Ask, Path], dict[str, Any]]
"""The values of a small job with a store, from fixtures that it asks for by name."""

BERT = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32,
}  # fmt: skip


def pretraining(**changes: Any) -> Job:
    often = {"training__save_every": 1, "training__max_steps": 24, "training__micro_batch": 2}
    return lambda ask, store: small_values(ask("raw"), store, **{"model__config": SMALL_MODEL, **changes, **often})


def adapting(ask: Ask, store: Path) -> dict[str, Any]:
    return pretraining(**lora_values(ask("base"), {**LORA, "dropout": 0.1}), model__config=None)(ask, store)


def classes(model: str = "pretrained", **changes: Any) -> Job:
    often = {"training__evaluate_every": 5, "training__save_every": 3}
    return lambda ask, store: finetune_values(ask("pairs"), store, ask(model), **{**often, **changes})


def labels_of_words(**changes: Any) -> Job:
    often = {"training__evaluate_every": 5, "training__save_every": 3, "training__micro_batch": 2}
    return lambda ask, store: word_values(ask("words"), store, ask("pretrained"), **{**often, **changes})


def chatting(ask: Ask, store: Path) -> dict[str, Any]:
    often = {"training__save_every": 1, "training__micro_batch": 1, "training__global_batch": 2}
    return chat_values(ask("chats"), store, ask("llama"), **often)


JOBS: dict[str, Job] = {
    "adapters": adapting,
    "muon": pretraining(training__optimizer="muon"),
    "masked": pretraining(
        training__objective="masked", model__config=BERT, evaluation__prompts=[],
        data__tokenizer={"vocab_size": 384, "mask_token": "<mask>"},
    ),
    "documents": pretraining(training__document_mask=True),
    "packed": pretraining(training__packing="best_fit"),
    "classes": classes(training__save_every=1, training__micro_batch=3, training__global_batch=9),
    "best and early stopping": classes(
        training__early_stopping=3, training__final="best", training__learning_rate=5e-2
    ),
    "adafactor": classes(training__early_stopping=4, training__optimizer="adafactor"),
    "an optimizer without state": classes(training__optimizer="sgd", training__beta1=0.0),
    "parameters that the loss does not reach": classes("xlnet"),
    "words": labels_of_words(),
    "words with adapters": labels_of_words(model__lora={"rank": 2, "dropout": 0.1}),
    "chats": chatting,
}  # fmt: skip
"""A small job of each kind, and of what changes what a kind keeps in its checkpoints."""

ON_ONE = [
    "adapters", "masked", "documents", "classes", "best and early stopping", "an optimizer without state", "words",
    "words with adapters", "chats",
]  # fmt: skip
ON_TWO = [
    "adapters", "muon", "masked", "documents", "packed", "adafactor", "parameters that the loss does not reach",
    "words", "chats",
]  # fmt: skip
KILLED_AT = {"classes": (9, 33), "chats": (3, 9)}
"""Steps at which a run is killed; others are once, which falls between checkpoints and evaluations of some."""


@pytest.fixture(scope="session")
def base(prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("models") / "base", *prepared)


@pytest.fixture(scope="session")
def xlnet(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of another family, with the tokenizer of the pretrained one."""
    folder = tmp_path_factory.mktemp("models")
    for path in pretrained.iterdir():
        if path.name.startswith(("tokenizer", "special")):
            shutil.copy(path, folder)
    vocab_size = json.loads((pretrained / "config.json").read_text())["vocab_size"]
    config = AutoConfig.for_model("xlnet", vocab_size=vocab_size, d_model=16, n_layer=1, n_head=2, d_inner=32)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chats(tmp_path_factory.mktemp("chats"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [*((kind, ranks) for ranks, kinds in ((1, ON_ONE), (2, ON_TWO)) for kind in kinds)],
)
def test_a_killed_run_ends_with_the_same_bytes(
    kind: str, ranks: int, prepared: tuple[Path, PreparedData], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole, killed = stores = [tmp_path / name for name in ("whole", "killed")]
    values = [JOBS[kind](request.getfixturevalue, store) for store in stores]
    configs = [write_config(tmp_path / f"{n}.yaml", each) for n, each in enumerate(values)]
    if "corpora" in values[0]["data"]:
        for store in stores:
            shutil.copytree(prepared[0], store)
    finish(tmp_path / "said-whole", configs[0], ranks)
    for step in KILLED_AT.get(kind, (8,)):
        first, *others = start_trainers(tmp_path / f"said-{step}", configs[1], ranks)
        ended = first.send_when(signal.SIGKILL, lambda step=step: steps_recorded(killed) >= step)
        assert ended.status == -signal.SIGKILL
        for other in others:
            other.send(signal.SIGKILL)
            other.wait()
    assert "continuing from" in finish(tmp_path / "said-last", configs[1], ranks)
    assert only_run(whole) == only_run(killed)
    assert final_bytes(whole) == final_bytes(killed)
    assert course(whole) == course(killed)
    assert measured(whole) == measured(killed)


def finish(said: Path, config: Path, ranks: int) -> str:
    """Train to the end; returns what the first rank tells."""
    ended = [each.wait() for each in start_trainers(said, config, ranks)]
    assert [each.status for each in ended] == [0] * ranks, ended
    return ended[0].stderr


def course(store: Path) -> list[dict[str, Any]]:
    """What is recorded of each step and of each evaluation during training, without times."""
    steps = [
        {name: each[name] for name in ("step", "loss", "learning_rate", "grad_norm")}
        for each in records(store, "train")
    ]
    timed = ("time", "seconds", "attempts")
    evaluations = [
        {name: value for name, value in each.items() if not any(word in name for word in timed)}
        for each in records(store, "evaluation")
    ]
    assert steps
    return [*steps, *evaluations]


def measured(store: Path) -> dict[str, Any]:
    """The figures and samples of the final model, and its predictions, by file."""
    run = store / only_run(store)
    found = json.loads((run / "eval.json").read_text())
    predictions = {path.name: path.read_bytes() for path in run.glob("predictions/*.jsonl")}
    return {"groups": found["groups"], "total": found.get("total"), "samples": found["samples"], **predictions}
