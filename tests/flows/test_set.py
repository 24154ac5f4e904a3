"""One changed value of a deployment's job: `prefect deployment run NAME -p 'set=["training.max_steps=9"]'`."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow
from prefect.utilities.schema_tools.validation import validate

from flows.train_model import train_model
from tests import ROOT
from tests.flows.conftest import Done, copy_data
from tests.processes import cores
from tests.support import only_run
from trainer.common.errors import ConfigError
from trainer.records.sealed import require_sealed
from trainer.store.names import CONFIG, PLAN
from trainer.store.storage import Store

DEPLOYED = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]


def flow_at(entrypoint: str) -> Flow[..., Any]:
    module, _, name = entrypoint.rpartition(".")
    found: Flow[..., Any] = getattr(importlib.import_module(module), name)
    return found


@pytest.fixture
def deployment(done: Done, tmp_path: Path) -> Path:
    """The store of the deployment `train-model/set`, with prepared data and without a run."""
    store = copy_data(done.store, tmp_path / "store")
    job = {**done.job.model_dump(mode="json", exclude_unset=True), "store": str(store)}
    train_model.to_deployment("set", parameters={"job": job}).apply()
    return store


def deployment_run(server: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = ["deployment", "run", "train-model/set", "-p", f"set={json.dumps(words)}"]
    env = {**os.environ, **server}
    return subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *command], env=env, capture_output=True, text=True, check=False
    )


def scheduled(server: dict[str, str], *words: str) -> FlowRun:
    """The flow run created by the command line."""
    said = deployment_run(server, *words)
    assert said.returncode == 0, said.stdout + said.stderr
    made = next(word for word in said.stdout.split() if word.count("-") == 4 and len(word) == 36)
    with get_client(sync_client=True) as client:
        return client.read_flow_run(made)


def test_every_deployment_of_a_job_has_it_on_its_form() -> None:
    forms = {each["flow_name"]: flow_at(each["entrypoint"]).parameters for each in DEPLOYED}
    with_job = {name: form.properties for name, form in forms.items() if "job" in form.properties}
    assert with_job.keys() == forms.keys() - {"watchdog"} and len(with_job) > 7
    for properties in with_job.values():
        assert properties["set"]["type"] == "array" and properties["set"]["default"] == []
        assert properties["set"]["items"]["description"] == "key=value, such as training.max_steps=100"


@pytest.mark.deep
def test_a_changed_value_is_trained_with(server: dict[str, str], deployment: Path) -> None:
    made = scheduled(server, "training.max_steps=3", "training.evaluate_every=null")
    assert made.parameters["job"]["training"]["max_steps"] == 40 and made.parameters["set"][0] == "training.max_steps=3"
    with cores(1):
        run_flow(train_model, made, parameters=made.parameters)
    store, run = Store(str(deployment)), only_run(deployment)
    assert require_sealed(store, f"{run}/{PLAN}")["total_steps"] == 3
    trained = require_sealed(store, f"{run}/{CONFIG}")["job"]["training"]
    assert (trained["max_steps"], trained["evaluate_every"], trained["save_every"]) == (3, None, 1)


def test_a_bad_value_is_refused_by_its_path_before_anything_is_done(
    deployment: Path, caplog: pytest.LogCaptureFixture
) -> None:
    word, said = "training.learning_rate=-1", "training.learning_rate: expected more than 0, found -1"
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name("train-model/set")
        made = client.create_flow_run_from_deployment(found.id, parameters={**found.parameters, "set": [word]})
    with pytest.raises(ConfigError) as refusal:
        run_flow(train_model, made, parameters=made.parameters)
    assert word in str(refusal.value) and said in str(refusal.value)
    assert not [record for record in caplog.records if record.exc_info], "the message says all"
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(made.id).state
        assert state is not None and state.is_failed() and said in str(state.message)
    assert not (deployment / "runs").exists()


REFUSED = ["training.max_stps=3", "training.max_steps", "=3", "data.corpora.0.nam=a", "data.corpora.x.name=a"]


def test_a_word_that_names_no_setting_is_refused_when_the_run_is_made(server: dict[str, str], deployment: Path) -> None:
    said = deployment_run(server, "training.max_steps=3", REFUSED[0])
    assert said.returncode != 0
    told = "".join((said.stdout + said.stderr).split())
    assert f"'set[1]'.Failurereason:'{REFUSED[0]}'isnotoneof['KEY=VALUE,whereKEYisasettingofthejob" in told


@pytest.mark.parametrize("word", REFUSED)
def test_a_word_that_names_no_setting_does_not_fit_the_form(word: str) -> None:
    (error,) = validate({"job": {}, "set": ["training.max_steps=3", word]}, form())
    assert error.json_path == "$.set[1]"
    assert error.message.startswith(f"'{word}' is not one of ['KEY=VALUE, where KEY is a setting of the job")


@pytest.mark.parametrize(
    "word", ["training={}", "promotion=null", "data.corpora.1.name=a", "model.config.n_layer=3", "engine.kind=ray"]
)
def test_a_word_that_names_a_setting_fits_the_form(word: str) -> None:
    assert validate({"job": {}, "set": [word]}, form()) == []


def form() -> dict[str, Any]:
    """The form of `set` only."""
    whole = train_model.parameters.model_dump()
    return {**whole, "properties": {"set": whole["properties"]["set"]}}


def test_words_come_before_the_job_on_the_form() -> None:
    places = train_model.parameters.properties
    assert places["set"]["position"] < places["job"]["position"]
