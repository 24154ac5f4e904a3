"""Tasks that wait for what passes by itself, and crash if it does not: what crashed is scheduled again, what failed is
not.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tasks.showing import TaskLogger
from trainer.common.transient import is_transient, retry_transient

P = ParamSpec("P")
T = TypeVar("T")


class RetriesExhausted(BaseException):
    """What should pass by itself did not in time. To Prefect it is a crash, as any exception that is no `Exception`."""


def patient(most: float | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have a task's work done again as long as it ends by what passes: for so many seconds at most, if they are given.

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
