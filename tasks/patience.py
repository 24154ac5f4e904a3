"""Tasks that wait for what passes by itself, and crash if it does not: what crashed is scheduled again, what failed is
not.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE

from tasks.showing import TaskLogger
from trainer.common.errors import PipelineError
from trainer.common.stopping import stop_requested
from trainer.common.transient import is_transient, retry_transient

P = ParamSpec("P")
T = TypeVar("T")


class RetriesExhausted(BaseException):
    """What should pass by itself did not in time. To Prefect it is a crash, as any exception that is no `Exception`."""


def patient(most: float | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have work done again as long as it ends by what passes: for so many seconds at most, if they are given.

    Then, or when this process is asked to stop, raises `RetriesExhausted`.
    """

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @wraps(work)
        def done(*arguments: P.args, **named: P.kwargs) -> T:
            try:
                return retry_transient(
                    lambda: work(*arguments, **named), lambda said: TaskLogger().warning("%s", said), most
                )
            except Exception as error:
                if not is_transient(error):
                    raise
                raise RetriesExhausted(f"{error} (what is finished is kept: running it again continues)") from error

        return done

    return decorate


def patient_task(
    name: str, retries: int = 2, most: float | None = None, run_name: str | None = None
) -> Callable[[Callable[P, T]], Task[P, T]]:
    """Make a task of work that is `patient`. What ends otherwise than by bad input, as a stage that was killed, is
    tried again after ten seconds, so many times.
    """

    def decorate(work: Callable[P, T]) -> Task[P, T]:
        return task(
            name=name, task_run_name=run_name, cache_policy=NO_CACHE, retries=retries, retry_delay_seconds=10,
            retry_condition_fn=worth_retrying,
        )(patient(most)(work))  # fmt: skip

    return decorate


def worth_retrying(task: Any, run: Any, state: State[Any]) -> bool:
    """Retry crashes and preemption, unless it is this process that was asked to stop; bad input stays bad."""
    return not isinstance(state.data, PipelineError) and not stop_requested()
