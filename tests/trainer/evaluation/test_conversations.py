"""What lm-eval measures of a model that answers: by its chat template or as plain text, in the run's own evaluation."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from tests.processes import cores, finish
from tests.support import only_run, write_config
from tests.trainer.chats import LLAMA2, chat_job, chat_model, chat_tokenizer, chat_values
from tests.trainer.evaluation.harness_tasks import write_task
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.chat import ChatJob
from trainer.config.evaluation import HarnessConfig
from trainer.evaluation.measurement import harness_job
from trainer.kinds.chat.kind import KIND
from trainer.pipelines.any_kind import evaluate_harness
from trainer.pipelines.explain import explain_job
from trainer.registry.promotion import find_measured
from trainer.store.storage import Store

FIGURE = "harness/tiny/acc"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> HarnessConfig:
    """A task that is asked by the chat template, with one solved example before each question."""
    options = write_task(tmp_path_factory.mktemp("tasks"))
    return options.model_copy(update={"chat_template": True, "few_shot": 1})


@pytest.fixture(scope="module")
def tuned(chats: Path, llama: Path, asked: HarnessConfig, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run that a process trained and measured; not to be written to."""
    folder = tmp_path_factory.mktemp("tuned")
    values = chat_values(chats, folder / "store", llama, **asking(asked))
    finish(folder / "said", write_config(folder / "job.yaml", values))
    return Finished(folder / "store", only_run(folder / "store"))


def asking(options: HarnessConfig) -> dict[str, Any]:
    return {"training__epochs": 1, "evaluation__harness": options.model_dump()}


def job_of(tuned: Finished, chats: Path, model: Path, options: HarnessConfig) -> ChatJob:
    return chat_job(chats, tuned.store, model, **asking(options))


def test_its_figures_stand_beside_those_of_the_answers(tuned: Finished) -> None:
    store = Store(str(tuned.store))
    (value,) = json.loads((tuned.store / tuned.run / "harness.json").read_text())["groups"]["tiny"]["figures"].values()
    found = find_measured(store, tuned.run)
    assert found is not None and found.figures()[FIGURE] == value
    assert found.figures().keys() == {"loss", "perplexity", "bits_per_byte", FIGURE}
    page, card = ((tuned.store / tuned.run / name).read_text() for name in ("report.html", "final/README.md"))
    assert "Results of lm-eval" in page and "acc (lm-eval, 1-shot)" in card


def test_directly_after_it_is_found_done_and_other_settings_are_measured_anew(
    tuned: Finished, chats: Path, llama: Path, asked: HarnessConfig
) -> None:
    stages = explain_job(job_of(tuned, chats, llama, asked))
    assert [(stage.stage, stage.verdict) for stage in stages[-3:]] == [
        ("evaluation", "reused"), ("harness", "reused"), ("report", "reused"),
    ]  # fmt: skip
    plain = asked.model_copy(update={"chat_template": False})
    assert [stage.verdict for stage in explain_job(job_of(tuned, chats, llama, plain))[-3:-1]] == ["reused", "made"]


def test_it_is_tried_before_training(tuned: Finished, chats: Path, llama: Path, asked: HarnessConfig) -> None:
    job = job_of(tuned, chats, llama, asked)
    gate = {"name": "answers", "metric": "harness/tiny/accuracy", "threshold": 0.5}
    wrong = ChatJob.model_validate({**job.model_dump(), "promotion": gate})
    with pytest.raises(ConfigError, match=r"which no requested task has; there is harness/tiny/acc"):
        KIND.preflight(wrong, silent())
    assert KIND.preflight(job, silent()).plan is not None


def test_a_template_that_takes_no_system_messages_is_asked_without_the_tasks_description(
    chats: Path, tmp_path: Path
) -> None:
    """In the trial before training too, as lm-eval does it."""
    strict = chat_model(tmp_path / "strict", template=LLAMA2)
    options = write_task(tmp_path / "tasks", description="Answer by code.\n").model_copy(update={"chat_template": True})
    job = chat_job(chats, tmp_path / "store", strict, **asking(options))
    assert KIND.preflight(job, silent()).splits is not None
    measuring = harness_job(job, "runs/any").model_copy(update={"checkpoint": str(strict)})
    result = evaluate_harness(measuring, False, silent())
    assert result.figures().keys() == {FIGURE} and result.asked is not None
    assert "removing the system role" in result.asked.doubts[0]


