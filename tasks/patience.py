"""Tasks that retry after temporary problems and crash if these last: crashed runs are rescheduled, failed ones not."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE

from tasks.showing import TaskLogger
from trainer.common.errors import PipelineError, Preempted
from trainer.common.stopping import check_stop, stop_requested
from trainer.common.transient import is_transient, retry_transient

P = ParamSpec("P")
T = TypeVar("T")


class RetriesExhausted(BaseException):
    """A temporary problem lasted too long. Prefect treats it as a crash because it is not an `Exception`."""


def patient(work: Callable[P, T], most: float | None = None) -> Callable[P, T]:
    """Repeat work while it fails for temporary reasons, for at most `most` seconds if given.

    After that, or when this process is asked to stop, raises `RetriesExhausted`.
    """

    @wraps(work)
    def done(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return retry_transient(
                lambda: work(*arguments, **named), lambda said: TaskLogger().warning("%s", said), most
            )
        except Preempted:
            check_stop()  # a stop of this process is no failure of its run, which Prefect then marks as crashed
            raise
        except Exception as error:
            if not is_transient(error):
                raise
            raise RetriesExhausted(f"{error} (finished work is kept; run this again to continue)") from error

    return done


def patient_task(
    name: str, retries: int = 2, most: float | None = None, run_name: str | None = None
) -> Callable[[Callable[P, T]], Task[P, T]]:
    """Make a task of `patient` work. After errors other than bad input, such as a killed stage, Prefect retries it
    after ten seconds, `retries` times.
    """

    def decorate(work: Callable[P, T]) -> Task[P, T]:
        return task(
            name=name, task_run_name=run_name, cache_policy=NO_CACHE, retries=retries, retry_delay_seconds=10,
            retry_condition_fn=worth_retrying,
        )(patient(work, most))  # fmt: skip

    return decorate


def worth_retrying(task: Any, run: Any, state: State[Any]) -> bool:
    """Retry after crashes and preemption, but not after bad input or if this process was asked to stop."""
    return not isinstance(state.data, PipelineError) and not stop_requested()
