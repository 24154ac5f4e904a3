"""The model card's front matter, as the hub's own library reads it, and where license and language come from."""

import html
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCardData
from huggingface_hub.repocard_data import EvalResult, model_index_to_eval_results
from markdown_it import MarkdownIt

from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.registry.test_finetuning_report import card, finetune, front_matter, hub, page, store
from tests.trainer.report_runs import RUN
from tests.trainer.small_jobs import Finished
from trainer.common.display import markdown_text
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.runs import CardConfig
from trainer.kinds.labelled.preflight import labelled_preflight
from trainer.models.base_card import describe_base, read_card
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.report import make_report
from trainer.store.names import CARD
from trainer.store.storage import Store

__all__ = ["hub", "store"]

BASE = "---\nlicense: mit\nlanguage:\n- en\n- de\n---\n\n# A model\n"


def results_of(matter: dict[str, Any]) -> list[EvalResult]:
    """The figures in the front matter, as the hub's library finds them; the whole goes through it and back."""
    data = ModelCardData(**matter)
    assert yaml.safe_load(data.to_yaml()) == {**matter, "tags": data.tags}
    name, results = model_index_to_eval_results(matter["model-index"])
    assert name == "tiny"
    return results


def note_evaluation(store: Store, **changes: Any) -> None:
    write_sealed(store, f"{RUN}/eval.json", {**(read_sealed(store, f"{RUN}/eval.json") or {}), **changes})


def test_results_are_read_by_the_hubs_library(store: Store) -> None:
    finetune(
        store, ["other", "match"], data={"source": "hub", "path": "nyu-mll/glue", "subset": "mrpc", "train": ["train"]}
    )
    note_evaluation(store, positive={"f1": "match"})
    make_report(store, RUN)
    results = results_of(front_matter(store))
    assert {(each.task_type, each.dataset_type, each.dataset_config) for each in results} == {
        ("text-classification", "nyu-mll/glue", "mrpc")
    }
    assert [(each.dataset_split, each.metric_type, each.metric_name, each.metric_value) for each in results] == [
        (split, figure, label, 0.75)
        for split in ("validation", "test")
        for figure, label in (("accuracy", "accuracy"), ("f1", "f1 of 'match'"))
    ]
    assert front_matter(store)["base_model"] == "bert-base-uncased"
    assert "Missing above: license (set card.license" in card(store)


def test_the_class_that_f1_is_of_is_named_wherever_it_is_shown(store: Store) -> None:
    finetune(store, ["other", "match"])
    note_evaluation(store, positive={"f1": "other"})
    report = make_report(store, RUN)
    for text in (page(store), card(store), report.markdown):
        assert "f1 of &#39;other&#39; 0.7500" in text or "f1 of 'other' 0.7500" in text
    # The tile is of the finished model, which was measured by another class than the curve of training was.
    assert "Validation f1 of &#39;other&#39;" in page(store)
    assert "Validation f1 of &#39;match&#39;" in page(store)
    config = read_sealed(store, f"{RUN}/config.json")
    assert config is not None
    config["job"]["evaluation"]["positive_class"] = "other"  # what a job with another class notes in a finished run
    write_sealed(store, f"{RUN}/config.json", config)
    make_report(store, RUN)
    assert "Validation f1 of &#39;match&#39;" in page(store), "the figures in training are of the class at that time"


def test_license_and_language_are_what_the_job_says_else_what_the_base_models_card_says(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "hub" / CARD).write_text(BASE)
    finetune(store, ["no", "yes"])
    make_report(store, RUN)
    matter = front_matter(store)
    assert (matter["license"], matter["language"]) == ("mit", ["en", "de"])
    assert "Missing above" not in card(store)
    config = read_sealed(store, f"{RUN}/config.json") or {}
    config["job"]["card"] = {"license": "apache-2.0", "language": ["no"]}
    write_sealed(store, f"{RUN}/config.json", config)
    assert not make_report(store, RUN).reused
    matter = front_matter(store)
    assert (matter["license"], matter["language"]) == ("apache-2.0", ["no"])


@pytest.mark.parametrize(
    ("text", "license_", "language"),
    [
        (BASE, "mit", ["en", "de"]),
        ("---\nlicense: apache-2.0\nlanguage: en\n---\n", "apache-2.0", ["en"]),
        ("---\nlicense: [mit]\nlanguage: 7\n---\n", None, []),
        ("---\n- a list\n---\n", None, []),
        ("---\n{ no yaml\n---\n", None, []),
        ("# No front matter\n", None, []),
        ("---\n", None, []),
    ],
)
def test_a_card_that_says_nothing_that_can_be_used_says_nothing(
    text: str, license_: str | None, language: list[str], tmp_path: Path
) -> None:
    assert read_card(tmp_path) == CardConfig()
    (tmp_path / CARD).write_text(text)
    assert read_card(tmp_path) == CardConfig(license=license_, language=language)