def test_a_model_without_a_template_is_not_asked_by_one(
    tuned: Finished, llama: Path, asked: HarnessConfig, chats: Path
) -> None:
    job = job_of(tuned, chats, llama, asked)
    bare = chat_model(Path(tuned.store).parent / "bare", template=None)
    measuring = harness_job(job, tuned.run).model_copy(update={"checkpoint": str(bare)})
    with pytest.raises(ConfigError, match=r"chat_template is true, but the tokenizer of .*bare has no chat template"):
        evaluate_harness(measuring, False, silent())


def with_code(folder: Path, file: str) -> None:
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**settings, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (partial(with_code, file="config.json"), "has an auto_map .* which headrace never runs"),
        (partial(with_code, file="tokenizer_config.json"), "has an auto_map .* which headrace never runs"),
        (lambda folder: os.truncate(folder / "model.safetensors", 900), "model.safetensors is missing or damaged"),
    ],
)
def test_a_model_is_loaded_with_the_checks_of_every_other(
    change: Callable[[Path], None], problem: str, llama: Path, asked: HarnessConfig, chats: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "other"))
    change(folder)
    job = chat_job(chats, tmp_path / "store", llama, **asking(asked))
    measuring = harness_job(job, "runs/any").model_copy(update={"checkpoint": str(folder)})
    with pytest.raises(ConfigError, match=problem):
        evaluate_harness(measuring, False, silent())


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("{{ ['a'] | random }}", "takes something at random"),
        ("{{ strftime_now('%Y') }}", "refuses this conversation: it writes the date of today"),
        ("{{ 'a' * 2500000000 }}", "takes more than 2.0 GiB of memory"),
    ],
)
def test_a_template_without_bound_or_by_chance_is_not_asked_by(
    written: str, problem: str, asked: HarnessConfig, chats: Path, llama: Path, tmp_path: Path
) -> None:
    other = chat_model(tmp_path / "other", template=written + LLAMA2)
    job = chat_job(chats, tmp_path / "store", llama, **asking(asked))
    measuring = harness_job(job, "runs/any").model_copy(update={"checkpoint": str(other)})
    with pytest.raises(ConfigError, match=rf"lm-eval fails on tiny: TemplateError: the chat template {problem}"):
        evaluate_harness(measuring, False, silent())


@pytest.mark.parametrize("kind", [AutoModelForSequenceClassification, AutoModelForMaskedLM])
def test_a_model_that_continues_no_text_is_not_asked(
    kind: Any, asked: HarnessConfig, chats: Path, tmp_path: Path
) -> None:
    """Else it would be loaded with a head of chance weights, and have figures."""
    settings = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    folder = tmp_path / "other"
    kind.from_config(AutoConfig.for_model("bert", vocab_size=600, **settings)).save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    job = chat_job(chats, tmp_path / "store", folder, **asking(asked))
    measuring = harness_job(job, "runs/any").model_copy(update={"checkpoint": str(folder)})
    with pytest.raises(ConfigError, match=r"lm-eval needs a model that continues text, but .*other is a BertFor\w+;"):
        evaluate_harness(measuring, False, silent())


@pytest.mark.deep
@pytest.mark.parametrize("by_template", [True, False])
def test_the_figures_are_those_of_lm_evals_own_command_line(
    tuned: Finished, chats: Path, llama: Path, asked: HarnessConfig, tmp_path: Path, by_template: bool
) -> None:
    moved = tuned.copy(tmp_path)
    options = asked.model_copy(update={"chat_template": by_template})
    with cores(1):
        job = harness_job(job_of(moved, chats, llama, options), moved.run)
        figure = evaluate_harness(job, True, silent()).groups["tiny"]
    final = moved.store / moved.run / "final"
    words = ["--model", "hf", "--model_args", f"pretrained={final}", "--tasks", "tiny", "--num_fewshot", "1"]
    words += [
        "--include_path",
        options.include_path or "",
        "--device",
        "cpu",
        "--output_path",
        str(tmp_path / "out.json"),
    ]
    words += ["--batch_size", str(job.evaluation.batch)]
    words += ["--apply_chat_template", "--fewshot_as_multiturn", "True"] if by_template else []
    subprocess.run([sys.executable, "-m", "lm_eval", *words], check=True, capture_output=True, timeout=240)
    (told,) = tmp_path.glob("out*.json")
    theirs = json.loads(told.read_text())["results"]["tiny"]
    assert (figure.figures["acc"], figure.errors["acc"]) == (theirs["acc,none"], theirs["acc_stderr,none"])
