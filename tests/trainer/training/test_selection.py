"""Which evaluation settings name a run: those that decide which checkpoint is best, where that decides what training
gives.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support import small_job
from tests.trainer.chats import chat_job
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.made import encode, encode_conversations
from tests.trainer.training.test_runs import name_of
from trainer.common.progress import silent
from trainer.config.evaluation import HarnessConfig
from trainer.kinds.kind import identify_run
from trainer.records.plans import PreparedData
from trainer.store.manifest import ArtifactRef

BEST: list[dict[str, Any]] = [
    {"training__final": "best"},
    {"training__final": "last", "training__early_stopping": 1, "training__evaluate_every": 2},
]
"""Settings with which it matters which checkpoint is best."""

DECIDES = {"during_training", "best_by", "greater_is_better"}
"""Settings that decide which checkpoint is best."""

TOLD: dict[str, Any] = {
    "batch": 3, "max_windows": 2, "prompts": ["class "], "new_tokens": 7, "temperature": 0.1, "top_k": 3, "seed": 9,
    "harness": {"tasks": ["own"]},
}  # fmt: skip
"""Settings of a language model's evaluation that decide what is told of the finished model alone."""


@pytest.mark.parametrize("selecting", BEST)
@pytest.mark.parametrize("setting", TOLD)
def test_what_is_told_of_a_finished_model_does_not_name_its_run(
    raw: Path, data: PreparedData, selecting: dict[str, Any], setting: str
) -> None:
    before, after = (
        identify_run(small_job(raw, "anywhere", **selecting, **changes), data)
        for changes in ({}, {f"evaluation__{setting}": TOLD[setting]})
    )
    assert after.key == before.key and after.identity == before.identity


@pytest.mark.parametrize("selecting", BEST)
@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation__during_training": 2}, {"training__evaluate_every": 3},
        {"evaluation__best_by": "bits_per_byte"}, {"evaluation__greater_is_better": True},
    ],
)  # fmt: skip
def test_what_is_measured_in_training_does_where_the_best_checkpoint_counts(
    raw: Path, data: PreparedData, selecting: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert name_of(raw, data, **{**selecting, **changes}) != name_of(raw, data, **selecting)
    assert name_of(raw, data, **changes) == name_of(raw, data)


def test_the_tests_above_know_each_setting(raw: Path) -> None:
    assert {*TOLD, *DECIDES} == {*type(small_job(raw, "anywhere").evaluation).model_fields}


@pytest.fixture(scope="module")
def encoded(pairs: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArtifactRef]:
    store = tmp_path_factory.mktemp("encoded")
    return store, encode(finetune_job(pairs, store, pretrained), silent())


METRIC = """
import evaluate
class Same(evaluate.Metric):
    def _compute(self, predictions, references):
        return {"same": 1.0}
"""


@pytest.mark.parametrize("selecting", BEST)
@pytest.mark.parametrize(
    ("best_by", "changes", "counts"),
    [
        ("loss", {"batch": 3}, False),
        ("loss", {"metrics": ["accuracy"]}, False),
        ("loss", {"positive_class": "other"}, False),
        ("loss", {"greater_is_better": False}, False),
        ("loss", {"greater_is_better": True}, True),
        ("loss", {"best_by": "f1"}, True),
        ("f1", {"batch": 3}, False),
        ("f1", {"metrics": ["f1", "accuracy", "precision"]}, False),
        ("f1", {"metrics": ["f1"]}, False),
        ("f1", {"positive_class": "other"}, True),
        ("accuracy", {"positive_class": "other"}, False),
        ("accuracy", {"metrics": ["accuracy"]}, False),
        ("same", {"metrics": ["accuracy", "f1", "SAME", "recall"]}, True),
        ("same", {"positive_class": "other"}, False),
    ],
)
def test_of_a_fine_tuned_model_the_figure_that_decides_counts_and_what_gives_it(
    pairs: Path, pretrained: Path, encoded: tuple[Path, ArtifactRef], tmp_path: Path, selecting: dict[str, Any],
    best_by: str, changes: dict[str, Any], counts: bool,
) -> None:  # fmt: skip
    store, ref = encoded
    own = tmp_path / "same.py"
    own.write_text(METRIC)

    def name(**changes: Any) -> str:
        settings = {"best_by": best_by, "metrics": ["accuracy", "f1", "SAME"], **changes}
        settings["metrics"] = [str(own) if each == "SAME" else each for each in settings["metrics"]]
        named = {f"evaluation__{key}": value for key, value in settings.items()}
        return identify_run(finetune_job(pairs, store, pretrained, **selecting, **named), ref).key

    assert (name(**changes) != name()) is counts


def test_a_metrics_file_counts_where_it_may_give_the_figure(
    pairs: Path, pretrained: Path, encoded: tuple[Path, ArtifactRef], tmp_path: Path
) -> None:
    store, ref = encoded
    own = tmp_path / "same.py"

    def name(best_by: str, text: str) -> str:
        own.write_text(text)
        changes = {"evaluation__metrics": [str(own), "f1"], "evaluation__best_by": best_by, "training__final": "best"}
        return identify_run(finetune_job(pairs, store, pretrained, **changes), ref).key

    assert name("same", METRIC) != name("same", METRIC + "# another\n")
    assert name("f1", METRIC) == name("f1", METRIC + "# another\n")


def test_of_conversations_nothing_but_how_often_it_is_measured_counts(chats: Path, llama: Path, tmp_path: Path) -> None:
    ref = encode_conversations(chat_job(chats, tmp_path, llama), silent())

    def name(**changes: Any) -> str:
        return identify_run(chat_job(chats, tmp_path, llama, training__final="best", **changes), ref).key

    told = {"evaluation__batch": 3, "evaluation__samples": 1, "evaluation__new_tokens": 5}
    assert name(**told, evaluation__harness=HarnessConfig(tasks=["own"]).model_dump()) == name()
    assert name(training__evaluate_every=3) != name()
