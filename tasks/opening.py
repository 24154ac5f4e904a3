"""The first steps of every flow."""

import logging
from contextvars import copy_context
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed

from tasks.credentials import use_credentials
from tasks.patience import patient
from trainer.common.display import visible
from trainer.common.errors import PipelineError, Preempted
from trainer.common.stopping import KEPT, StopRequested, on_forced_end
from trainer.common.transient import AT_THE_START
from trainer.config.files import Job, Overrides, override
from trainer.store.private_folders import STAGING
from trainer.store.storage import Store

ABORTED = "Execution was aborted by a termination signal."
"""Prefect's message for a task that is running when the run is cancelled or the worker stops, in two log records."""

STOPPED = "Asked to stop: finished work is kept; run this again to continue."

RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


def open_flow(job: Job, words: Overrides) -> Job:
    """Install the log filter, load the store's credentials, check the store; return the job with `words` applied.

    Raises `ConfigError` like `override` and `use_credentials`, and `RetriesExhausted` if the store cannot be reached
    for a minute.
    """
    for name in RUN_LOGGERS:
        logging.getLogger(name).addFilter(report_once)  # adding the same filter twice has no effect
    on_forced_end(partial(copy_context().run, _crash, flow_run.id))
    job = override(job, words)
    use_credentials()
    patient(Store(cast(Any, job).store).exists, AT_THE_START)(STAGING)  # every job has one
    return job


def report_once(record: logging.LogRecord) -> bool:
    """Log filter: report a requested stop once and not as a crash; drop tracebacks of self-explanatory errors.

    Control characters, for example in the name of a file, are escaped.
    """
    raw = record.getMessage()
    if (message := visible(raw)) != raw:
        record.msg, record.args = message, ()
    stopped = ABORTED in message or StopRequested.__name__ in message
    if stopped and message.startswith("Crash detected!"):
        record.msg, record.args = STOPPED, ()
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    if record.exc_info and isinstance(record.exc_info[1], PipelineError | Preempted):
        record.exc_info = None
    return not (stopped and message.startswith("Finished in state"))


def _crash(run: str | None) -> None:
    """Report to the server that a flow run crashed or, if that was requested, is cancelled, unless it has ended.

    Otherwise it would stay in state Running or Cancelling.
    """
    if run is None:
        return
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run)).state
        if state is None or not state.is_final():
            ended: State[Any] = (Cancelled if state is not None and state.is_cancelling() else Crashed)(message=KEPT)
            client.set_flow_run_state(UUID(run), ended, force=True)
