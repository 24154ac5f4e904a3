"""Running a stage of the trainer as a child process, and passing on its log lines, progress, error and result."""

import json
import logging
import os
import tempfile
from collections.abc import Callable
from typing import IO, Any

from tasks.stage_processes import start_stage
from trainer.common import errors
from trainer.common.errors import EXIT_PREEMPTED, PipelineError, Preempted, RankLost, StorageError
from trainer.common.progress import Update
from trainer.common.stopping import KEPT, defer_stop, on_stop, stop_requested
from trainer.config.engines import Engine, LocalEngine
from trainer.pipelines.child import BY_SIGNAL
from trainer.store import roots

Logger = logging.Logger | logging.LoggerAdapter[Any]


LOCAL = LocalEngine()


class StageCrashed(RuntimeError):
    """A stage ended without a result, for a reason that is not the user's; worth another try."""


def run_stage(
    name: str,
    arguments: dict[str, Any],
    show: Callable[[Update], None],
    logger: Logger,
    ranks: int = 1,
    engine: Engine = LOCAL,
    device: str = "auto",
) -> dict[str, Any]:
    """Run a stage and return its result. The engine carries its ranks; without any, a stage runs here, and may use it.

    The child is in this process's group, so a cancel reaches it, and it ends if this process ends; if this process
    heeds stops, it passes them on. Raises the stage's own `PipelineError`, `Preempted` if it was asked to stop, else
    `StageCrashed`.
    """
    if stop_requested():
        raise Preempted(KEPT)
    carried = {"ranks": ranks, "engine": engine.model_dump(), "device": device}
    request = {"stage": name, "arguments": arguments, "parent": os.getpid(), "roots": roots.seen(), **carried}
    with tempfile.TemporaryFile("w+") as file:  # without a name, so that nothing stays of it whatever happens
        json.dump(request, file)
        file.flush()
        with start_stage(name, file, ranks, engine.kind) as child:
            try:
                with defer_stop(), on_stop(child.terminate):
                    assert child.stdout is not None
                    outcome = _follow(child.stdout, show, logger)
                    child.wait()
            except BaseException:
                child.terminate()
                child.communicate()  # it saves its state, and says so; a second interrupt ends the waiting
                raise
    return _result(name, child.returncode, outcome)


def _follow(said: IO[str], show: Callable[[Update], None], logger: Logger) -> dict[str, Any]:
    """Pass on what the child says until it ends; returns its error or result event."""
    outcome: dict[str, Any] = {}
    for line in said:
        event, others = _event(line)
        for each in others:
            logger.info("%s", each)
        match event.pop("event", None):
            case "progress":
                show(Update(**event))
            case "log":
                whose = f"[rank {event['rank']}] " if "rank" in event else ""
                logger.log(logging.getLevelNamesMapping()[event["level"]], "%s%s", whose, event["message"])
            case "error":
                if "kind" in outcome:  # the first is raised
                    logger.error("[rank %s] %s: %s", event["rank"], event["kind"], event["message"])
                else:
                    outcome = event
            case "result":
                outcome = event
    return outcome


def _event(line: str) -> tuple[dict[str, Any], list[str]]:
    """A line's event, and what libraries printed in the same line before and after it, or in place of one."""
    before, begin, rest = line.partition('{"event":')
    try:
        event, end = json.JSONDecoder().raw_decode(begin + rest) if begin else ({}, 0)
    except ValueError:
        before, event, end = line, {}, len(begin + rest)
    return event, [each.strip() for each in (before, (begin + rest)[end:]) if each.strip()]


def _result(name: str, status: int, outcome: dict[str, Any]) -> dict[str, Any]:
    if status == 0 and "value" in outcome:
        value: dict[str, Any] = outcome["value"]
        return value
    message = outcome.get("message", "")
    known = {name: outcome.get(name, False) for name in ("transient", "waited_for")}
    kind = getattr(errors, outcome.get("kind", ""), None)
    if kind is not None and issubclass(kind, PipelineError) and kind is not RankLost:
        raise kind(message, **known)  # whatever the status: other ranks may have ended otherwise
    if known["transient"] and kind is None:
        raise StorageError(f"stage {name}: {outcome['kind']}: {message}", **known)
    if status == EXIT_PREEMPTED or stop_requested():  # a signal may have come before the child could heed it
        raise Preempted(f"{name}: asked to stop; its state is saved, and running it again continues")
    reason = f"{outcome['kind']}: {message}\n{outcome.get('traceback', '')}" if message else "it said nothing"
    number = -status if status < 0 else status - BY_SIGNAL  # of several ranks only torchrun's own status is seen
    ended = f"was ended by signal {number}" if number > 0 else f"ended with status {status}"
    raise StageCrashed(f"stage {name} {ended}: {reason}")
