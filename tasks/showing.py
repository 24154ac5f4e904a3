"""Showing progress where people look: in the terminal of an ad hoc run, and as a progress artifact in Prefect's UI."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from uuid import UUID

from prefect import State, get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.states import Completed
from tqdm import tqdm

from trainer.errors import PipelineError
from trainer.progress import Update, describe, plain_lines, terminal_bars

T = TypeVar("T")

ARTIFACT_SECONDS = 5.0
"""Between two updates of a progress artifact: each is a request to the server."""


@contextmanager
def showing() -> Iterator[Callable[[Update], None]]:
    """A place to show updates, for the length of a task."""
    on_screen = terminal_bars(sys.stderr) if sys.stderr.isatty() else _every(10.0, plain_lines(sys.stderr))
    artifacts: dict[str, tuple[UUID, float]] = {}

    def show(update: Update) -> None:
        on_screen(update)
        if not update.total:
            return
        try:
            tell_server(update, 100.0 * update.done / update.total)
        except Exception as error:  # the work goes on, whatever the server that shows it says
            TaskLogger().warning("progress cannot be shown in Prefect: %s", error)

    def tell_server(update: Update, percent: float) -> None:
        known = artifacts.get(update.title)
        if known is None:
            made = cast(UUID, create_progress_artifact(percent, description=describe(update)))
            artifacts[update.title] = (made, time.monotonic())
        elif update.finished or time.monotonic() - known[1] > ARTIFACT_SECONDS:
            artifacts[update.title] = (known[0], time.monotonic())
            update_progress_artifact(known[0], percent, description=describe(update))

    yield show


def _every(seconds: float, show: Callable[[Update], None]) -> Callable[[Update], None]:
    """Pass on an update of each title at most every so many seconds, and its last."""
    shown: dict[str, float] = {}

    def sometimes(update: Update) -> None:
        now = time.monotonic()
        if update.finished or now - shown.setdefault(update.title, now) >= seconds:
            shown[update.title] = now
            show(update)

    return sometimes


class TaskLogger(logging.LoggerAdapter[Any]):
    """The task run's Prefect logger, which clears a progress bar from the line before it writes."""

    def __init__(self) -> None:
        super().__init__(get_run_logger(), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with tqdm.external_write_mode():
            self.logger.log(level, msg, *args, **kwargs)


def reused(result: T, what: str) -> T:
    """The state of a task that found its work done. Prefect takes the state in place of the result that it holds."""
    state: Any = Completed(name="Reused", message=what, data=result)
    return cast(T, state)


def worth_retrying(task: Any, run: Any, state: State[Any]) -> bool:
    """Retry crashes and preemption; bad input stays bad."""
    return not isinstance(state.data, PipelineError)
