"""What lm-eval measures of a finished run, where that is kept, and who tells of it."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from lm_eval.api.metrics import perplexity, stderr_for_metric
from safetensors.torch import load_file, save_file

from tests.processes import cores
from tests.support import failing_first
from tests.trainer.adapted_runs import adapt, write_base
from tests.trainer.curated_runs import curated_run, run_through
from tests.trainer.evaluation.harness_tasks import QUESTIONS, asking, write_questions, write_task, write_yaml
from tests.trainer.small_jobs import Finished
from trainer.common import stopping, transient
from trainer.common.errors import ArtifactError, ConfigError, StorageError
from trainer.common.progress import silent
from trainer.config.evaluation import HarnessConfig
from trainer.config.jobs import EvaluateJob
from trainer.config.runs import PromotionConfig
from trainer.evaluation import harness
from trainer.evaluation.harness_identity import identify, installed_version, name_of
from trainer.evaluation.harness_tasks import OrInfinite, load_tasks
from trainer.evaluation.measurement import read_result
from trainer.pipelines.any_kind import evaluate_harness
from trainer.records.basis import HarnessBasis
from trainer.records.evaluations import Result, Task
from trainer.records.plans import PreparedData
from trainer.registry.compare_figures import curve_table, measure_run
from trainer.registry.compared_runs import read_runs
from trainer.registry.facts import read_facts
from trainer.registry.promotion import find_measured, look
from trainer.registry.report import make_report
from trainer.registry.sections import describe_harness, index_harness
from trainer.store.storage import Store

FIGURE = "harness/tiny/acc"


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Finished:
    """The finished run in a store of the test's own."""
    return finished.copy(tmp_path)


def measure(run: Finished, options: HarnessConfig, own: bool = True, **changes: Any) -> Result:
    values = {"store": str(run.store), "checkpoint": f"{run.run}/final", **changes}
    job = EvaluateJob(**values, evaluation={"batch": 4, "harness": options.model_dump()})
    with cores(1):
        return evaluate_harness(job, own, silent())


def task_of(result: Result) -> Task:
    assert result.asked is not None
    return result.asked.tasks["tiny"]


def test_a_model_that_lacks_weights_is_not_measured_with_random_ones(run: Finished, tmp_path: Path) -> None:
    model = Path(shutil.copytree(run.store / run.run / "final", tmp_path / "model"))
    weights = load_file(model / "model.safetensors")
    del weights["transformer.ln_f.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights of a GPT2LMHeadModel: transformer\.ln_f\.weight; use one"):
        measure(run, write_task(tmp_path / "tasks"), own=False, checkpoint=str(model))


