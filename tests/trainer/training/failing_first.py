"""Ranks of which the first fails in what it does for all: `python -m tests.trainer.training.failing_first HOW`."""

from trainer.common.errors import ConfigError, StorageError
from trainer.common.process import on_rank
from trainer.training.runtime import start_runtime

HOW: dict[str, Exception] = {
    "by a mistake in a program": ZeroDivisionError("nothing"),
    "by bad input": ConfigError("a setting"),
    "by what passes": StorageError("a server", transient=True, waited_for=True),
}


def main(arguments: list[str]) -> int:
    (how,) = arguments

    def fail() -> None:
        raise HOW[how]

    def work() -> None:
        start_runtime("fp32", "cpu").on_first(fail)

    return on_rank(work)
