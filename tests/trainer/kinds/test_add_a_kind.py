"""A kind that is added as docs/how-to/add-a-kind.md says goes the whole way of any other."""

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.docs.pages import DOCS, blocks
from tests.processes import Ended, Running, start_module
from tests.support import final_bytes, only_run, records, steps_recorded, write_config, write_rows
from tests.trainer.chats import chat_model

pytestmark = [pytest.mark.deep, pytest.mark.slow]

PAGE = DOCS / "how-to" / "add-a-kind.md"
TABLE = "trainer/config/kinds.py"
MOST_LINES = 150


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project to which the page's folder is added, and its line."""
    copy = tmp_path_factory.mktemp("project")
    for package in ("flows", "tasks", "trainer"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks("python", PAGE):
        path = copy / block.title
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    (line,) = (block.text for block in blocks("text", PAGE) if block.title == TABLE)
    before, end, after = (copy / TABLE).read_text(encoding="utf-8").partition("\n)\n\n\ndef marked(")
    assert "KINDS = (" in before and end
    (copy / TABLE).write_text(f"{before}\n{line.rstrip()}{end}{after}", encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, and a model to tune on them."""
    folder = tmp_path_factory.mktemp("pairs")
    chat_model(folder / "model")
    numbers = random.Random(0)

    def pair() -> dict[str, str]:
        one, other = numbers.randint(1, 9), numbers.randint(1, 9)
        # The longer answer is the chosen one, which a new model finds less likely.
        chosen, rejected = f"The product of both is {one * other}.", f"It is {one * other}."
        return {"prompt": f"What is {one} times {other}?", "chosen": chosen, "rejected": rejected}

    for name, count in (("train", 80), ("test", 12)):
        write_rows(folder / f"{name}.jsonl", [pair() for _ in range(count)])
    return folder


def values(place: Path, store: Path, **training: Any) -> dict[str, Any]:
    files = {split: [f"{place}/{split}.jsonl"] for split in ("train", "test")}
    asked = {"epochs": 6, "global_batch": 8, "learning_rate": 5e-3, "log_every": 1, "save_every": 2, **training}
    return {
        "store": str(store), "data": {"task": "ranking", "source": "jsonl", "context": 64, **files},
        "model": {"pretrained": str(place / "model")}, "training": asked,
        "promotion": {"name": "ranker", "metric": "accuracy", "threshold": 0.1},
    }  # fmt: skip


def start(project: Path, said: Path, module: str, *words: object) -> Running:
    return start_module(said, module, *words, env={"PYTHONDONTWRITEBYTECODE": "1"}, folder=project)


def headrace(project: Path, said: Path, *words: object) -> Ended:
    ended = start(project, said, "flows.command", *words).wait()
    assert ended.status == 0, ended.stderr
    return ended


def test_the_page_is_all_of_a_small_kind() -> None:
    texts = [block.text for block in blocks("python", PAGE)]
    assert sum(text.count("\n") for text in texts) < MOST_LINES


def test_a_kind_that_is_added_as_the_page_says_goes_the_whole_way(project: Path, place: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    configs = {store: write_config(tmp_path / f"{store.name}.yaml", values(place, store)) for store in (whole, killed)}
    ended = start(project, tmp_path / "said-1", "trainer", configs[whole]).wait()
    assert ended.status == 0, ended.stderr
    first = start(project, tmp_path / "said-2", "trainer", configs[killed])
    assert first.send_when(signal.SIGKILL, lambda: steps_recorded(killed) >= 11).status == -signal.SIGKILL
    ended = start(project, tmp_path / "said-3", "trainer", configs[killed]).wait()
    assert ended.status == 0 and "continuing from" in ended.stderr, ended.stderr
    run = only_run(whole)
    name = Path(run).name
    assert only_run(killed) == run and final_bytes(killed) == final_bytes(whole)

    measured = json.loads((whole / run / "eval.json").read_text())
    assert json.loads((killed / run / "eval.json").read_text())["groups"] == measured["groups"]
    assert set(measured["groups"]) == {"validation", "test"} and measured["by"] == "split"
    before = next(each for each in records(whole, "evaluation") if each["step"] == 0)
    assert before["accuracy"] < 0.1 and measured["groups"]["test"]["figures"]["accuracy"] > 0.9
    assert "gate passed: accuracy" in ended.stdout
    page, card = ((whole / run / name).read_text() for name in ("report.html", "final/README.md"))
    assert "nats a pair" in page and "A ranking model" in card

    told = headrace(project, tmp_path / "said-4", "explain", configs[whole], "--json").stdout
    assert [stage["verdict"] for stage in json.loads(told)] == ["reused"] * 4
    os.remove(whole / run / "eval.json")
    ended = start(project, tmp_path / "said-5", "trainer", configs[whole]).wait()
    assert ended.status == 0, ended.stderr
    assert json.loads((whole / run / "eval.json").read_text())["groups"] == measured["groups"]

    other = write_config(tmp_path / "other.yaml", values(place, whole, epochs=1))
    planned = json.loads(headrace(project, tmp_path / "said-6", "finetune", other, "--dry-run", "--json").stdout)
    assert planned["plan"]["examples"] == planned["splits"]["train"] > 50
    assert start(project, tmp_path / "said-7", "trainer", other).wait().status == 0
    (second,) = {path.name for path in (whole / "runs").iterdir()} - {name}
    listed = headrace(project, tmp_path / "said-8", "list", whole).stdout
    assert listed.count("ranking") >= 2 and second in listed
    compared = headrace(project, tmp_path / "said-9", "compare", whole, name, second).stdout
    assert "loss in nats a pair" in compared and "accuracy, test" in compared and "training.epochs" in compared

    promoted = headrace(project, tmp_path / "said-10", "promote", f"store={whole}", "name=ranker", f"run={name}")
    assert f"runs/{name}" in promoted.stdout
    lineage = headrace(project, tmp_path / "said-11", "lineage", whole, Path(run).name).stdout
    assert "encoded set" in lineage and "promote at" in lineage
    shutil.copytree(next((whole / "encoded").iterdir()), whole / "encoded" / "ranking-0123456789abcdef")
    headrace(project, tmp_path / "said-12", "gc", whole, "--older-than", 0, "--runs-older-than", 0, "--remove")
    assert [path.name for path in (whole / "runs").iterdir()] == [name]
    assert len(list((whole / "encoded").iterdir())) == 1
