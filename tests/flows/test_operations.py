"""All operations on a real Prefect server with a real Postgres, a worker, and a webhook's receiver."""

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.flows.conftest import SETTINGS, copy_data
from tests.flows.local_stack import Local
from tests.http_server import Answering
from tests.processes import alive, free_port, start_module, wait_until
from tests.support import data_values, digests, small_values, steps_recorded, write_config
from trainer.config.files import parse_yaml
from trainer.registry.promotion import find_champion
from trainer.store.storage import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE = 240.0
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Receiver:
    """A webhook's receiver, which stores the messages."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        told = self.told

        class Handler(Answering):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer(204)

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self) -> list[str]:
        return [each["event"] for each in self.told]


class Operated(Local):
    """A stack with all options, and the receiver of its notifications."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        super().__init__(folder, DB="postgres", PGPORT=str(free_port()))
        self.receiver = receiver

    def make_webhook(self, name: str) -> None:
        """Create a Webhook block, as a person does in the UI."""
        code = f"from prefect.blocks.webhook import Webhook; Webhook(url={self.receiver.url!r}).save({name!r})"
        assert self.python("-c", code, PREFECT_API_URL=self.address).returncode == 0

    def run(self, deployment: str, job: dict[str, Any]) -> str:
        """`prefect deployment run`; returns the flow run's id."""
        said = self.prefect("deployment", "run", deployment, "-p", f"job={json.dumps(job)}")
        assert said.returncode == 0, said.stdout + said.stderr
        return next(word for word in said.stdout.split() if word.count("-") == 4 and len(word) == 36)

    def state(self, flow_run: str) -> str:
        return str(self.ask("GET", f"flow_runs/{flow_run}")["state_type"])

    def wait(self, flow_run: str, state: str = "COMPLETED") -> None:
        wait_until(lambda: self.state(flow_run) in ENDED, PATIENCE)
        assert self.state(flow_run) == state, self.log(flow_run)

    def log(self, flow_run: str) -> str:
        """All lines of a flow run, as the UI shows them."""
        found = self.post("logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"})
        return "\n".join(each["message"] for each in found)


@pytest.fixture(scope="module")
def stack() -> Iterator[Operated]:
    # Not below pytest's folder, which nobody else may look into: Postgres has an account of its own where root runs the
    # tests.
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        os.chmod(name, 0o755)
        stack = Operated(Path(name), Receiver())
        try:
            stack.say("up")
            stack.make_webhook("ops")
            stack.say("up", NOTIFY="ops")
            yield stack
        finally:
            stack.say("down")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operated") / "store"


def values(raw: Path, store: Path, name: str, **changes: Any) -> dict[str, Any]:
    return {**small_values(raw, store, **{**SETTINGS, **changes}), "run": name}


def endless(raw: Path, store: Path, name: str) -> dict[str, Any]:
    return values(raw, store, name, training__max_steps=100_000, training__save_every=None)


