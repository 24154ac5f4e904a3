"""Runs of every kind on a GPU: they begin as on a processor, and killed and continued they end with the same bytes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.processes import finish
from tests.support import final_bytes, records, with_changes
from tests.trainer.kinds.test_killed_runs import JOBS, KILLED_AT, SHORT, base, course, measured, whole_and_killed, xlnet
from tests.trainer.small_jobs import OF_EACH_KIND, Job, lay_out, pretraining

__all__ = ["base", "xlnet"]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ON_GPU: dict[str, Job] = {
    **JOBS,
    "divided, packed": pretraining(**SHORT, training__sharding="fsdp", training__packing="best_fit"),
}

WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"training__precision": "bf16"},
    "bf16, compiled": {"training__precision": "bf16", "training__compile": True},
    "fp16": {"training__precision": "fp16"},
}

CASES = [
    *((kind, "bf16") for kind in ON_GPU),
    *((kind, way) for way in ("fp32", "fp16") for kind in OF_EACH_KIND),
    *((kind, "bf16, compiled") for kind in (*OF_EACH_KIND, "adapters", "muon", "masked", "documents")),
]

ALIKE = {"fp32": 1e-3, "bf16": 1e-2, "bf16, compiled": 1e-2, "fp16": 1e-2}
"""Share of the first step's loss by which another device or precision may part it."""


@pytest.fixture(scope="session")
def without_dropout(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without dropout, of which another device draws other numbers."""
    folder = tmp_path_factory.mktemp("models") / "without-dropout"
    shutil.copytree(pretrained, folder)
    config = json.loads((folder / "config.json").read_text())
    dropped = {name: 0.0 for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout")}
    assert dropped.keys() <= config.keys()
    (folder / "config.json").write_text(json.dumps({**config, **dropped}))
    return folder


def changed(job: Job, **changes: Any) -> Job:
    return lambda ask, store: with_changes(job(ask, store), changes)


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_it_begins_as_on_a_processor_and_killed_it_ends_with_the_same_bytes(
    kind: str, way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def ask(fixture: str) -> Any:
        return request.getfixturevalue("without_dropout" if fixture == "pretrained" else fixture)

    plain = changed(ON_GPU[kind], training__device="cpu")
    finish(tmp_path / "said-cpu", lay_out(plain, ask, tmp_path / "cpu"))
    job = changed(ON_GPU[kind], training__device="gpu", training__deterministic=True, **WAYS[way])
    whole, killed = whole_and_killed(job, ask, tmp_path, KILLED_AT.get(kind, (8,)))
    assert final_bytes(whole) == final_bytes(killed)
    assert course(whole) == course(killed)
    assert measured(whole) == measured(killed)
    (there, *_), (here, *_) = records(tmp_path / "cpu" / "store", "train"), records(whole, "train")
    assert here["loss"] == pytest.approx(there["loss"], rel=ALIKE[way])
