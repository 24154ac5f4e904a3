"""The questions of lm-eval's tasks are kept out of training, by the files that tell the tasks."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.curating import decide, job_on, kept_out, prose
from tests.trainer.evaluation.harness_tasks import TASK, write_questions, write_yaml
from trainer.common.errors import ConfigError, CorpusError, RecordError
from trainer.config.jobs import PrepareJob
from trainer.data.decisions import read_decisions
from trainer.store.storage import Store

ASKED, SOLVED, PASSAGE = (" ".join(prose(number, 30)) for number in (1000, 1001, 1002))


def write_task(folder: Path, name: str = "tiny", **changes: Any) -> str:
    """A task with a question to ask and a solved one; returns the path of its YAML file."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, question in (("test", ASKED), ("solved", SOLVED)):
        record = {"question": question, "passage": PASSAGE, "choices": ["yes", "no"], "answer": 0}
        write_questions(folder / f"{name}-{split}.jsonl", [record])
    files = {split: str(folder / f"{name}-{split}.jsonl") for split in ("test", "solved")}
    write_yaml(folder / f"{name}.yaml", {**TASK, "task": name, "dataset_kwargs": {"data_files": files}, **changes})
    return str(folder / f"{name}.yaml")


def job_of(folder: Path, *tasks: str) -> PrepareJob:
    """Three documents: one has the question that is asked, one the solved one, one the passage."""
    documents = [
        " ".join([*prose(number, 20), text]) for number, text in enumerate((ASKED, SOLVED, PASSAGE, "nothing"))
    ]
    return job_on(folder, documents, {"exact": None, "decontaminate": {"tasks": list(tasks)}})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0]),
        ({"doc_to_text": "{{passage}}\nQuestion: {{question}}"}, [0, 2]),
        ({"doc_to_decontamination_query": "passage"}, [2]),
        ({"test_split": "solved", "fewshot_split": "test"}, [1]),
    ],
)
def test_documents_with_what_a_task_asks_go(tmp_path: Path, changes: dict[str, Any], expected: list[int]) -> None:
    assert kept_out(job_of(tmp_path, write_task(tmp_path / "tasks", **changes))) == expected


def test_the_decisions_name_the_files_that_are_asked(tmp_path: Path) -> None:
    job = job_of(tmp_path, write_task(tmp_path / "tasks"))
    path = tmp_path / "tasks" / "tiny-test.jsonl"
    details = read_decisions(Store(job.store), decide(job).key).details
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert details["kept_out"]["files"] == [{"path": str(path), "field": "question", "sha256": digest}]


def test_a_group_stands_for_its_tasks(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "one")
    write_task(tmp_path / "tasks", "two", doc_to_text="passage")
    write_yaml(tmp_path / "tasks" / "both.yaml", {"group": "both", "task": ["one", "two"]})
    assert kept_out(job_of(tmp_path, str(tmp_path / "tasks" / "both.yaml"))) == [0, 2]
    write_yaml(tmp_path / "tasks" / "both.yaml", {"group": "both", "task": ["one", "arc_easy"]})
    with pytest.raises(ConfigError, match=r"both.yaml: it lists the task 'arc_easy', which no file beside it defines"):
        decide(job_of(tmp_path, str(tmp_path / "tasks" / "both.yaml")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"dataset_path": "owner/data"},
            r"task 'tiny' reads 'owner/data', expected one of json, csv, parquet, text",
        ),
        (
            {"dataset_kwargs": {"data_files": "x.jsonl", "field": "a"}},
            r"task 'tiny' reads its files with field; list its files",
        ),
        (
            {"dataset_kwargs": {"data_files": "none.jsonl"}},
            r"task 'tiny' \(.*tiny.yaml\) reads 'none.jsonl', which does not exist",
        ),
        ({"test_split": "held_out"}, r"task 'tiny' asks the split 'held_out', which has no file"),
        (
            {"doc_to_text": None},
            r"task 'tiny' builds its questions by a function or a prompt, or has none; list its files and fields",
        ),
        ({"doc_to_text": "{{ passage"}, r"the question of task 'tiny' is not a jinja2 template"),
        ({"task": None}, r"tiny.yaml defines no lm-eval task \(with the key `task` or `group`\)"),
    ],
)
def test_a_task_that_cannot_be_kept_out_is_refused_before_anything_is_measured(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"data.curation.decontaminate.tasks: .*{said}"):
        decide(job_of(tmp_path, write_task(tmp_path / "tasks", **changes)))
    assert not (tmp_path / "store" / "measures").exists()


def test_a_question_with_a_list_names_the_task_the_record_and_the_remedy(tmp_path: Path) -> None:
    path = write_task(tmp_path / "tasks", doc_to_text="{{question}}\nA. {{choices[0]}}")
    said = (
        f"^data.curation.decontaminate.tasks: {path}: {tmp_path}/tasks/tiny-test.jsonl: line 1: field 'choices' holds "
        "list, not text; list its files and fields in decontaminate.files$"
    )
    with pytest.raises(RecordError, match=said):
        decide(job_of(tmp_path, path))


def test_a_question_that_a_function_makes_is_refused(tmp_path: Path) -> None:
    path = Path(write_task(tmp_path / "tasks", doc_to_text="FUNCTION"))
    path.write_text(path.read_text().replace("FUNCTION", "!function making.question"))
    with pytest.raises(ConfigError, match=r"task 'tiny' builds its questions by a function"):
        decide(job_of(tmp_path, str(path)))


def test_a_field_that_no_record_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"tiny-test.jsonl.*story"):
        decide(job_of(tmp_path, write_task(tmp_path / "tasks", doc_to_text="{{story}}")))
