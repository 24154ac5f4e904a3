"""Runs of every kind, killed and continued, on one rank and on two, end with the bytes of one that was not."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.processes import finish, start_trainers
from tests.support import final_bytes, only_run, records, steps_recorded
from tests.tiny_models import tiny_config
from tests.trainer.adapted_runs import LORA, lora_values, write_base
from tests.trainer.small_jobs import (
    IN_TURN,
    OF_EACH_KIND,
    Ask,
    Finished,
    Job,
    chatting,
    classes,
    labels_of_words,
    lay_out,
    preferring,
    pretraining,
)
from trainer.records.plans import PreparedData

pytestmark = [pytest.mark.deep, pytest.mark.slow]

SHORT = {"training__max_steps": 24, "training__micro_batch": 2, "training__save_every": 1}
SELDOM = {"training__evaluate_every": 5, "training__save_every": 3}


def adapting(ask: Ask, store: Path) -> dict[str, Any]:
    changes = lora_values(ask("base"), {**LORA, "dropout": 0.1}, model__config=None)
    return pretraining(**{**changes, **SHORT})(ask, store)


JOBS: dict[str, Job] = {
    **OF_EACH_KIND,
    "adapters": adapting,
    "muon": pretraining(**SHORT, training__optimizer="muon"),
    "masked": pretraining(
        **SHORT, training__objective="masked", model__config=tiny_config("bert"), evaluation__prompts=[],
        data__tokenizer={"vocab_size": 384, "mask_token": "<mask>"},
    ),
    "documents": pretraining(**SHORT, training__document_mask=True),
    "packed": pretraining(**SHORT, training__packing="best_fit"),
    "best and early stopping": classes(
        **SELDOM, training__early_stopping=3, training__final="best", training__learning_rate=5e-2
    ),
    "adafactor": classes(**SELDOM, training__early_stopping=4, training__optimizer="adafactor"),
    "an optimizer without state": classes(**SELDOM, training__optimizer="sgd", training__beta1=0.0),
    "parameters that the loss does not reach": classes("xlnet", **SELDOM),
    "quantised": chatting(**IN_TURN, model__lora=LORA, model__quantize="nf4"),
    "divided preferences": preferring(**IN_TURN, training__sharding="fsdp"),
    "words": labels_of_words(**SELDOM, training__micro_batch=2),
    "words with adapters": labels_of_words(**SELDOM, training__micro_batch=2, model__lora={"rank": 2, "dropout": 0.1}),
}  # fmt: skip
"""A small job of each kind, and of what changes what a kind keeps in its checkpoints."""

ON_ONE = [
    *OF_EACH_KIND, "adapters", "masked", "documents", "best and early stopping", "an optimizer without state",
    "quantised", "words", "words with adapters",
]  # fmt: skip
ON_TWO = [
    *OF_EACH_KIND, "adapters", "muon", "masked", "documents", "packed", "adafactor",
    "parameters that the loss does not reach", "quantised", "divided preferences", "words",
]  # fmt: skip
KILLED_AT = {"fine-tuning": (9, 33), "instruction tuning": (3, 9), "preference tuning": (3, 9)}
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


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [*((kind, ranks) for ranks, kinds in ((1, ON_ONE), (2, ON_TWO)) for kind in kinds)],
)
def test_a_killed_run_ends_with_the_same_bytes(
    kind: str, ranks: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole, killed = whole_and_killed(JOBS[kind], request.getfixturevalue, tmp_path, KILLED_AT.get(kind, (8,)), ranks)
    assert final_bytes(whole) == final_bytes(killed)
    assert course(whole) == course(killed)
    assert measured(whole) == measured(killed)


def whole_and_killed(job: Job, ask: Ask, folder: Path, steps: tuple[int, ...], ranks: int = 1) -> tuple[Path, Path]:
    """The stores of a job that went from its first step to its last at once, and of one that was killed at steps."""
    folders = [folder / name for name in ("whole", "killed")]
    configs = [lay_out(job, ask, each) for each in folders]
    whole, killed = (each / "store" for each in folders)
    finish(folder / "said-whole", configs[0], ranks)
    for step in steps:
        first, *others = start_trainers(folder / f"said-{step}", configs[1], ranks)
        ended = first.send_when(signal.SIGKILL, lambda step=step: steps_recorded(killed) >= step)
        assert ended.status == -signal.SIGKILL
        for other in others:
            other.send(signal.SIGKILL)
            other.wait()
    assert "continuing from" in finish(folder / "said-last", configs[1], ranks)[0].stderr
    assert only_run(whole) == only_run(killed)
    return whole, killed


STAGES: dict[str, Callable[[Path], bool]] = {
    "before training": lambda store: any(store.glob(".staging/*")),
    "evaluation": lambda store: any(store.glob("runs/*/final/manifest.json")),
}
"""Stages in which a run is killed, as its store shows them."""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_a_run_that_is_killed_in_another_stage_ends_with_the_same_bytes(
    kind: str, stage: str, tmp_path: Path, request: pytest.FixtureRequest, ran: Callable[[str], Finished]
) -> None:
    config, whole, killed = (
        lay_out(OF_EACH_KIND[kind], request.getfixturevalue, tmp_path),
        ran(kind),
        tmp_path / "store",
    )
    (running,) = start_trainers(tmp_path / "said-killed", config)
    ended = running.send_when(signal.SIGKILL, lambda: STAGES[stage](killed))
    assert ended.status == -signal.SIGKILL and not any(killed.glob("runs/*/eval.json"))
    finish(tmp_path / "said", config)
    assert only_run(killed) == whole.run
    assert final_bytes(killed) == final_bytes(whole.store)
    assert course(killed) == course(whole.store) and measured(killed) == measured(whole.store)


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
