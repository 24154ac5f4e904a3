"""Try lm-eval tasks on a few of their examples before training, without a model, to find errors and the names of their
figures early.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs, resolve_max_length
from transformers import PretrainedConfig

from trainer.common.errors import ConfigError, brief
from trainer.config.evaluation import PREFIX, HarnessConfig
from trainer.data.chat.template import bound_template
from trainer.evaluation.harness_tasks import NAMED, doubts_of, evaluate_tasks, figures_of, hearing, load_tasks
from trainer.evaluation.metrics import greater_is_better

log = logging.getLogger(__name__)


class Decides(NamedTuple):
    """A figure that selects the best checkpoint or a champion, and whether the job says that greater is better."""

    figure: str
    greater_is_better: bool | None = None


EXAMPLES = 4
"""How many examples of each task the trial evaluates."""


def try_tasks(
    options: HarnessConfig, config: PretrainedConfig, decide: Mapping[str, Decides], tokenizer: Any = None
) -> None:
    """Evaluate some examples of each task as for a model of this configuration, and log lm-eval's warnings.

    `decide` maps settings to the deciding figures that they name. `tokenizer` is given if its chat template is used.
    Raises `ConfigError` for tasks that cannot be loaded or evaluated, for a figure that no task has, and for one whose
    direction by lm-eval contradicts its name while the job does not set `greater_is_better`.
    """
    if tokenizer is not None:
        bound_template(tokenizer, "this job")
    model = _NoModel(resolve_max_length(config), tokenizer)
    figures: dict[str, bool | None] = {}
    with hearing() as heard:
        found = load_tasks(options)
        for name, loaded in found.items():
            try:
                figures |= _try(loaded, options, model)
            except Exception as error:  # each task fails in its own way: its functions, its fields, its metrics
                raise ConfigError(
                    f"evaluation.harness: lm-eval fails on the task {name!r}: {type(error).__name__}: {brief(error)}"
                ) from error
    for doubt in [*(doubt for loaded in found.values() for doubt in doubts_of(loaded)), *heard()]:
        log.warning("evaluation.harness: %s", doubt)
    for setting, (figure, configured) in decide.items():
        if not figure.startswith(PREFIX):
            continue
        if figure not in figures:
            like = get_close_matches(figure, figures, NAMED) or figures
            raise ConfigError(f"{setting} is {figure!r}, which no requested task has; there is {', '.join(like)}")
        greater = figures[figure]
        if configured is None and greater is not None and greater != greater_is_better(figure):
            beside = f"{setting.rpartition('.')[0]}.greater_is_better"
            better = "greater" if greater else "smaller"
            raise ConfigError(f"{setting} is {figure!r}, but lm-eval says that {better} is better: set {beside}")


def _try(loaded: dict[str, Any], options: HarnessConfig, model: "_NoModel") -> dict[str, bool | None]:
    """The figures of a task, or of a group and its tasks, by full name; values say whether greater is better."""
    for task in loaded["tasks"].values():
        task.aggregation = lambda: defaultdict(lambda: len)  # some aggregations of few examples are NaN
    limit = min(options.limit or EXAMPLES, EXAMPLES)
    found = evaluate_tasks(model, loaded, options, limit, resamples=0)
    return {
        f"{PREFIX}{name}/{figure}": each.greater
        for name in found["results"]
        for figure, each in figures_of(found, name).items()
    }


class _NoModel(LM):  # type: ignore[misc]
    """Answers every request in the same way, if a model with this number of positions could answer it."""

    tokenizer_name = ""  # key of a request cache, which is not used
    apply_chat_template = HFLM.apply_chat_template  # omits a task's description if the template refuses it

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
                f"answers may have {longest} tokens (generation_kwargs.max_gen_toks), but the model has only "
                f"{self._positions} positions for question and answer"
            )
        return ["an answer"] * len(requests)
