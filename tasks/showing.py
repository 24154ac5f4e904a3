"""Show progress in the terminal of an ad hoc run and as a progress artifact in Prefect's UI."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar, cast
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Completed
from tqdm import tqdm

from trainer.common.progress import Update, describe, plain_lines, terminal_bars

T = TypeVar("T")

ARTIFACT_SECONDS = 5.0
"""Interval between updates of a progress artifact, each of which is a request to the server."""


@contextmanager
def showing() -> Iterator[Callable[[Update], None]]:
    """A function that shows updates, for the duration of a task."""
    on_screen = terminal_bars(sys.stderr) if sys.stderr.isatty() else _every(10.0, plain_lines(sys.stderr))
    progress_log = _ProgressLog()

    def show(update: Update) -> None:
        on_screen(update)
        if update.total:
            progress_log.show(update)

    try:
        yield show
    finally:
        progress_log.finish()


class _ProgressLog:
    """Sends the latest updates to the server in a separate thread, so that a slow or missing server delays nothing."""

    def __init__(self) -> None:
        self._latest: dict[str, Update] = {}
        self._news, self._ended = threading.Condition(), threading.Event()
        # Runs in this task's context, so that the artifacts belong to the task.
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="progress", daemon=True)
        self._thread.start()

    def show(self, update: Update) -> None:
        with self._news:
            self._latest[update.title] = update
            self._news.notify()

    def finish(self) -> None:
        """Wait until the last updates are sent, at most `ARTIFACT_SECONDS`."""
        self._ended.set()
        with self._news:
            self._news.notify()
        self._thread.join(ARTIFACT_SECONDS)

    def _run(self) -> None:
        artifacts: dict[str, UUID] = {}
        while not self._ended.wait(ARTIFACT_SECONDS if artifacts else 0) or self._latest:
            with self._news:
                self._news.wait_for(lambda: self._latest or self._ended.is_set())
                updates, self._latest = self._latest, {}
            for update in updates.values():
                try:
                    _update_server(artifacts, update)
                except Exception as error:  # a failing server must not stop the work
                    TaskLogger().warning("cannot show progress in Prefect: %s", error)


def _update_server(artifacts: dict[str, UUID], update: Update) -> None:
    percent = 100.0 * update.done / update.total if update.total else 0.0
    if update.title in artifacts:
        update_progress_artifact(artifacts[update.title], percent, description=describe(update))
    else:
        artifacts[update.title] = cast(UUID, create_progress_artifact(percent, description=describe(update)))


def _every(seconds: float, show: Callable[[Update], None]) -> Callable[[Update], None]:
    """Pass on at most one update per title every `seconds`, and the last one."""
    shown: dict[str, float] = {}

    def sometimes(update: Update) -> None:
        now = time.monotonic()
        if update.finished or now - shown.setdefault(update.title, now) >= seconds:
            shown[update.title] = now
            show(update)

    return sometimes


class TaskLogger(logging.LoggerAdapter[Any]):
    """The task run's Prefect logger; clears a progress bar from the line before it writes."""

    def __init__(self) -> None:
        super().__init__(get_run_logger(), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with tqdm.external_write_mode():
            self.logger.log(level, msg, *args, **kwargs)


def name_flow_run(name: str) -> None:
    """Rename this task's flow run; log a warning if the server cannot be reached."""
    if flow_run.id is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(UUID(flow_run.id), name)
    except httpx.HTTPError as error:
        TaskLogger().warning("cannot rename the flow run to %s in Prefect: %s", name, error)


def reused(result: T, what: str) -> T:
    """The state of a task that found its work finished. Prefect takes its state from this returned value."""
    state: Any = Completed(name="Reused", message=what, data=result)
    return cast(T, state)
