"""Tasks that lm-eval cannot load, told before any training."""

from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from transformers import GPT2Config

from tests.depth import once
from tests.support import small_job
from tests.trainer.evaluation.harness_tasks import asking, write_task, write_yaml
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.evaluation import HarnessConfig
from trainer.evaluation.harness_tasks import load_tasks
from trainer.evaluation.harness_trial import Decides, try_tasks
from trainer.kinds.pretraining.preflight import preflight


def refused(options: HarnessConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        load_tasks(options)
    return str(caught.value)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No word reaches the hub."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.deep
def test_a_name_that_no_task_has_is_told_with_those_like_it(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_yaml(tmp_path / "group.yaml", {"group": "tin", "task": ["tiny"]})
    said = refused(asking(tmp_path, ["tinny"]))
    assert f"no task 'tinny' is below {tmp_path} or in lm-eval; there is tiny, tin" in said


def test_data_of_the_hub_without_a_network_is_refused(tmp_path: Path, offline: None) -> None:
    options = write_task(tmp_path, dataset_path="nobody/questions", dataset_kwargs={})
    assert "task 'tiny' reads 'nobody/questions' of the Hugging Face hub, which cannot be loaded" in refused(options)


def test_data_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    options = write_task(tmp_path)
    (tmp_path / "questions.jsonl").write_text('{"question": [1, 2\n')
    assert f"cannot load the task 'tiny' of {tmp_path}/tiny.yaml: ArrowInvalid: JSON parse error: " in refused(options)


def test_settings_that_lm_eval_does_not_know_are_refused(tmp_path: Path) -> None:
    said = refused(
        write_task(tmp_path, metric_list=[{"metric": "acc", "aggregation": "nothing"}], doc_to_txt="question")
    )
    assert f"lm-eval cannot load the task 'tiny' of {tmp_path / 'tiny.yaml'}" in said and "doc_to_txt" in said


def test_without_lm_eval_one_line_says_what_to_install(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("trainer.evaluation.harness_identity.version", missing)
    told: dict[str, Any] = write_task(tmp_path / "tasks").model_dump()
    with pytest.raises(ConfigError, match=r"not installed: pip install 'headrace\[harness\]'"):
        preflight(small_job(raw, tmp_path / "store", evaluation__harness=told), silent())


GENERATE: dict[str, Any] = {
    "output_type": "generate_until", "doc_to_target": "{{choices[answer]}}", "doc_to_choice": None,
    "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip
"""A task whose answers are written."""


@pytest.mark.parametrize(
    ("changes", "few_shot", "said"),
    [
        (
            {},
            2,
            "2 solved examples are requested before each question of task 'tiny', which has 1; set .*few_shot to 1 or "
            "less",
        ),
        ({"num_fewshot": 2}, None, "2 solved examples are requested before each question of task 'tiny', which has 1"),
        ({"fewshot_split": "test"}, 3, "task 'tiny', which has 2"),  # three but for the question
        (
            {"doc_to_target": "answr"},
            None,
            r"doc_to_target of task 'tiny' is 'answr', which is not a field .*; there is answer",
        ),
        (
            GENERATE,
            None,
            "fails on the task 'tiny': .*answers may have 256 tokens .*but the model has only 128 positions",
        ),
    ],
)
def test_tasks_that_lm_eval_cannot_ask_are_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], few_shot: int | None, said: str
) -> None:
    options = write_task(tmp_path, **changes).model_copy(update={"few_shot": few_shot})
    with pytest.raises(ConfigError, match=said):
        try_tasks(options, GPT2Config(n_positions=128), {})


@pytest.mark.parametrize(("said", "taken"), [(None, False), (False, True), (True, True)])
def test_a_figure_whose_name_does_not_say_which_way_is_better_must_be_told(
    tmp_path: Path, said: bool | None, taken: bool
) -> None:
    write_task(tmp_path, metric_list=[{"metric": "acc", "higher_is_better": False}])
    decide = {"evaluation.best_by": Decides("harness/tiny/acc", said)}
    problem = pytest.raises(ConfigError, match=r"lm-eval says that smaller is better: set evaluation\.greater")
    with nullcontext() if taken else problem:
        try_tasks(asking(tmp_path, ["tiny"]), GPT2Config(n_positions=128), decide)


def test_a_task_that_two_names_ask_is_refused_before_training(tmp_path: Path) -> None:
    write_task(tmp_path, tag="some")
    with pytest.raises(ConfigError, match="'some' and 'tiny' both include 'tiny'; list only one of them"):
        try_tasks(asking(tmp_path, ["tiny", "some"]), GPT2Config(n_positions=128), {})


def test_tasks_that_lm_eval_can_ask_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_task(tmp_path, tag="some", fewshot_split="test", num_fewshot=2)
    try_tasks(
        asking(tmp_path, ["some"]), GPT2Config(n_positions=128), {"promotion.metric": Decides("harness/tiny/acc")}
    )
    write_task(tmp_path, **GENERATE, generation_kwargs={"until": ["\n"], "max_gen_toks": 127})
    try_tasks(
        asking(tmp_path, ["tiny"]),
        GPT2Config(n_positions=128),
        {"promotion.metric": Decides("harness/tiny/exact_match")},
    )
    assert not caplog.messages


@pytest.mark.parametrize("few_shot", [None, 1])
def test_solved_examples_that_may_be_the_question_itself_are_told(
    tmp_path: Path, few_shot: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    options = write_task(tmp_path, fewshot_split=None, num_fewshot=1).model_copy(update={"few_shot": few_shot})
    try_tasks(options, GPT2Config(), {})
    (said,) = caplog.messages
    assert (
        "task 'tiny' has no fewshot_split" in said and "the question itself may be one of them, with its answer" in said
    )


@pytest.mark.parametrize(("tasks", "metric"), once((["tiny"], "harness/tiny/acc_nrom"), (["some"], "harness/some/acc")))
def test_a_gate_on_a_figure_that_no_task_has_is_refused_before_training(
    raw: Path, tmp_path: Path, tasks: list[str], metric: str
) -> None:
    harness = write_task(tmp_path / "tasks", tag="some").model_copy(update={"tasks": tasks}).model_dump()
    gate = {"name": "m", "metric": metric, "threshold": 0}
    with pytest.raises(
        ConfigError, match=rf"promotion.metric is '{metric}', which no requested task has.*; there is harness/tiny/acc"
    ):
        preflight(small_job(raw, tmp_path / "store", evaluation__harness=harness, promotion=gate), silent())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation__harness": {"tasks": []}}, "harness"),
        ({"evaluation__harness": {"tasks": ["a", "a"]}}, "lists a twice"),
        (
            {"evaluation__harness": {"tasks": ["a"]}, "data__validation_fraction": 0},
            "needs data.validation_fraction above 0",
        ),
        (
            {"promotion": {"name": "m", "metric": "harness/a/acc", "threshold": 0}},
            "set the tasks of lm-eval in evaluation.harness",
        ),
        (
            {
                "promotion": {"name": "m", "metric": "harness/b/acc", "threshold": 0},
                "evaluation__harness": {"tasks": ["a"]},
            },
            "harness/a/FIGURE",
        ),
    ],
)
def test_settings_that_ask_for_nothing_are_refused(
    raw: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        small_job(raw, tmp_path / "store", **changes)
