"""lm-eval's tasks during training: what it finds of a model in memory, and what that changes."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel

from tests.depth import once
from tests.processes import finish
from tests.support import final_bytes, held_out_losses, only_run, records, small_job, small_values, write_config
from tests.trainer.chats import chat_job
from tests.trainer.evaluation.harness_tasks import QUESTIONS, asking, write_questions, write_task, write_yaml
from tests.trainer.preferences import preference_job
from tests.trainer.training.sharded_runs import cut_back
from trainer.common.errors import ConfigError, Preempted
from trainer.common.progress import silent
from trainer.config.runs import RunJob
from trainer.evaluation.harness import AskedModel
from trainer.evaluation.harness_tasks import figures_of
from trainer.evaluation.harness_training import TasksInTraining
from trainer.jobs import train
from trainer.kinds.kind import identify_run
from trainer.records.plans import PreparedData
from trainer.registry.compare_figures import curve_table, draw_overlays
from trainer.registry.compared_runs import read_runs
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

WORDS = [{"text": f"def f{number}(x): return x + {number}"} for number in range(5)]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A task of each kind of question: which answer is likelier, how likely a text is, and what is written next."""
    folder = tmp_path_factory.mktemp("tasks")
    write_task(folder, num_fewshot=1)
    write_questions(folder / "solved.jsonl", QUESTIONS)  # of which one is drawn for each question
    write_questions(folder / "texts.jsonl", WORDS)
    data = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "texts.jsonl")}},
        "test_split": "test", "metadata": {"version": 1},
    }  # fmt: skip
    text = {"task": "text", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text"}
    write_yaml(folder / "text.yaml", {**data, **text, "metric_list": [{"metric": "bits_per_byte"}]})
    said = {
        "task": "say", "output_type": "generate_until", "doc_to_text": "{{text[:12]}}", "doc_to_target": "text",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 5},
        "metric_list": [{"metric": "chrf"}],
    }  # fmt: skip
    write_yaml(folder / "say.yaml", {**data, **said})
    return {**asking(folder, ["tiny", "text", "say"]).model_dump(mode="json"), "every": 2}


def asked_of(job: RunJob) -> list[dict[str, Any]]:
    """The figures of each step, as the run records them."""
    return [
        {name: value for name, value in record.items() if name not in ("kind", "time")}
        for record in records(Path(job.store), "harness")
    ]


def ask_model(job: RunJob, tasks: dict[str, Any], name: str) -> dict[str, float]:
    """What lm-eval finds of a checkpoint or the final model of the run, which it loads itself."""
    folder = Path(job.store, only_run(Path(job.store)), name)
    found = simple_evaluate(
        "hf", model_args={"pretrained": str(folder)}, tasks=tasks["tasks"], batch_size=3, device="cpu",
        task_manager=TaskManager(include_path=tasks["include_path"], include_defaults=False), bootstrap_iters=0,
        apply_chat_template=tasks.get("chat_template", False), fewshot_as_multiturn=True, limit=tasks["limit"],
    )  # fmt: skip
    return {
        f"{name}/{figure}": each.value for name in found["results"] for figure, each in figures_of(found, name).items()
    }


Make = Callable[..., RunJob]