def test_the_figures_of_a_run_stand_beside_its_evaluation_and_are_reused(run: Finished, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    result = measure(run, options)
    scores, task = result.groups["tiny"], task_of(result)
    assert (scores.counts, task.version, task.kept_out) == ({"examples": 3, "few_shot": 0}, "3", False)
    assert 0 <= scores.figures["acc"] <= 1
    kept = (run.store / run.run / "harness.json").read_bytes()
    assert measure(run, options) == result.model_copy(update={"reused": True})
    assert measure(run, options, own=False).reused, "what the run's own record says need not be found out again"
    assert (run.store / run.run / "harness.json").read_bytes() == kept
    evaluation = find_measured(Store(str(run.store)), run.run)
    assert evaluation is not None and evaluation.figures()[FIGURE] == scores.figures["acc"]


def test_a_group_of_groups_has_what_its_tasks_have_in_common(run: Finished, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks", metric_list=[{"metric": "acc", "higher_is_better": False}])
    written = yaml.safe_load((tmp_path / "tasks" / "tiny.yaml").read_text())
    write_yaml(tmp_path / "tasks" / "none.yaml", {**written, "task": "none", "num_fewshot": 0})
    mean = {"aggregate_metric_list": [{"metric": "acc"}]}
    for group, members in (("inner", ["tiny"]), ("whole", ["inner"]), ("mixed", ["inner", "none"])):
        write_yaml(tmp_path / "tasks" / f"{group}.yaml", {"group": group, "task": members, **mean})
    found = {}
    for name in ("whole", "mixed"):
        found[name] = measure(run, options.model_copy(update={"tasks": [name], "few_shot": 1}))
        assert found[name].asked is not None and found[name].asked.tasks[name].greater_is_better == {"acc": False}
    assert found["whole"].groups["whole"].counts == {"examples": 3, "few_shot": 1}
    assert found["mixed"].groups["mixed"].counts == {"examples": 6}
    facts = read_facts(Store(str(run.store)), run.run)
    (entry,) = [each for each in index_harness(facts) if each["dataset"]["name"] == "mixed"]
    assert entry["metrics"][0]["name"] == "acc (lm-eval)"
    (section,) = describe_harness(facts)
    table = section.blocks[0].table
    assert table is not None and ["mixed", "differs by task"] in [[row[0], row[-2]] for row in table.rows]


def test_figures_that_are_not_finite_are_left_out_with_a_word(run: Finished, tmp_path: Path) -> None:
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    of_words = {"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}
    of_answers = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
    options = write_task(tmp_path, process_results=None, metric_list=[*metrics, of_words, of_answers])
    task = (tmp_path / "tiny.yaml").read_text()
    (tmp_path / "tiny.yaml").write_text(task.replace("process_results: null", "process_results: !function own.results"))
    (tmp_path / "own.py").write_text(
        "def results(doc, answers): return {'acc': 1.0, 'acc_norm': float('nan'), 'word_perplexity': (-8000.0, 1), "
        "'perplexity': -8000.0}\n"
    )
    result = measure(run, options)
    assert result.groups["tiny"].figures == {"acc": 1.0}
    assert "doubtful: the acc_norm of the task 'tiny' is nan, and is left out" in result.lines()
    assert "doubtful: the word_perplexity of the task 'tiny' is inf, and is left out" in result.lines()
    assert "doubtful: the perplexity of the task 'tiny' is inf, and is left out" in result.lines()


@pytest.mark.parametrize("asked", ["tiny", "pair"])
def test_figures_of_a_task_edited_while_it_is_measured_are_of_the_task_before(
    run: Finished, asked: str, tmp_path: Path
) -> None:
    options = write_task(tmp_path, process_results=None)
    (tmp_path / "pair.yaml").write_text("group: pair\ntask: [tiny]\n")
    task, edited = tmp_path / "tiny.yaml", "process_results: !function own.results"
    task.write_text(task.read_text().replace("process_results: null", edited))
    (tmp_path / "own.py").write_text(
        "def results(doc, answers):\n"
        f"    with open({str(task)!r}, 'a') as file: file.write('# edited: [half')\n"
        f"    with open({str(tmp_path / 'other.yaml')!r}, 'w') as file: file.write('task: [half')\n"
        "    return {'acc': 1.0}\n"
    )
    before = name_of(identify(options, installed_version())["tiny"])
    result = measure(run, options.model_copy(update={"tasks": [asked]}))
    (tmp_path / "other.yaml").unlink()
    assert isinstance(result.measured_on, HarnessBasis) and result.measured_on.harness["tiny"] == before
    assert task_of(result).identity == before != name_of(identify(options, installed_version())["tiny"])
    assert not measure(run, options).reused


def test_a_perplexity_that_may_be_infinite_has_the_standard_error_of_lm_evals_own() -> None:
    told = [-1.0, -2.5, -3.0, -7.0]
    own, errors = OrInfinite(perplexity), [stderr_for_metric(each, 10) for each in (OrInfinite(perplexity), perplexity)]
    assert own(told) == perplexity(told) and own([-8000.0]) == math.inf
    assert errors[0](told) == errors[1](told) > 0
    with np.errstate(all="ignore"):
        assert not math.isfinite(errors[0]([-400.0, -390.0, -700.0, -705.0])), "an error, where figures are near 1e300"


@pytest.mark.deep
def test_other_data_other_settings_and_damage_are_measured_anew(run: Finished, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    before = measure(run, options)
    few = measure(run, options.model_copy(update={"limit": 2, "few_shot": 1}))
    assert not few.reused and few.groups["tiny"].counts == {"examples": 2, "few_shot": 1}
    path = run.store / run.run / "harness.json"
    path.write_bytes(path.read_bytes().replace(b'"tiny"', b'"tinX"'))
    assert measure(run, options) == before
    questions = tmp_path / "tasks" / "questions.jsonl"
    status = questions.stat()
    write_questions(questions, QUESTIONS[:1])
    os.utime(questions, ns=(status.st_atime_ns, status.st_mtime_ns))  # by which `datasets` knows a local file
    assert measure(run, options).groups["tiny"].counts["examples"] == 1


def test_a_measurement_that_is_not_the_runs_own_is_kept_apart(run: Finished, tmp_path: Path) -> None:
    result = measure(run, write_task(tmp_path / "tasks"), own=False)
    assert result.key.startswith(f"evaluations/{Path(run.run).name}-harness-")
    assert not (run.store / run.run / "harness.json").exists()
    assert (run.store / result.key).exists()


def test_the_report_the_card_and_the_lineage_tell_of_it(run: Finished, tmp_path: Path) -> None:
    store = Store(str(run.store))
    before = read_facts(store, run.run).fingerprint([])
    value = measure(run, write_task(tmp_path / "tasks")).figures()[FIGURE]
    assert read_facts(store, run.run).fingerprint([]) != before
    make_report(store, run.run)
    page, card = ((run.store / run.run / name).read_text() for name in ("report.html", "final/README.md"))
    assert "Results of lm-eval" in page and f"{value:.4f}" in page
    assert "acc (lm-eval, 0-shot)" in card and "bits\\_per\\_byte" not in card and "bits_per_byte" in card
    lineage = json.loads((run.store / run.run / "lineage.json").read_text())
    assert lineage["evaluation"]["harness"]["key"] == f"{run.run}/harness.json"


def test_questions_that_are_cut_are_told(run: Finished, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    write_questions(
        tmp_path / "tasks" / "questions.jsonl", [{**QUESTIONS[0], "question": "def of " * 200}, *QUESTIONS[1:]]
    )
    result = measure(run, options)
    assert result.asked is not None
    (doubt,) = result.asked.doubts
    assert "exceeds model's maximum length" in doubt and doubt.endswith("(and 1 more like it)"), "it has two answers"
    assert f"doubtful: {doubt}" in result.lines()
    make_report(Store(str(run.store)), run.run)
    assert f"Doubtful: {doubt[:40]}" in (run.store / run.run / "report.html").read_text()


def test_a_gate_can_be_on_a_figure_of_lm_eval(run: Finished, tmp_path: Path) -> None:
    store, gate = Store(str(run.store)), PromotionConfig(name="lm", metric=FIGURE, threshold=0.0)
    value = measure(run, write_task(tmp_path / "tasks")).figures()[FIGURE]
    found = find_measured(store, run.run)
    assert found is not None
    assert look(store, gate, run.run, found.figures(), found.measured_on).passed
    beyond = gate.model_copy(update={"threshold": value + 0.1})
    assert not look(store, beyond, run.run, found.figures(), found.measured_on).passed


@pytest.mark.deep
def test_a_tasks_questions_were_kept_out_if_the_fields_that_they_are_made_of_were(raw: Path, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    for name in ("questions", "solved"):
        write_questions(tmp_path / "tasks" / f"{name}.jsonl", [{**each, "note": "some words"} for each in QUESTIONS])
    files = {"paths": [str(tmp_path / "tasks" / "questions.jsonl")], "format": "jsonl"}
    told = {}
    for fields in (["question"], ["note"]):
        wanted = {"decontaminate": {"files": [{**files, "fields": fields}], "least_words": 2}}
        key = run_through(curated_run(raw, tmp_path / fields[0], wanted))
        told[fields[0]] = task_of(measure(Finished(tmp_path / fields[0], key), options)).describe_kept_out()
    assert told == {"question": "yes, from 2 words on", "note": "no"}


def test_runs_are_compared_by_it_where_the_task_is_the_same(run: Finished, tmp_path: Path) -> None:
    store, options = Store(str(run.store)), write_task(tmp_path / "tasks")
    told = []
    for asked in (options, options.model_copy(update={"limit": 2})):
        measure(run, asked)
        (read,) = read_runs(store, [run.run])
        told.append(measure_run(read)[FIGURE])
    (value, on), (_, other) = told
    assert 0 <= value <= 1 and on != other


@pytest.mark.parametrize("name", ["tiny", "group"])
def test_the_best_figure_of_a_task_in_training_is_among_those_since_it_or_its_group_changed(
    run: Finished, name: str
) -> None:
    (read,) = read_runs(Store(str(run.store)), [run.run])
    evaluation = {**read.job["evaluation"], "best_by": FIGURE}
    records = [
        {"kind": "tasks", "step": 0, "by": {name: "before"}},
        {"kind": "harness", "step": 2, "tiny/acc": 1.0},
        {"kind": "tasks", "step": 2, "by": {name: "after"}},
        {"kind": "harness", "step": 4, "tiny/acc": 0.5},
        {"kind": "tasks", "step": 4, "by": {name: "after", "other": "new"}},
        {"kind": "harness", "step": 6, "tiny/acc": 0.25},
    ]
    config = {**read.config, "job": {**read.job, "evaluation": evaluation}}
    table = curve_table([replace(read, records=records, config=config)])
    assert [f"validation {FIGURE}, best", "0.5000 at 4"] in table.rows


def test_a_task_is_another_if_a_file_changes_that_its_functions_import(tmp_path: Path) -> None:
    options = write_task(tmp_path)
    yaml = tmp_path / "tiny.yaml"
    yaml.write_text(yaml.read_text() + "process_docs: !function functions.process\n")
    (tmp_path / "functions.py").write_text("from helper import keep\ndef process(docs):\n    return keep(docs)\n")
    names = []
    for text in ("keep = list\n", "def keep(docs):\n    return docs[:1]\n"):
        (tmp_path / "helper.py").write_text(text)
        names.append(name_of(identify(options, "1")["tiny"]))
    (tmp_path / "alone.py").write_text("changed = True\n")
    assert name_of(identify(options, "1")["tiny"]) == names[1] != names[0]


def test_an_evaluation_without_it_reads_as_before(run: Finished) -> None:
    store = Store(str(run.store))
    config = json.loads((run.store / run.run / "config.json").read_text())
    assert "harness" not in config["job"]["evaluation"]
    found = read_result(store, run.run, config)
    assert found is not None and found.harness is None and found.measured_on.harness is None


def test_it_stops_where_it_is_asked_to(run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise stopping.StopRequested

    monkeypatch.setattr("trainer.evaluation.harness.check_stop", stop)
    with pytest.raises(stopping.StopRequested):
        measure(run, write_task(tmp_path / "tasks"))
    assert not (run.store / run.run / "harness.json").exists()


def test_what_lm_eval_cannot_ask_is_told_in_one_message(run: Finished, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks", fewshot_split="nowhere").model_copy(update={"few_shot": 1})
    with pytest.raises(ConfigError, match=r"evaluation\.harness: lm-eval (cannot|fails)"):
        measure(run, options)


def test_a_function_of_a_task_that_fails_on_an_answer_is_told_with_the_name_of_the_task(
    run: Finished, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks")
    (tmp_path / "tasks" / "words.py").write_text(
        "def score(doc, results):\n    return {'second': results[0].split()[99] == 'is'}\n"
    )
    task = yaml.safe_load((tmp_path / "tasks" / "tiny.yaml").read_text())
    changes = {
        "task": "words", "output_type": "generate_until", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
        "metric_list": [{"metric": "second", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    text = yaml.safe_dump({**task, **changes})
    (tmp_path / "tasks" / "words.yaml").write_text(f"{text}process_results: !function words.score\n")
    with pytest.raises(ConfigError, match=r"lm-eval fails on words: IndexError: list index out of range"):
        measure(run, asking(tmp_path / "tasks", ["tiny", "words"]))


def test_a_task_that_a_run_was_measured_on_is_not_loaded_again_beside_another(
    run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loaded = tmp_path / "tasks", list[str]()
    write_task(folder)
    written = yaml.safe_load((folder / "tiny.yaml").read_text())
    write_yaml(folder / "other.yaml", {**written, "task": "other"})
    alone = measure(run, asking(folder, ["tiny"], limit=2))

    def load(options: HarnessConfig) -> dict[str, Any]:
        loaded.extend(options.tasks)
        return load_tasks(options)

    monkeypatch.setattr("trainer.evaluation.harness.load_tasks", load)
    both = measure(run, asking(folder, ["tiny", "other"], limit=2))
    assert (both.groups["tiny"], loaded) == (alone.groups["tiny"], ["other"])


def test_tasks_measured_before_a_failure_are_not_measured_again(
    run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = StorageError("the store is away", transient=True)
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(harness, "record", failing_first([away], harness.record))
    folder = tmp_path / "tasks"
    write_task(folder)
    task = yaml.safe_load((folder / "tiny.yaml").read_text())
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        f"folder = Path({str(folder)!r})\n"
        "def results(doc, answers):\n"
        "    with open(folder / 'asked', 'a') as file: file.write('x')\n"
        "    return {'acc': float(answers[0][0] > answers[1][0])}\n"
        "def late(doc, answers):\n"
        "    if not (folder / 'ready').exists(): raise ValueError('not ready')\n"
        "    return results(doc, answers)\n"
    )
    for name, function in (("first", "results"), ("second", "late")):
        text = yaml.safe_dump({**task, "task": name})
        (folder / f"{name}.yaml").write_text(f"{text}process_results: !function own.{function}\n")
    write_yaml(
        folder / "pair.yaml",
        {
            "group": "pair",
            "task": ["tiny", "first"],
            "aggregate_metric_list": [{"metric": "acc", "aggregation": "mean"}],
        },
    )
    options = asking(folder, ["pair", "second"], limit=2)
    with pytest.raises(ConfigError, match="lm-eval fails on second: ValueError: not ready"):
        measure(run, options)
    (folder / "ready").touch()
    result = measure(run, options)
    assert (folder / "asked").read_text() == "x" * 4, "two questions of each of the two tasks"
    assert not result.reused and result.key.endswith("/harness.json")
    assert {name: scores.counts["examples"] for name, scores in result.groups.items()} == {
        "pair": 4, "tiny": 2, "first": 2, "second": 2,
    }  # fmt: skip
    for kept in (run.store / "evaluations").iterdir():
        kept.unlink()
    (run.store / run.run / "harness.json").unlink()
    assert measure(run, options) == result
    assert measure(run, asking(folder, ["pair"], limit=2), own=False).reused


def test_training_text_that_is_not_known_is_told_before_a_task_is_measured(
    run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(run.store.glob("shards/*/manifest.json")).write_text("{}")
    monkeypatch.setattr(harness, "ask", lambda *_: pytest.fail("a task was measured"))
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
        measure(run, write_task(tmp_path / "tasks"))


@pytest.mark.deep
def test_a_published_adapter_is_asked_as_the_merged_model_is(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path
) -> None:
    store, data = Path(shutil.copytree(prepared[0], tmp_path / "store")), prepared[1]
    base = write_base(tmp_path / "base", store, data)
    options = write_task(tmp_path / "tasks")
    found = []
    for publish in ("adapter", "merged"):
        run = adapt(raw, store, data, base, {"rank": 4, "alpha": 64.0, "publish": publish}, training__max_steps=5)
        harness = options.model_dump(mode="json")
        job = EvaluateJob.model_validate(
            {"store": str(store), "checkpoint": f"{run}/final", "evaluation": {"batch": 4, "harness": harness}}
        )
        found.append(evaluate_harness(job, True, silent()).figures())
    assert found[0] == pytest.approx(found[1])
