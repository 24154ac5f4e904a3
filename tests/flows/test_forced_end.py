"""A command that does not stop in time is killed."""

import os
import signal
from pathlib import Path

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling, Running

from tasks.opening import _crash
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


def test_a_run_that_was_cancelled_does_not_end_as_crashed(server: dict[str, str]) -> None:
    @flow
    def forced() -> None:
        """A flow that its process reports as ended."""

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(forced).id
        for state in (Running(), Cancelling()):
            client.set_flow_run_state(run, state, force=True)
        _crash(str(run))
        ended = client.read_flow_run(run).state
    assert ended is not None and ended.type is StateType.CANCELLED