@pytest.fixture(params=["pretraining", "chat", "preference"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A job of some steps of a kind, in a store by name."""

    def job(store: str, **changes: Any) -> RunJob:
        options = {"training__save_every": 2, "training__max_steps": 4, "evaluation__batch": 3, **changes}
        ask, at = request.getfixturevalue, tmp_path / store
        if request.param == "pretraining":
            return small_job(ask("raw"), at, **options)
        make_job = chat_job if request.param == "chat" else preference_job
        data = ask("chats" if request.param == "chat" else "preferences")
        return make_job(data, at, ask("llama"), training__epochs=None, **options)

    return job


@pytest.mark.deep
def test_the_figures_are_those_of_lm_eval_on_that_checkpoint_and_the_weights_are_the_same(
    make: Make, tasks: dict[str, Any], runtime: Runtime
) -> None:
    plain, measured = make("plain"), make("measured", evaluation__harness=tasks)
    for job in (plain, measured):
        train(job, silent())
    assert final_bytes(Path(plain.store)) == final_bytes(Path(measured.store))
    told = asked_of(measured)
    assert [each.pop("step") for each in told] == [0, 2, 4]
    assert told[0].keys() == {"tiny/acc", "text/bits_per_byte", "say/chrf"} and told[0] != told[2]
    for step, figures in zip((2, 4), told[1:], strict=True):
        assert figures == pytest.approx(ask_model(measured, tasks, f"checkpoints/step-{step:08d}"), abs=1e-6)


@pytest.mark.deep
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
@pytest.mark.parametrize("limit", [None, 1])
def test_ranks_measure_each_its_share(
    raw: Path, stocked: Path, tasks: dict[str, Any], tmp_path: Path, sharding: str, limit: int | None
) -> None:
    tasks = {**tasks, "limit": limit}
    changes = {"training__max_steps": 2, "evaluation__harness": tasks, "training__sharding": sharding}
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked, **changes))
    other = stocked.rename(tmp_path / "two")
    finish(tmp_path / "said", config, 2, f"store={other}")
    job = small_job(raw, other, **changes)
    _, figures = asked_of(job)
    assert figures.pop("step") == 2
    assert figures == pytest.approx(ask_model(job, tasks, "final"), abs=1e-6)


@pytest.mark.deep
def test_figures_on_both_sides_of_a_changed_task_or_evaluation_are_told_apart(
    raw: Path, stocked: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**write_task(tmp_path / "tasks").model_dump(mode="json"), "every": 2}
    every_two = {f"training__{name}": 2 for name in ("save_every", "evaluate_every")}
    changes = {"training__max_steps": 4, **every_two, "evaluation__harness": options}
    train(small_job(raw, stocked, **changes), silent())

    cut_back(stocked)
    train(small_job(raw, stocked, **changes), silent())
    assert "not comparable" not in caplog.text and "no longer count" not in caplog.text
    assert [record["step"] for record in records(stocked, "tasks")] == [0]

    cut_back(stocked)
    write_questions(tmp_path / "tasks" / "questions.jsonl", QUESTIONS[:2])
    train(small_job(raw, stocked, evaluation__during_training=2, **changes), silent())
    assert "the lm-eval tasks tiny, " in caplog.text and "figures up to step 2 are not comparable" in caplog.text
    assert "or the rule for its loss, has changed: results up to step 2 no longer count" in caplog.text
    first, second = records(stocked, "tasks")
    assert (first["step"], second["step"]) == (0, 2) and first["by"] != second["by"]


@pytest.mark.deep
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_a_stop_breaks_it_off_and_it_is_made_when_training_continues(
    raw: Path, stocked: Path, tasks: dict[str, Any], runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    sharding: str,
) -> None:  # fmt: skip
    changes = {"training__max_steps": 4, "evaluation__harness": tasks, "training__sharding": sharding}
    other = Path(shutil.copytree(stocked, tmp_path / "whole"))
    whole, job = (small_job(raw, store, **changes) for store in (other, stocked))
    train(whole, silent())
    asked, passes = AskedModel._model_generate, [0]

    def stop_in_between(self: AskedModel, *arguments: Any, **options: Any) -> Any:
        passes[0] += 1
        if passes[0] == 2:
            signal.raise_signal(signal.SIGTERM)
        return asked(self, *arguments, **options)

    monkeypatch.setattr(AskedModel, "_model_generate", stop_in_between)
    with pytest.raises(Preempted, match="saved at step 2 of 4"):
        train(job, silent())
    assert passes == [2] and [each["step"] for each in asked_of(job)] == [0]
    monkeypatch.undo()
    train(job, silent())
    assert asked_of(job) == asked_of(whole)
    assert final_bytes(stocked) == final_bytes(other)


@pytest.mark.parametrize(("evaluate_every", "every"), once((3, None), (None, 3), (3, 50), (9, 3)))
def test_a_task_decides_which_checkpoint_is_best_and_when_training_ends(
    raw: Path, stocked: Path, runtime: Runtime, tmp_path: Path, evaluate_every: int | None, every: int | None
) -> None:
    options = {**write_task(tmp_path / "tasks").model_dump(mode="json"), "every": every}
    same = [{**QUESTIONS[0], "choices": ["x", "x"]}]  # the first answer is as likely as the other: always right
    write_questions(tmp_path / "tasks" / "questions.jsonl", same)
    changes: dict[str, Any] = {
        "training__max_steps": 20, "training__final": "best", "training__early_stopping": 2,
        "training__evaluate_every": evaluate_every, "evaluation__harness": options,
        "evaluation__best_by": "harness/tiny/acc",
    }  # fmt: skip
    job = small_job(raw, stocked, **changes)
    train(job, silent())
    told = asked_of(job)
    assert [each["step"] for each in told] == [0, 3, 6, 9], "nothing was better than at step 3"
    best = records(Path(job.store), "checkpoint")
    assert [each["scores"]["harness/tiny/acc"] for each in best] == [1.0, 1.0]
    assert [each["step"] for each in best] == [3, 9]
    title, page = "tiny/acc, by lm-eval", (stocked / only_run(stocked) / "report.html").read_text()
    assert f'aria-label="{title}"' in page and "Validation harness/tiny/acc" in page
    runs = read_runs(Store(str(stocked)), [only_run(stocked)])
    assert title in draw_overlays(runs)
    assert ["validation harness/tiny/acc, best", "1.0000 at 3"] in curve_table(runs).rows


def test_a_figure_that_is_no_number_is_never_better_and_ends_training_early(
    raw: Path, stocked: Path, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_task(tmp_path / "tasks").model_dump(mode="json")
    job = small_job(
        raw, stocked, training__max_steps=20, training__early_stopping=2, training__evaluate_every=3,
        evaluation__harness=options, evaluation__best_by="harness/tiny/acc",
    )  # fmt: skip

    def overflow(*_: Any, **__: Any) -> Any:
        raise OverflowError("math range error")

    monkeypatch.setattr("trainer.evaluation.harness_tasks.evaluator.evaluate", overflow)
    monkeypatch.setattr("trainer.kinds.pretraining.preflight.try_harness", lambda *_: None)
    monkeypatch.setattr("trainer.evaluation.measurement.harness_job", lambda *_: None)
    monkeypatch.setattr("trainer.pipelines.pipeline.harness_job", lambda *_: None)
    train(job, silent())
    assert not asked_of(job) and [step for step, _ in held_out_losses(stocked)] == [0, 3, 6]


def test_after_the_last_step_it_is_asked_also_where_that_came_early(
    raw: Path, stocked: Path, runtime: Runtime, tmp_path: Path
) -> None:
    options = {**write_task(tmp_path / "tasks").model_dump(mode="json"), "every": 4}
    changes = {"training__max_steps": 20, "training__early_stopping": 1, "training__evaluate_every": 3}
    job = small_job(raw, stocked, **changes, evaluation__harness=options, evaluation__greater_is_better=True)
    train(job, silent())
    assert [each["step"] for each in asked_of(job)] == [0, 4, 6], "the loss fell, and was to grow"
    (*_, last) = records(stocked, "checkpoint")
    assert last["step"] == 6 and last["scores"].keys() >= {"loss", "harness/tiny/acc"}


@pytest.mark.deep
def test_a_stop_while_it_is_asked_after_an_early_last_step_records_nothing_twice(
    raw: Path, stocked: Path, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**write_task(tmp_path / "tasks").model_dump(mode="json"), "every": 100}
    changes = {"training__max_steps": 20, "training__early_stopping": 1, "training__evaluate_every": 3}
    other = Path(shutil.copytree(stocked, tmp_path / "whole"))
    whole, job = (
        small_job(raw, store, **changes, evaluation__harness=options, evaluation__greater_is_better=True)
        for store in (other, stocked)
    )
    train(whole, silent())

    asked, asks = TasksInTraining.ask, []

    def stop_second(self: TasksInTraining, model: PreTrainedModel, runtime: Runtime) -> dict[str, float]:
        asks.append(model)
        if len(asks) == 2:
            signal.raise_signal(signal.SIGTERM)
        return asked(self, model, runtime)

    with monkeypatch.context() as patched:
        patched.setattr(TasksInTraining, "ask", stop_second)
        with pytest.raises(Preempted, match="saved at step 6 of 20"):
            train(job, silent())
    assert [step for step, _ in held_out_losses(stocked)] == [0, 3]
    train(job, silent())
    assert held_out_losses(stocked) == held_out_losses(other) and asked_of(job) == asked_of(whole)
    saved, undisturbed = (records(store, "checkpoint")[-1]["scores"] for store in (stocked, other))
    assert saved == undisturbed and final_bytes(stocked) == final_bytes(other)


def test_what_a_task_asks_names_a_run_whose_best_checkpoint_it_decides(
    raw: Path, data: PreparedData, tmp_path: Path
) -> None:
    options = {**write_task(tmp_path / "tasks").model_dump(mode="json"), "every": 3}

    def name(**changes: Any) -> str:
        return identify_run(small_job(raw, "anywhere", training__final="best", **changes), data).key

    watched, decides = {"evaluation__harness": options}, {"evaluation__best_by": "harness/tiny/acc"}
    assert name(**watched) == name()
    before = name(**watched, **decides)
    assert before != name() and before == name(**watched, **decides)
    assert name(evaluation__harness={**options, "every": 2}, **decides) != before
    assert name(evaluation__harness={**options, "limit": 2}, **decides) != before
    write_questions(tmp_path / "tasks" / "questions.jsonl", QUESTIONS[:2])
    assert name(**watched, **decides) != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"best_by": "harness/other/acc"}, "'harness/other/acc'; expected one of loss, bits_per_byte, harness/ti"),
        ({"best_by": "perplexity"}, "evaluation.best_by is 'perplexity'; expected one of loss, bits_per_byte"),
        ({"harness": {"tasks": ["tiny"], "every": 0}}, "evaluation.harness.every"),
    ],
)
def test_what_is_not_measured_on_the_way_decides_nothing(raw: Path, changes: dict[str, Any], message: str) -> None:
    given = {"harness": {"tasks": ["tiny"]}, **changes}
    with pytest.raises(ConfigError, match=message):
        small_job(raw, "anywhere", **{f"evaluation__{name}": value for name, value in given.items()})
