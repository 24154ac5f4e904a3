"""Showing progress where people look: in the terminal of an ad hoc run, and as a progress artifact in Prefect's UI."""

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
"""Between two updates of a progress artifact: each is a request to the server."""


@contextmanager
def showing() -> Iterator[Callable[[Update], None]]:
    """A place to show updates, for the length of a task."""
    on_screen = terminal_bars(sys.stderr) if sys.stderr.isatty() else _every(10.0, plain_lines(sys.stderr))
    teller = _Teller()

    def show(update: Update) -> None:
        on_screen(update)
        if update.total:
            teller.tell(update)

    try:
        yield show
    finally:
        teller.finish()


class _Teller:
    """Tells the server of the latest updates, in a thread of its own: a server that is slow or gone holds nothing
    up.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Update] = {}
        self._news, self._ended = threading.Condition(), threading.Event()
        # In this task's context, which the artifacts belong to.
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="progress", daemon=True)
        self._thread.start()

    def tell(self, update: Update) -> None:
        with self._news:
            self._latest[update.title] = update
            self._news.notify()

    def finish(self) -> None:
        """Wait for the last updates to arrive, but not for long."""
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
                    _tell_server(artifacts, update)
                except Exception as error:  # the work goes on, whatever the server that shows it says
                    TaskLogger().warning("progress cannot be shown in Prefect: %s", error)


def _tell_server(artifacts: dict[str, UUID], update: Update) -> None:
    percent = 100.0 * update.done / update.total if update.total else 0.0
    if update.title in artifacts:
        update_progress_artifact(artifacts[update.title], percent, description=describe(update))
    else:
        artifacts[update.title] = cast(UUID, create_progress_artifact(percent, description=describe(update)))


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


def name_flow_run(name: str) -> None:
    """Have the flow run that this task belongs to carry a name; if the server cannot be asked, it keeps the one that it
    has.
    """
    if flow_run.id is None:
        return
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(UUID(flow_run.id), name)
    except httpx.HTTPError as error:
        TaskLogger().warning("the flow run cannot be named %s in Prefect: %s", name, error)


def reused(result: T, what: str) -> T:
    """The state of a task that found its work done. Prefect takes the state in place of the result that it holds."""
    state: Any = Completed(name="Reused", message=what, data=result)
    return cast(T, state)
