"""lm-eval tasks during training: a trial before it starts, then periodic evaluation of the model in memory.

lm-eval is optional, so the modules that import it are imported only when needed.
"""

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from trainer.common.errors import ConfigError
from trainer.common.stopping import check_stop
from trainer.common.temporary import temporary_folder
from trainer.config.chat import CausalEvaluationConfig
from trainer.config.evaluation import (
    PREFIX,
    HarnessConfig,
    PretrainingEvaluationConfig,
    SelectionConfig,
    TrainedHarnessConfig,
)
from trainer.config.runs import RunJob
from trainer.data.chat.template import bound_template
from trainer.evaluation.harness_identity import identify, installed_version, name_of
from trainer.models.attention_masks import masks_made
from trainer.models.layers import in_mode
from trainer.models.pretrained import load_tokenizer
from trainer.training.runtime import Runtime

log = logging.getLogger(__name__)


def try_harness(job: RunJob, options: HarnessConfig | None, config: PretrainedConfig, tokenizer: Any = None) -> None:
    """Try the job's lm-eval tasks, if any, which also downloads their data. Raises as `try_tasks` does."""
    if options is None:
        return
    installed_version()  # raises if lm-eval is not installed
    from trainer.evaluation.harness_trial import Decides, try_tasks

    decide = {}
    if isinstance(evaluation := job.evaluation, SelectionConfig):
        decide["evaluation.best_by"] = Decides(evaluation.best_by, evaluation.greater_is_better)
    if (gate := job.promotion) is not None:
        decide["promotion.metric"] = Decides(gate.metric, gate.greater_is_better)
    try_tasks(options, config, decide, tokenizer)
    check_stop()


def tasks_in_training(
    evaluation: PretrainingEvaluationConfig | CausalEvaluationConfig, files: Sequence[Path]
) -> "TasksInTraining | None":
    """The evaluation by lm-eval during training, if `every` is set or the best checkpoint depends on it, else None.

    `files` are the tokenizer's.
    """
    options = evaluation.harness
    if options is None or (options.every is None and not evaluation.best_by.startswith(PREFIX)):
        return None
    return TasksInTraining(options, evaluation.batch, files)


class TasksInTraining:
    """Evaluates a model in memory on the same tasks as the published one; the ranks share the requests.

    It computes in the precision of the weights, not of training; only a sharded model computes in that of training.
    """

    def __init__(self, options: TrainedHarnessConfig, batch: int, files: Sequence[Path]) -> None:
        self.every, self._options, self._batch, self._files = options.every, options, batch, files

    @property
    def identities(self) -> dict[str, str]:
        """By task, a fingerprint of what determines its figures: the task with its data, its settings, and lm-eval."""
        return {name: name_of(each) for name, each in identify(self._options, installed_version()).items()}

    def ask(self, model: PreTrainedModel, runtime: Runtime) -> dict[str, float]:
        """Figures by `TASK/FIGURE`, the same on every rank; empty if one overflows, as an untrained perplexity may.

        Raises `ConfigError` if lm-eval fails, `StopRequested` on all ranks if one of them must stop.
        """
        from trainer.evaluation.harness import AskedModel, ask
        from trainer.evaluation.harness_tasks import figures_of, hearing

        try:
            # Its warnings are logged before and after training.
            with hearing(), torch.compiler.set_stance("force_eager"), masks_made(model), in_mode(model, training=False):
                asked = AskedModel(model, self._tokenizer(model), self._batch, runtime)
                parts = [ask(asked, each, self._options, resamples=0) for each in self._loaded.values()]
        except ConfigError as error:
            if not isinstance(error.__cause__, ArithmeticError):
                raise
            log.warning("%s", error)
            return {}
        return {
            f"{name}/{figure}": each.value
            for found in parts
            for name in found["results"]
            for figure, each in figures_of(found, name).items()
        }

    @cached_property
    def _loaded(self) -> dict[str, dict[str, Any]]:
        from trainer.evaluation.harness_tasks import load_tasks

        return load_tasks(self._options)

    def _tokenizer(self, model: PreTrainedModel) -> Any:
        """The tokenizer as `AutoTokenizer` loads it from the model's folder."""
        with temporary_folder() as folder:
            for file in self._files:
                Path(folder, file.name).write_bytes(file.read_bytes())
            model.config.save_pretrained(folder)
            tokenizer = load_tokenizer(folder)
        if self._options.chat_template:
            bound_template(tokenizer, "this job")
        return tokenizer
