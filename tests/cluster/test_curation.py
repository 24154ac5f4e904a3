"""Curation decisions by tasks on a cluster."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Nodes, run
from tests.support import data_values, digests, small_values
from tests.trainer.curating import reasons_of
from trainer.common.errors import PipelineError
from trainer.config.jobs import PrepareJob


def job_of(raw: Path, store: Path, curation: dict[str, Any], **engine: Any) -> dict[str, Any]:
    return {**data_values(small_values(raw, store, data__curation=curation)), **engine}


def test_a_cluster_decides_as_this_machine_does(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    decided = []
    for store, engine in ((tmp_path / "here", {}), (tmp_path / "there", {"engine": nodes.engine()})):
        job = job_of(raw, store, {"near": {}, "filters": [{"kind": "gopher_repetition"}]}, **engine)
        made, _ = run("curate", {"job": job})
        decided.append({name: digest for name, digest in digests(store / made["key"]).items() if name.endswith(".npz")})
    assert decided[0] == decided[1] != {}


JUDGE = "from words_of_mine import PARTS\n\n\ndef judge(text):\n    return {}len(text) % PARTS\n"


def test_tasks_find_a_function_in_the_folder_that_the_command_is_started_from(
    nodes: Nodes, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function's file is in no folder that the nodes know; the next command uses a changed file."""
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    Path("words_of_mine.py").write_text("PARTS = 2\n")
    # Drops texts of odd length.
    curation = {"filters": [{"kind": "function", "function": "filters_of_mine:judge"}]}
    decided = []
    for negated in ("", "not "):
        Path("filters_of_mine.py").write_text(JUDGE.format(negated))
        job = job_of(raw, tmp_path / "there", curation, engine=nodes.engine())
        made, _ = run("curate", {"job": job})
        here, _ = run("curate", {"job": job_of(raw, tmp_path / f"here{negated}", curation)})
        assert made["key"] == here["key"]
        folders = (tmp_path / "there" / made["key"], tmp_path / f"here{negated}" / here["key"])
        there, local = ({k: v for k, v in digests(folder).items() if k.endswith(".npz")} for folder in folders)
        assert there == local
        corpus = job["data"]["corpora"][0]["name"]
        decided.append([reason == "kept" for reason in reasons_of(PrepareJob.model_validate(job), made["key"], corpus)])
    assert decided[0] == [not kept for kept in decided[1]] and True in decided[0] and False in decided[0]


def test_a_document_that_a_function_raises_for_on_a_node_is_named(
    nodes: Nodes, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("raising_of_mine.py").write_text("def judge(text):\n    return 1 / 0\n")
    curation = {"filters": [{"kind": "function", "function": "raising_of_mine:judge"}]}
    with pytest.raises(PipelineError, match=r"#1: raising_of_mine:judge raised ZeroDivisionError"):
        run("curate", {"job": job_of(raw, tmp_path / "store", curation, engine=nodes.engine())})
