"""Run the quickstart in a separate folder with a Prefect server and a worker, as `make up` starts them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from docs.screenshots.browser import NoPicture


class Shown(NamedTuple):
    """The UI's address, the flow run in it, and the run's folder in the store."""

    ui: str
    flow_run: UUID
    run: Path

    def artifact(self, key: str) -> str:
        """The UI's address of an artifact of the flow run."""
        wanted = {"artifacts": {"flow_run_id": {"any_": [str(self.flow_run)]}, "key": {"any_": [key]}}}
        (found,) = httpx.post(f"{self.ui}/api/artifacts/filter", json=wanted, timeout=60).raise_for_status().json()
        return f"{self.ui}/artifacts/artifact/{found['id']}"


@contextmanager
def quickstart(folder: Path, port: int, words: list[str]) -> Iterator[Shown]:
    """Run the quickstart with settings overridden by `words`, and keep its server up during the block.

    Raises `NoPicture` if the run failed.
    """
    ui = f"http://127.0.0.1:{port}"
    env = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PORT": str(port)}
    local = [sys.executable, "-m", "deployments.local"]
    try:
        subprocess.run([*local, "up"], cwd=folder, env=env, check=True)
        with temporary_settings({PREFECT_API_URL: f"{ui}/api"}):
            ended = run_deployment("data-to-model/pretrain", flow_run_name="quickstart", parameters={"set": words})
        assert isinstance(ended, FlowRun)
        if ended.state is None or not ended.state.is_completed():
            raise NoPicture(f"the quickstart ended as {ended.state}")
        (run,) = (folder / "data" / "store" / "runs").iterdir()
        yield Shown(ui, ended.id, run)
    finally:
        subprocess.run([*local, "down"], cwd=folder, env=env, check=True)
