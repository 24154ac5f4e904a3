"""What every flow begins with."""

import logging
from contextvars import copy_context
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Crashed

from tasks.credentials import use_credentials
from tasks.patience import patient
from trainer.common.errors import PipelineError, Preempted
from trainer.common.stopping import KEPT, tell_if_ended
from trainer.common.transient import AT_THE_START
from trainer.config.files import Job, Overrides, override
from trainer.store.private_folders import STAGING
from trainer.store.storage import Store

ABORTED = "Execution was aborted by a termination signal."
"""What Prefect says of the task that a cancel or a stop of the worker finds at work, in two errors: a crash, and its
state.
"""

STOPPED = "Asked to stop: what is finished is kept, and running it again continues."

RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


def open_flow(job: Job, words: Overrides) -> Job:
    """Have errors and stops told plainly, take the store's credentials, reach the store; returns the job with words
    applied.

    Raises `ConfigError` as `override` and `use_credentials` do, and `RetriesExhausted` if the store is away for a
    minute.
    """
    for name in RUN_LOGGERS:
        logging.getLogger(name).addFilter(tell_plainly)  # the same function again changes nothing
    tell_if_ended(partial(copy_context().run, _crash, flow_run.id))
    job = override(job, words)
    use_credentials()
    patient(AT_THE_START)(Store(cast(Any, job).store).exists)(STAGING)  # every job has one
    return job


def tell_plainly(record: logging.LogRecord) -> bool:
    """Say of a run that was asked to stop that it was, not that it crashed, and once; no stack of errors that say
    all.
    """
    message = record.getMessage()
    if message == f"Crash detected! {ABORTED}":
        record.msg, record.args = STOPPED, ()
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    if record.exc_info and isinstance(record.exc_info[1], PipelineError | Preempted):
        record.exc_info = None
    return not (message.startswith("Finished in state") and ABORTED in message)


def _crash(run: str | None) -> None:
    """Tell the server that a flow run has crashed, unless it has ended: as its process is ended, it would stand as
    running.
    """
    if run is None:
        return
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run)).state
        if state is None or not state.is_final():
            client.set_flow_run_state(UUID(run), Crashed(message=KEPT), force=True)
