"""A bucket as the store of a cluster whose nodes have no credentials: the stage sends its own with the work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Nodes, environment, prepare, run
from tests.s3 import S3Server, s3_server
from tests.support import data_values, final_bytes, small_values
from trainer.store.names import FINAL
from trainer.store.storage import Store

SETTINGS: dict[str, Any] = {"training__max_steps": 12, "training__save_every": 4, "training__processes": 2}


@pytest.fixture
def server(nodes: Nodes, tmp_path: Path) -> Iterator[S3Server]:
    """A server that was started after the nodes and is unknown in their environment."""
    with s3_server(tmp_path) as server:
        yield server


@pytest.fixture
def foreign() -> Iterator[Nodes]:
    """Nodes that were started with a profile and an endpoint of their own."""
    with environment(AWS_PROFILE="of-another", AWS_ENDPOINT_URL_S3="http://127.0.0.1:9"):
        nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.end()


def test_credentials_of_a_node_are_not_mixed_with_those_of_the_stage(foreign: Nodes, raw: Path, tmp_path: Path) -> None:
    with s3_server(tmp_path) as server:
        job = {**data_values(small_values(raw, server.new_store())), "engine": foreign.engine()}
        assert len(prepare(job)["shards"]) == 2


def test_a_run_in_a_bucket_is_that_in_a_folder(
    nodes: Nodes, server: S3Server, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    here = small_values(raw, tmp_path / "here", **SETTINGS)
    run("train", {"job": here, "data": prepare(here)}, ranks=2)
    there = {**small_values(raw, server.new_store(), **SETTINGS), "engine": nodes.engine()}
    made, _ = run("train", {"job": there, "data": prepare(there)}, ranks=2, on=nodes.engine())
    assert Store(there["store"]).read_bytes(f"{made['key']}/{FINAL}/model.safetensors") == final_bytes(
        tmp_path / "here"
    )
