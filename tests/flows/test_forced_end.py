"""A command that does not stop in time is killed."""

import os
import signal
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import StateType

from tests.processes import start_module, wait_until
from trainer.common.errors import EXIT_PREEMPTED


def test_its_flow_run_does_not_stand_as_running(server: dict[str, str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    command = start_module(tmp_path / "said", "tests.flows.stuck", store, env=server)
    wait_until(lambda: (store / "opened").exists() or command.status() is not None)
    os.kill(command.pid, signal.SIGTERM)
    ended = command.wait()
    assert ended.status == EXIT_PREEMPTED and "forced to stop" in ended.stderr, ended
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["stuck"])))
    assert run.state is not None and run.state.type is StateType.CRASHED
    assert run.state.message == "asked to stop: finished work is kept; run it again to continue"
