"""Asking some examples of tasks before training, without a model: whether that can be done, and which figures there
will be.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from lm_eval import evaluator
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs, resolve_max_length
from transformers import PretrainedConfig

from trainer.common.errors import ConfigError, brief
from trainer.config.evaluation import PREFIX, HarnessConfig
from trainer.data.chat.template import bound_template
from trainer.evaluation.harness import figures_of
from trainer.evaluation.harness_tasks import NAMED, hearing, load_tasks
from trainer.evaluation.metrics import greater_is_better

log = logging.getLogger(__name__)


class Decides(NamedTuple):
    """A figure that decides something, and whether the job says that greater is better."""

    figure: str
    greater_is_better: bool | None = None


EXAMPLES = 4
"""How many of each task are asked."""


def try_tasks(
    options: HarnessConfig, config: PretrainedConfig, decide: Mapping[str, Decides], tokenizer: Any = None
) -> None:
    """Ask some examples of each task as a model of this configuration would be asked, and tell what lm-eval warns of.

    `decide`: figures that decide something, by the settings that name them. `tokenizer`: the one with the chat
    template, if that is to be used. Raises `ConfigError` for tasks that cannot be loaded or asked, for a figure that no
    task has, and for one of which lm-eval says otherwise than its name whether greater is better.
    """
    if tokenizer is not None:
        bound_template(tokenizer, "this job")
    model = _NoModel(resolve_max_length(config), tokenizer)
    figures: dict[str, bool | None] = {}
    with hearing() as heard:
        found = load_tasks(options)
        for name, loaded in found.tasks.items():
            try:
                figures |= _try(loaded, options, model)
            except Exception as error:  # each task fails in its own way: its functions, its fields, its metrics
                raise ConfigError(
                    f"evaluation.harness: lm-eval cannot ask the task {name!r}: {type(error).__name__}: {brief(error)}"
                ) from error
    for doubt in [*found.doubts, *heard()]:
        log.warning("evaluation.harness: %s", doubt)
    for setting, (figure, said) in decide.items():
        if not figure.startswith(PREFIX):
            continue
        if figure not in figures:
            like = get_close_matches(figure, figures, NAMED) or figures
            raise ConfigError(f"{setting} is {figure!r}, which no task has that is asked; there is {', '.join(like)}")
        told = figures[figure]
        if said is None and told is not None and told != greater_is_better(figure):
            beside = f"{setting.rpartition('.')[0]}.greater_is_better"
            better = "greater" if told else "smaller"
            raise ConfigError(f"{setting} is {figure!r}, of which lm-eval says that {better} is better: set {beside}")


def _try(loaded: dict[str, Any], options: HarnessConfig, model: "_NoModel") -> dict[str, bool | None]:
    """The figures of a task, or of a group and its tasks, by the names that a gate knows them by, and whether lm-eval
    says that greater is better.
    """
    for task in loaded["tasks"].values():
        task.aggregation = lambda: defaultdict(lambda: len)  # some of few examples would be no number
    limit = min(options.limit or EXAMPLES, EXAMPLES)
    found = evaluator.evaluate(
        model, loaded, limit=limit, bootstrap_iters=0, log_samples=False,
        apply_chat_template=options.chat_template, fewshot_as_multiturn=options.chat_template,
    )  # fmt: skip
    return {
        f"{PREFIX}{name}/{figure}": each.greater
        for name in found["results"]
        for figure, each in figures_of(found, name).items()
    }


class _NoModel(LM):  # type: ignore[misc]
    """Gives every request the same answer, if a model of so many positions could give one."""

    tokenizer_name = ""  # for a cache of requests, which is not used
    apply_chat_template = HFLM.apply_chat_template  # it leaves out a task's description where a template takes none

    def __init__(self, positions: int, tokenizer: Any) -> None:
        super().__init__()
        self._positions = positions
        self.tokenizer, self.chat_template_args = tokenizer, dict[str, Any]()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        return [(-1.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        return [-1.0] * len(requests)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        longest = max(normalize_gen_kwargs(request.args[1])["max_gen_toks"] for request in requests)
        if longest >= self._positions:
            raise ValueError(
                f"answers may have {longest} tokens (generation_kwargs.max_gen_toks), but the model has "
                f"{self._positions} positions, which the question needs too"
            )
        return ["an answer"] * len(requests)
