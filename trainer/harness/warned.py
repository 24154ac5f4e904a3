"""What lm-eval warns of, such as requests that were cut; what else it prints is kept back."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from lm_eval import evaluator
from lm_eval.api import task as asking

from trainer.common.errors import shortened

NO_DOUBT = (
    "Overwriting default num_fewshot", "aggregation is not. using default", "higher_is_better is not. using default",
    "fewshot_split is None. using preconfigured rule",
)  # fmt: skip
"""What warnings have that tell only what the settings ask for, or how lm-eval always takes a figure."""


@contextmanager
def hearing() -> Iterator[Callable[[], list[str]]]:
    """Take in what lm-eval warns of meanwhile; what this gives tells it: the first of each kind, and how many were like it."""
    logger, heard = logging.getLogger("lm_eval"), _Heard()
    before, bar, commit = (logger.level, logger.propagate), asking.tqdm, evaluator.get_git_commit_hash
    asking.tqdm = partial(bar, disable=True)  # progress is shown as that of other stages
    evaluator.get_git_commit_hash = lambda: None  # of the folder that one is in, whatever it is: git complains if it is none
    logger.addHandler(heard)
    logger.setLevel(logging.WARNING)
    logger.propagate = False  # else each stands in the log besides, thousands of them
    try:
        yield heard.told
    finally:
        logger.removeHandler(heard)
        logger.level, logger.propagate = before
        asking.tqdm, evaluator.get_git_commit_hash = bar, commit


class _Heard(logging.Handler):
    """Counts warnings by the line of the program that gives them, and keeps the first of each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._first: dict[tuple[str, int], str] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if not any(usual in said for usual in NO_DOUBT):
            place = (record.pathname, record.lineno)
            self._first.setdefault(place, shortened(said))
            self._counts[place] = self._counts.get(place, 0) + 1

    def told(self) -> list[str]:
        return [
            said if self._counts[place] == 1 else f"{said} (and {self._counts[place] - 1:,} more like it)"
            for place, said in self._first.items()
        ]
