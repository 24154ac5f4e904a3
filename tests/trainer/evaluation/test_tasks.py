"""Tasks of lm-eval as their files tell them, and what names them."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

from tests.trainer.evaluation.harness_tasks import QUESTIONS, asking, write_questions, write_task, write_yaml
from trainer.common.errors import ConfigError
from trainer.config.evaluation import HarnessConfig
from trainer.config.harness_files import LOCAL_FORMATS, leaves, local_tasks
from trainer.evaluation.harness_identity import identify, name_of, questions_of
from trainer.evaluation.harness_tasks import figures_of, load_tasks
from trainer.store.manifest import digest_file


def name(options: HarnessConfig, version: str = "1") -> str:
    return name_of(identify(options, version)["tiny"])


def test_a_task_is_named_by_what_it_asks_and_how_and_not_by_where_its_files_are(tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    before = name(options)
    others = [options.model_copy(update=change) for change in ({"limit": 2}, {"few_shot": 1})]
    assert len({before, name(options, "2"), *map(name, others)}) == 4
    elsewhere = shutil.copytree(tmp_path / "tasks", tmp_path / "elsewhere")
    assert name(asking(elsewhere, ["tiny"])) == before
    write_questions(tmp_path / "tasks" / "questions.jsonl", QUESTIONS[:2])
    assert name(options) != before


def test_what_a_task_includes_and_the_functions_that_it_names_are_part_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    options = write_task(folder)
    (folder / "tiny.yaml").rename(folder / "whole")
    (folder / "tiny.yaml").write_text("include: whole\ndoc_to_text: !function asked.ask\n")
    (folder / "asked.py").write_text("def ask(doc): return doc['question']\n")
    assert [path.name for path in local_tasks(options)["tiny"].files] == ["asked.py", "tiny.yaml", "whole"]
    before = name(options)
    (folder / "asked.py").write_text("def ask(doc): return 'Say: ' + doc['question']\n")
    after = name(options)
    (folder / "whole").write_text((folder / "whole").read_text() + "description: Answer.\n")
    assert len({before, after, name(options)}) == 3


def test_the_file_of_a_tasks_prompt_is_part_of_it(tmp_path: Path) -> None:
    folder, prompts = tmp_path / "tasks", tmp_path / "prompts.yaml"
    answered = {"output_type": "generate_until", "doc_to_choice": None, "metric_list": [{"metric": "exact_match"}]}
    options = write_task(folder, use_prompt=f"{prompts}:plain", **answered)
    names, asked = set(), []
    for text in ("{{question}}", "Complete: {{question}}"):
        write_yaml(prompts, {"prompts": {"plain": {"doc_to_text": text, "doc_to_target": "{{answer}}"}}})
        task = load_tasks(options)["tiny"]["tasks"]["tiny"]
        asked.append(task.doc_to_text(QUESTIONS[0]))
        names.add(name(options))
    assert asked == ["def f(", "Complete: def f("]
    assert len(names) == 2
    assert questions_of("tiny", local_tasks(options)) is None, "the prompt makes them, not doc_to_text"


def test_examples_are_mapped_again_after_a_function_changed_that_the_mapped_one_calls(tmp_path: Path) -> None:
    options = write_task(tmp_path, process_docs=None)
    task = (tmp_path / "tiny.yaml").read_text().replace("process_docs: null", "process_docs: !function mapped.process")
    (tmp_path / "tiny.yaml").write_text(task)
    process = "def process(docs):\n    return docs.map(lambda doc: {**doc, 'answer': answer()})\n"
    for answer, text in ((0, "0"), (1, "0 + 1")):  # its length differs too: by it Python knows what to compile again
        (tmp_path / "mapped.py").write_text(f"def answer():\n    return {text}\n\n{process}")
        docs = load_tasks(options)["tiny"]["tasks"]["tiny"].test_docs()
        assert set(docs["answer"]) == {answer}


def test_a_task_is_another_if_its_files_exchange_their_content(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    files = {"test": [str(first), str(second)]}
    options = write_task(tmp_path / "tasks", fewshot_split=None, dataset_kwargs={"data_files": files})
    found = []
    for start, end in ((QUESTIONS[:1], QUESTIONS[1:]), (QUESTIONS[1:], QUESTIONS[:1])):
        write_questions(first, start)
        write_questions(second, end)
        for path in (first, second):
            os.utime(path, (0, 0))  # by which `datasets` knows a local file
        task = load_tasks(options)["tiny"]["tasks"]["tiny"]
        found.append((name(options), task.test_docs()[0]["question"]))
    assert [question for _, question in found] == [QUESTIONS[0]["question"], QUESTIONS[1]["question"]]
    assert found[0][0] != found[1][0]


def test_a_folder_of_data_may_start_at_home_and_have_files_without_a_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    options = write_task(
        tmp_path / "tasks", fewshot_split=None, test_split="train", dataset_kwargs={"data_dir": "~/data"}
    )
    for count in (1, 2):
        write_questions(tmp_path / "data" / "questions", QUESTIONS[:count])
        (data,) = identify(options, "1")["tiny"].data
        assert data.sha256 == digest_file(tmp_path / "data" / "questions").sha256
        assert len(load_tasks(options)["tiny"]["tasks"]["tiny"].test_docs()) == count


def test_functions_beside_the_file_that_a_link_leads_to_are_part_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_task(tmp_path / "tasks")
    (tmp_path / "own").mkdir()
    (tmp_path / "tasks" / "tiny.yaml").rename(tmp_path / "own" / "whole")
    (tmp_path / "own" / "tiny.yaml").write_text("include: whole\ndoc_to_text: !function asked.ask\n")
    (tmp_path / "own" / "asked.py").write_text("def ask(doc): return doc['question']\n")
    (tmp_path / "tasks" / "tiny.yaml").symlink_to(tmp_path / "own" / "tiny.yaml")
    before = name(options)
    monkeypatch.chdir(tmp_path)
    assert name(asking(Path("tasks"), ["tiny"])) == before
    (tmp_path / "own" / "asked.py").write_text("def ask(doc): return 'Say: ' + doc['question']\n")
    assert name(options) != before


def test_copies_that_notebooks_keep_are_no_tasks(tmp_path: Path) -> None:
    options = write_task(tmp_path)
    shutil.copytree(tmp_path, tmp_path / ".ipynb_checkpoints")
    assert local_tasks(options)["tiny"].files == [tmp_path / "tiny.yaml"]


def test_a_group_and_a_tag_stand_for_their_tasks(tmp_path: Path) -> None:
    write_task(tmp_path, tag="small")
    write_yaml(tmp_path / "group.yaml", {"group": "all", "task": ["tiny", {"task": "elsewhere"}]})
    local = local_tasks(asking(tmp_path, ["all"]))
    assert dict(leaves("all", local)) == {"tiny": local["tiny"], "elsewhere": None}
    assert dict(leaves("small", local)) == {"tiny": local["tiny"]}
    (asked, other) = identify(asking(tmp_path, ["all"]), "1")["all"].data
    assert (Path(asked.path).name, asked.asked) == ("questions.jsonl", True)
    assert (Path(other.path).name, other.asked) == ("solved.jsonl", False)
    assert questions_of("small", local) == {(asked.sha256, "question")}
    assert questions_of("all", local) is None, "of data of the hub it is not known whether it was kept out"


@pytest.mark.parametrize(
    ("group", "changed"),
    [
        ({"task": [{"task": "tiny", "dataset_kwargs": {"data_files": {"test": "other.jsonl"}}}]}, "dataset_kwargs"),
        ({"task": ["tiny"], "num_fewshot": 1}, "num_fewshot"),
        ({"task": [{"group": "within", "task": ["tiny"]}]}, "group"),
        ({"task": [{1: 2, "task": "tiny"}]}, "1"),
    ],
)
def test_a_group_that_changes_its_tasks_is_refused(tmp_path: Path, group: dict[str, object], changed: str) -> None:
    write_task(tmp_path)
    write_yaml(tmp_path / "group.yaml", {"group": "all", **group})
    with pytest.raises(ConfigError, match=f"the group 'all' changes {changed} of its tasks; define each changed task"):
        identify(asking(tmp_path, ["all"]), "1")


@pytest.mark.parametrize("listed", [[{}], [{"task": ["tiny"]}]])
def test_a_group_that_lists_no_names_is_refused(tmp_path: Path, listed: list[object]) -> None:
    write_task(tmp_path)
    write_yaml(tmp_path / "group.yaml", {"group": "all", "task": listed})
    with pytest.raises(ConfigError, match="the group 'all' lists no names; define"):
        identify(asking(tmp_path, ["all"]), "1")


def test_a_group_is_another_if_a_group_in_it_changes(tmp_path: Path) -> None:
    write_task(tmp_path)
    inner = {"group": "inner", "task": [{"task": "tiny", "task_alias": "small"}]}
    write_yaml(tmp_path / "outer.yaml", {"group": "outer", "task": ["inner"]})
    write_yaml(tmp_path / "inner.yaml", inner)
    before = identify(asking(tmp_path, ["outer"]), "1")["outer"]
    write_yaml(tmp_path / "inner.yaml", {**inner, "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]})
    assert name_of(identify(asking(tmp_path, ["outer"]), "1")["outer"]) != name_of(before)


def test_a_task_in_two_files_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "new")
    write_task(tmp_path / "old")
    with pytest.raises(ConfigError, match=r"new/tiny\.yaml and .*old/tiny\.yaml both define 'tiny'; rename one"):
        local_tasks(asking(tmp_path, ["tiny"]))


def test_figures_of_numpy_are_figures() -> None:
    results = {"results": {"tiny": {"acc,none": np.float32(0.5), "right,none": np.int64(3)}}, "higher_is_better": {}}
    found = figures_of({**results, "group_subtasks": {}}, "tiny")
    assert {name: each.value for name, each in found.items()} == {"acc": 0.5, "right": 3.0}


@pytest.mark.parametrize("place", ["folder[1]", "folder[1]/questions.jsonl"])
def test_a_data_set_in_a_local_folder_or_file_is_part_of_a_tasks_name(tmp_path: Path, place: str) -> None:
    (folder := tmp_path / "folder[1]").mkdir()
    write_questions(folder / "questions.jsonl", QUESTIONS)
    options = write_task(tmp_path / "tasks", dataset_path=str(tmp_path / place), dataset_kwargs={})
    before = name(options)
    write_questions(folder / "questions.jsonl", QUESTIONS[:2])
    assert name(options) != before
    assert questions_of("tiny", local_tasks(options)) is None, "which of them are asked is not known"


def test_data_of_every_format_of_datasets_is_part_of_a_tasks_name(tmp_path: Path) -> None:
    data = tmp_path / "questions.conll"
    changes = {"dataset_path": "conll", "dataset_kwargs": {"data_files": {"test": str(data)}}, "fewshot_split": None}
    options = write_task(tmp_path / "tasks", doc_to_text="{{tokens}}", **changes)
    names = set()
    for text in ("def O\n", "import O\n"):
        data.write_text(text)
        names.add(name(options))
    assert len(names) == 2
    data.unlink()
    with pytest.raises(ConfigError, match="which does not exist"):
        name(options)


def test_no_format_of_datasets_is_forgotten() -> None:
    elsewhere = {"harbor", "iceberg", "lance", "pandas"}  # read folders or catalogs, or are refused by `datasets`
    assert {*LOCAL_FORMATS} == _PACKAGED_DATASETS_MODULES.keys() - elsewhere


def test_a_tasks_questions_are_made_of_fields_of_the_files_that_it_asks(tmp_path: Path) -> None:
    options = write_task(tmp_path, doc_to_text="{{question}} {{hint}}")
    digest = digest_file(tmp_path / "questions.jsonl").sha256
    assert questions_of("tiny", local_tasks(options)) == {(digest, "question"), (digest, "hint")}
    (tmp_path / "tiny.yaml").rename(tmp_path / "whole")
    (tmp_path / "tiny.yaml").write_text("include: whole\ndoc_to_text: !function asked.ask\n")
    assert questions_of("tiny", local_tasks(options)) is None, "a function makes them"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "no folder"),
        (lambda folder: (folder / "tiny.yaml").unlink(), "no .yaml file below"),
        (lambda folder: (folder / "questions.jsonl").unlink(), "questions.jsonl', which does not exist"),
        (lambda folder: (folder / "tiny.yaml").write_text("task: [tiny"), "tiny.yaml is not an lm-eval task"),
        (lambda folder: (folder / "tiny.yaml").write_text("include: tiny.yaml"), "it includes itself"),
    ],
)
def test_files_that_are_missing_or_tell_no_task_are_refused(tmp_path: Path, spoil: object, said: str) -> None:
    options = write_task(tmp_path / "tasks")
    assert callable(spoil)
    spoil(tmp_path / "tasks")
    with pytest.raises(ConfigError, match=said):
        identify(options, "1")