def test_everything_is_deployed_and_kept_in_postgres(stack: Operated) -> None:
    deployed = parse_yaml((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    assert stack.names("deployments") == sorted(each["name"] for each in deployed)
    assert len(stack.names("automations")) == 5
    assert {"headrace-devices", "headrace-tokenization"} <= set(stack.names("v2/concurrency_limits"))
    assert stack.names("variables") == ["headrace_credentials"]
    assert not list(stack.home.glob("*.db")), "no SQLite beside it"


def test_a_run_by_command_line_makes_a_champion(stack: Operated, raw: Path, store: Path) -> None:
    gate = {"promotion": {"name": "lm", "threshold": 99.0}}
    flow_run = stack.run("data-to-model/pretrain", {**values(raw, store, "first"), **gate})
    stack.wait(flow_run)
    champion = find_champion(Store(str(store)), "lm")
    assert champion is not None and champion.run == "runs/first"
    assert (store / "runs/first/report.html").exists()
    # The trainer's lines reach the UI; the last ones are sent as the flow's process ends, after its state is reported.
    wait_until(lambda: "step 40: validation loss" in stack.log(flow_run), PATIENCE)


def test_a_gate_that_is_not_met_and_a_failed_run_call_the_webhook(stack: Operated, raw: Path, store: Path) -> None:
    gate = {"promotion": {"name": "lm", "threshold": 0.001}}
    stack.wait(stack.run("data-to-model/pretrain", {**values(raw, store, "second"), **gate}))
    wait_until(lambda: "headrace.gate-not-met" in stack.receiver.events(), PATIENCE)
    (told,) = (each for each in stack.receiver.told if each["event"] == "headrace.gate-not-met")
    assert told["run"] == "runs/second" and "0.001" in told["text"] and told["store"] == str(store)

    lost = values(raw, store, "third")
    lost["data"]["corpora"][0]["paths"] = [str(raw / "nothing" / "*.py")]
    failed = stack.run("data-to-model/pretrain", lost)
    stack.wait(failed, "FAILED")
    wait_until(lambda: "prefect.flow-run.Failed" in stack.receiver.events(), PATIENCE)
    (told,) = (each for each in stack.receiver.told if each["event"] == "prefect.flow-run.Failed")
    assert told["flow_run"] == failed and "nothing" in told["text"] and failed in told["url"]


def test_a_schedule_starts_runs(stack: Operated, raw: Path, store: Path) -> None:
    (deployment,) = (each for each in stack.post("deployments/filter", {}) if each["name"] == "prepare")
    assert [schedule["active"] for schedule in deployment["schedules"]] == [False], "off by default"
    job = {name: value for name, value in values(raw, store, "nightly").items() if name in ("store", "data")}
    schedule = {"schedule": {"interval": 30}, "active": True, "parameters": {"job": job | {"name": "nightly"}}}
    (made,) = stack.post(f"deployments/{deployment['id']}/schedules", [schedule])

    def runs() -> list[dict[str, Any]]:
        asked = {
            "flow_runs": {"deployment_id": {"any_": [deployment["id"]]}, "state": {"type": {"any_": ["COMPLETED"]}}}
        }
        found: list[dict[str, Any]] = stack.post("flow_runs/filter", asked)
        return found

    wait_until(lambda: runs() != [], PATIENCE)
    assert all(run["auto_scheduled"] for run in runs())
    stack.ask("DELETE", f"deployments/{deployment['id']}/schedules/{made['id']}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda job: job["training"].update(learning_rate=-1.0), "job.training.learning_rate"),
        (lambda job: job["training"].update(lerning_rate=1.0), "job.training'. Failure reason: Additional properties"),
        (lambda job: job["data"]["corpora"][0].update(format="doc"), "job.data.corpora[0].format"),
        (lambda job: job.pop("model"), "'model' is a required property"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(
    stack: Operated, raw: Path, store: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    job = values(raw, store, "wrong")
    change(job)
    before = stack.post("flow_runs/count", {})
    refused = stack.prefect("deployment", "run", "data-to-model/pretrain", "-p", f"job={json.dumps(job)}")
    lines = (refused.stdout + refused.stderr).split()
    assert refused.returncode != 0 and said in " ".join(lines), "the field's path, however the lines are broken"
    assert stack.post("flow_runs/count", {}) == before


def test_two_trainings_take_turns_and_a_cancel_gives_the_turn_on(
    stack: Operated, raw: Path, store: Path, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first = stack.run("train-model/train", endless(raw, copy_data(store, one), "one"))
    wait_until(lambda: steps_recorded(one) > 5, PATIENCE)
    config = write_config(tmp_path / "other.yaml", values(raw, copy_data(store, other), "other"))
    env = {**stack.env, "PREFECT_API_URL": stack.address}
    ad_hoc = start_module(tmp_path / "said", "flows.train_model", config, env=env)
    wait_until(lambda: "waiting for a turn" in "".join(ad_hoc.output()), PATIENCE)
    at = steps_recorded(one)
    wait_until(lambda: steps_recorded(one) > at + 50, PATIENCE)
    assert ad_hoc.status() is None and not (other / "runs").exists()

    stack.prefect("flow-run", "cancel", first)
    wait_until(lambda: stack.state(first) == "CANCELLED", PATIENCE)
    assert json.loads((one / "runs/one/checkpoint-last").read_text())["step"] > at
    wait_until(lambda: ad_hoc.status() is not None, PATIENCE)
    assert ad_hoc.status() == 0, ad_hoc.output()
    assert (other / "runs/other/final/manifest.json").exists()


def test_a_worker_that_is_killed_and_started_again_runs_what_comes_next(
    stack: Operated, raw: Path, store: Path
) -> None:
    worker = stack.worker()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), PATIENCE)
    flow_run = stack.run(
        "evaluate-model/evaluate", {"store": str(store), "checkpoint": "first", "evaluation": {"new_tokens": 4}}
    )
    time.sleep(5)
    assert stack.state(flow_run) == "SCHEDULED"
    stack.say("up", NOTIFY="ops")
    assert stack.worker() != worker
    stack.wait(flow_run)


def test_the_champion_is_moved_and_rolled_back(stack: Operated, store: Path) -> None:
    stack.wait(stack.run("promote/promote", {"store": str(store), "name": "lm", "run": "second", "reason": "by hand"}))
    champion = find_champion(Store(str(store)), "lm")
    assert champion is not None and champion.run == "runs/second"
    stack.wait(stack.run("rollback/rollback", {"store": str(store), "name": "lm", "reason": "worse in use"}))
    champion = find_champion(Store(str(store)), "lm")
    assert champion is not None and champion.run == "runs/first"


def test_garbage_is_removed_and_all_that_is_reached_stays(stack: Operated, raw: Path, store: Path) -> None:
    def artifacts() -> dict[str, str]:
        return digests(store, "runs", "models", "shards", "tokenizers")

    def prepare(vocab_size: int) -> dict[str, str]:
        before, job = artifacts(), values(raw, store, "unused", data__tokenizer__vocab_size=vocab_size)
        stack.wait(stack.run("prepare-data/prepare", data_values(job)))
        return dict(artifacts().items() - before.items())

    reached = artifacts()
    unused, newest = prepare(300), prepare(310)
    assert unused and newest, "the newest set of a corpus stays, for the next preparation"
    flow_run = stack.run("gc/collect-garbage", {"store": str(store), "older_than_days": 0})
    stack.wait(flow_run)
    assert artifacts() == {**reached, **unused, **newest}, "a dry run by default"
    stack.wait(stack.run("gc/collect-garbage", {"store": str(store), "older_than_days": 0, "remove": True}))
    assert artifacts() == {**reached, **newest}
