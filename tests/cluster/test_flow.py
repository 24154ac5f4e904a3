"""A whole pipeline on a cluster, run by the flow: its results are the same as on one machine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.data_to_model import data_to_model
from flows.finetune import finetune
from tests.cluster.nodes import Nodes, content
from tests.prefect_server import prefect_server
from tests.processes import cores
from tests.support import small_job
from tests.trainer.chats import chat_model
from tests.trainer.labelled_pairs import finetune_values, write_pairs
from tests.trainer.preferences import preference_values, write_preferences
from trainer.config.files import validate_job
from trainer.config.labelled import FinetuneJob
from trainer.kinds.preference.job import PreferenceJob
from trainer.records.sealed import read_sealed
from trainer.store.storage import Store

SETTINGS: dict[str, Any] = {"training__max_steps": 12, "training__processes": 2}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """A Prefect server."""
    with prefect_server():
        yield


@pytest.fixture(scope="module")
def here(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the pipeline without a cluster; read-only."""
    store = tmp_path_factory.mktemp("here")
    with cores(2):
        data_to_model(small_job(raw, store, **SETTINGS))
    return store


def figures(store: Path, run: str) -> Any:
    found = read_sealed(Store(str(store)), f"{run}/eval.json")
    assert found is not None
    return found["groups"], found["samples"], found["measured_on"]


def test_a_pipeline_makes_on_a_cluster_what_it_makes_here(nodes: Nodes, raw: Path, here: Path, tmp_path: Path) -> None:
    job = small_job(raw, tmp_path, **SETTINGS, engine=nodes.engine())
    outcome = data_to_model(job)
    assert content(tmp_path) == content(here) != {}
    assert figures(tmp_path, outcome.run) == figures(here, outcome.run)


def classes(folder: Path, store: Path, here: Path) -> dict[str, Any]:
    (run,) = (here / "runs").iterdir()
    return finetune_values(write_pairs(folder / "pairs"), store, run / "final", training__processes=2)


def preferences(folder: Path, store: Path, here: Path) -> dict[str, Any]:
    pairs, model = write_preferences(folder / "preferences"), chat_model(folder / "model")
    return preference_values(pairs, store, model, training__processes=2)


@pytest.mark.parametrize(("kind", "values"), [(FinetuneJob, classes), (PreferenceJob, preferences)])
def test_a_tuned_model_is_the_same_too(
    nodes: Nodes,
    here: Path,
    tmp_path: Path,
    kind: type[FinetuneJob | PreferenceJob],
    values: Callable[[Path, Path, Path], dict[str, Any]],
) -> None:
    made = {}
    for name, engine in (("here", {"kind": "local"}), ("there", nodes.engine())):
        job = validate_job(kind, {**values(tmp_path, tmp_path / name, here), "engine": engine}, "test")
        outcome = finetune(job)
        endings = (".arrow", ".npy", ".safetensors", ".jsonl")
        made[name] = {path: raw for path, raw in content(tmp_path / name, endings).items() if "metrics" not in path}
        assert outcome.evaluation is not None and outcome.evaluation.groups
    assert made["here"] == made["there"] != {}
