"""A real Prefect server and process worker with all flows deployed, and functions to start and kill them."""

import asyncio
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.base import PrefectHttpxSyncClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, Log
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Pending, Submitting

from deployments.local import UNLESS_SET, own_path
from tests import ROOT
from tests.processes import Running, command_line, descendants, free_port, kill_all, start_module, wait_until

REGISTER = """
import sys
from deployments.registration import register
from prefect.client.base import PrefectHttpxSyncClient
client = PrefectHttpxSyncClient(base_url=sys.argv[1], timeout=60, raise_on_all_errors=False)
register(client, None, None, {"on": True, "off": False, "": None}[sys.argv[2]])
"""


class Serving:
    """A server with its own database, and a worker, each on a number of cores; `address` is the API's."""

    def __init__(self, folder: Path, cores: int = 1) -> None:
        self._folder, self._cores, self._port, self._started = folder, cores, free_port(), 0
        self.address = f"http://127.0.0.1:{self._port}/api"
        self.env = {
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_API_URL": self.address,
            "PATH": own_path(),
            **UNLESS_SET,
        }
        self.server: Running
        self.worker: Running
        self.start_server()

    def start_server(self) -> None:
        """Start the server and wait until it answers."""
        self.server = self._start("prefect", "server", "start", "--host", "127.0.0.1", "--port", self._port)
        wait_until(self._answers)

    def kill_server(self) -> None:
        """Kill the server, like a power cut."""
        self._kill(self.server)

    def start_worker(self) -> None:
        """Start a worker on the pool; its flows use the same cores."""
        self.worker = self._start("prefect", "worker", "start", "--pool", "local", "--type", "process")

    def deploy(self, by_hand: bool, schedules: str = "") -> None:
        """Create the work pool, all deployments and the automations, as `headrace up` with these `SCHEDULES`, or by the
        documented commands.
        """
        prefect = ["-m", "prefect", "--no-prompt"]
        documented = [
            [*prefect, "work-pool", "create", "--type", "process", "local"],
            [*prefect, "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"],
            [*prefect, "automation", "create", "--from-file", "deployments/automations.yaml"],
        ]
        for command in documented if by_hand else [["-c", REGISTER, self.address, schedules]]:
            said = subprocess.run(
                [sys.executable, *command],
                cwd=ROOT, env={**os.environ, **self.env}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert said.returncode == 0, said.stdout + said.stderr

    def run(self, deployment: str, job: dict[str, Any], after: timedelta = timedelta()) -> UUID:
        """Schedule a flow run, as `prefect deployment run` does."""
        with temporary_settings({PREFECT_API_URL: self.address}):
            due = datetime.now(UTC) + after
            started = run_deployment(deployment, parameters={"job": job}, timeout=0, scheduled_time=due)
            assert isinstance(started, FlowRun)
            return started.id

    def take(self, flow_run: UUID) -> None:
        """Take a flow run like a worker that is about to start it."""
        with temporary_settings({PREFECT_API_URL: self.address}), get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run, Pending(), force=True)
            client.set_flow_run_state(flow_run, Submitting())

    def set_patience(self, automation: str, seconds: float) -> None:
        """Set the seconds for which an automation waits."""
        with PrefectHttpxSyncClient(base_url=self.address, timeout=60) as client:  # asks a busy server again
            (found,) = [
                each for each in client.post("/automations/filter", json={}).json() if each["name"] == automation
            ]
            given = {name: found[name] for name in ("name", "description", "enabled", "actions")}
            changed = {**given, "trigger": {**found["trigger"], "within": seconds}}
            client.put(f"/automations/{found['id']}", json=changed).raise_for_status()

    def cancel(self, flow_run: UUID) -> None:
        """Cancel a flow run like the button in the UI."""
        with temporary_settings({PREFECT_API_URL: self.address}), get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run, Cancelling())

    def look(self, flow_run: UUID) -> FlowRun:
        """The flow run on the server."""
        with temporary_settings({PREFECT_API_URL: self.address}), get_client(sync_client=True) as client:
            return client.read_flow_run(flow_run)

    def log_of(self, flow_run: UUID) -> list[Log]:
        """Its log as shown in the UI, once it has arrived."""
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run]))

        async def read() -> list[Log]:
            async with get_client() as client:
                return await client.read_logs(wanted)

        with temporary_settings({PREFECT_API_URL: self.address}):
            wait_until(
                lambda: any("terminated" in line.message or "cancelled" in line.message for line in asyncio.run(read()))
            )
            return asyncio.run(read())

    def state_of(self, flow_run: UUID) -> str:
        """The type of its state."""
        state = self.look(flow_run).state
        return state.type.value if state else "NONE"

    def processes(self, named: str) -> list[int]:
        """The worker's live descendants whose command line contains a text."""
        return [pid for pid in descendants(self.worker.pid) if named in command_line(pid)]

    def stop(self) -> None:
        """End everything."""
        for running in (self.worker, self.server):
            self._kill(running)

    def _kill(self, running: Running) -> None:
        kill_all(running.pid)
        running.wait()

    def _start(self, module: str, *arguments: object) -> Running:
        self._started += 1
        said = self._folder / f"said-{self._started}"
        return start_module(said, module, *arguments, env=self.env, count=self._cores)

    def _answers(self) -> bool:
        assert self.server.status() is None, self.server.wait()
        with suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=1) as answer:
            return bool(answer.status == 200)
        return False


@contextmanager
def serving(folder: Path, by_hand: bool = False, cores: int = 1) -> Iterator[Serving]:
    """A server with everything deployed and a worker, during the block."""
    found = Serving(folder, cores)
    try:
        found.deploy(by_hand)
        found.start_worker()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server and worker shared by a file's tests."""
    with serving(tmp_path_factory.mktemp("serving")) as found:
        yield found