@pytest.mark.parametrize(
    "content", ["---\nlicense: mit # f\xfcr alle\n---\n".encode("latin-1"), b"---\n{ no yaml\n---\n"]
)
def test_a_card_that_cannot_be_read_is_told(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_card(tmp_path) == CardConfig() and not caplog.text
    (tmp_path / CARD).write_bytes(content)
    assert read_card(tmp_path) == CardConfig()
    assert f"{tmp_path / CARD} cannot be read (" in caplog.text and "set card.license" in caplog.text


def test_a_base_model_is_named_by_its_name_on_the_hub_or_not_at_all(store: Store, tmp_path: Path) -> None:
    cached = tmp_path / "models--someone--a-model" / "snapshots" / "0123abc"
    cached.mkdir(parents=True)
    assert describe_base("x", cached, "folder")["hub"] == "someone/a-model"
    assert describe_base("bert-base-uncased", tmp_path, "hub")["hub"] == "bert-base-uncased"
    assert describe_base("a-run", cached, "store")["hub"] is None
    (cached / "config.json").write_text("{}")
    finetune(store, ["no", "yes"], model={"pretrained": str(cached)})
    make_report(store, RUN)
    assert front_matter(store)["base_model"] == "someone/a-model"


def test_a_base_model_that_is_a_folder_is_left_out_with_the_reason(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "start"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    finetune(store, ["no", "yes"], model={"pretrained": str(folder)})
    make_report(store, RUN)
    assert "base_model" not in front_matter(store)
    assert f"base model ({folder} is a folder, not a model of the hub)" in card(store).replace("\\_", "_")


def test_a_finished_run_gets_another_card_and_another_class_without_training_again(
    tuned: Finished, tmp_path: Path
) -> None:
    copied = tuned.copy(tmp_path)
    store = Store(str(copied.store))
    job = copied.job(card={"license": "mit", "language": ["code"]}, evaluation__positive_class="other")
    before = evaluate_run(copied.job(), tuned.run, silent())
    run = train(job, silent())
    assert (run.key, run.reused) == (tuned.run, True)
    after = evaluate_run(job, tuned.run, silent())
    assert (before.positive, after.positive) == ({"f1": "match"}, {"f1": "other"})
    scores = {each.name: each.f1 for each in after.classification["validation"].classes}
    assert before.groups["validation"].figures["f1"] == pytest.approx(scores["match"])
    assert after.groups["validation"].figures["f1"] == pytest.approx(scores["other"])
    make_report(store, tuned.run)
    matter = yaml.safe_load(store.read_bytes(f"{tuned.run}/final/{CARD}").decode().split("---\n", 2)[1])
    assert (matter["license"], matter["language"]) == ("mit", ["code"])
    assert json.loads((copied.folder / "eval.json").read_text())["positive"] == {"f1": "other"}


def test_a_positive_class_that_cannot_be_is_refused_before_any_work(
    pairs: Path, pretrained: Path, tmp_path: Path
) -> None:
    job = finetune_job(pairs, tmp_path / "store", pretrained, evaluation__positive_class="maybe")
    message = r"is 'maybe', but the classes are 0 \('other'\) and 1 \('match'\)"
    with pytest.raises(ConfigError, match=f"evaluation.positive_class .*{message}"):
        labelled_preflight(job, silent())


@pytest.mark.parametrize(
    "text",
    [
        "cpu_offload", "learning_rate 0.001, max_grad_norm", "p ~ tokens ^ 0.7", "__init__ and _private_",
        "~~gone~~ ~a~",
        "*a* **b**", "`code` $x$ [a](b) <b>c</b> &amp; a|b \\n", "a_b_ c", "the job's card.license", "größe_ä _é_",
    ],
)  # fmt: skip
def test_a_text_in_a_card_is_shown_as_it_is(text: str) -> None:
    written = markdown_text(text)
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(written)
    assert html.unescape(shown.strip().removeprefix("<p>").removesuffix("</p>")) == text


def test_names_of_settings_stand_in_a_card_without_backslashes(store: Store) -> None:
    finetune(store, ["no", "yes"])
    make_report(store, RUN)
    assert "| weight_decay |" in card(store) and "\\_" not in card(store)
