"""What every flow begins with."""

import logging
from typing import Any, cast

from tasks.credentials import use_credentials
from tasks.patience import patient
from trainer.common.outages import AT_THE_START
from trainer.config.files import Job, Overrides, override
from trainer.store.private_folders import STAGING
from trainer.store.storage import Store

ABORTED = "Execution was aborted by a termination signal."
"""What Prefect says of the task that a cancel or a stop of the worker finds at work, in two errors: a crash, and its state."""

STOPPED = "Asked to stop: what is finished is kept, and running it again continues."

RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


def open_flow(job: Job, words: Overrides) -> Job:
    """Have the log tell stops as stops, take the store's credentials, and reach the store; returns the job with words applied.

    Raises `ConfigError` as `override` and `use_credentials` do, and `OutOfPatience` if the store is away for a minute.
    """
    job = override(job, words)
    for name in RUN_LOGGERS:
        logging.getLogger(name).addFilter(tell_stop)  # the same function again changes nothing
    use_credentials()
    patient(AT_THE_START)(Store(cast(Any, job).store).exists)(STAGING)  # every job has one
    return job


def tell_stop(record: logging.LogRecord) -> bool:
    """Say of a run that was asked to stop that it was, not that it crashed, and once."""
    message = record.getMessage()
    if message == f"Crash detected! {ABORTED}":
        record.msg, record.args = STOPPED, ()
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return not (message.startswith("Finished in state") and ABORTED in message)
