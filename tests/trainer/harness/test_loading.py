"""Tasks that lm-eval cannot load, told before any training."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest

from tests.support import small_job
from tests.trainer.harness.making import asking, write_task, write_yaml
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.harness import HarnessConfig
from trainer.harness.loading import load_tasks
from trainer.kinds.pretraining import preflight


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


def test_settings_that_lm_eval_does_not_know_are_refused(tmp_path: Path) -> None:
    said = refused(write_task(tmp_path, metric_list=[{"metric": "acc", "aggregation": "nothing"}], doc_to_txt="question"))
    assert f"lm-eval cannot load the task 'tiny' of {tmp_path / 'tiny.yaml'}" in said and "doc_to_txt" in said


def test_without_lm_eval_one_line_says_what_to_install(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("trainer.harness.measured.version", missing)
    told: dict[str, Any] = write_task(tmp_path / "tasks").model_dump()
    with pytest.raises(ConfigError, match=r"not installed: pip install 'headrace\[harness\]'"):
        preflight(small_job(raw, tmp_path / "store", evaluation__harness=told), silent())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation__harness": {"tasks": []}}, "harness"),
        ({"evaluation__harness": {"tasks": ["a", "a"]}}, "names a twice"),
        ({"evaluation__harness": {"tasks": ["a"]}, "data__validation_fraction": 0}, "needs data.validation_fraction above 0"),
        ({"promotion": {"name": "m", "metric": "harness/a/acc", "threshold": 0}}, "are named in evaluation.harness"),
        (
            {"promotion": {"name": "m", "metric": "harness/b/acc", "threshold": 0}, "evaluation__harness": {"tasks": ["a"]}},
            "harness/a/FIGURE",
        ),
    ],
)
def test_settings_that_ask_for_nothing_are_refused(raw: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small_job(raw, tmp_path / "store", **changes)
