"""lm-eval's tasks beside training: tried before it, and during it the model in memory is measured on them every so many
steps. Free of heavy imports until then.
"""

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from trainer.common.errors import ConfigError
from trainer.common.stopping import check_stop
from trainer.config.evaluation import PREFIX, HarnessConfig, SelectionConfig, TrainedHarnessConfig
from trainer.config.runs import RunJob

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trainer.evaluation.harness_tasks import Loaded
    from trainer.training.runtime import Runtime

log = logging.getLogger(__name__)


def try_harness(job: RunJob, options: HarnessConfig | None, config: PretrainedConfig, tokenizer: Any = None) -> None:
    """Try the tasks of lm-eval, if some are named; what they read of the hub is then here. Raises as `try_tasks`
    does.
    """
    if options is None:
        return
    from trainer.evaluation.harness_identity import installed_version

    installed_version()  # else that is told
    from trainer.evaluation.harness_tasks import Decides, try_tasks

    decide = {}
    if isinstance(asked := job.evaluation, SelectionConfig):
        decide["evaluation.best_by"] = Decides(asked.best_by, asked.greater_is_better)
    if (gate := job.promotion) is not None:
        decide["promotion.metric"] = Decides(gate.metric, gate.greater_is_better)
    try_tasks(options, config, decide, tokenizer)
    check_stop()


def tasks_in_training(
    options: TrainedHarnessConfig | None, best_by: str, batch: int, files: Sequence[Path]
) -> "TasksInTraining | None":
    """What has lm-eval measure a model on the way, if that is asked for, or decides which checkpoint is best; `files`
    are those of its tokenizer.
    """
    if options is None or (options.every is None and not best_by.startswith(PREFIX)):
        return None
    return TasksInTraining(options, batch, files)


class TasksInTraining:
    """Has lm-eval ask a model in memory what it asks the published one; of several ranks, each is asked a share.

    The weights are taken as they are, whatever the precision of training; a divided model computes in that.
    """

    def __init__(self, options: TrainedHarnessConfig, batch: int, files: Sequence[Path]) -> None:
        self.every, self._options, self._batch, self._files = options.every, options, batch, files

    def ask(self, model: "PreTrainedModel", runtime: "Runtime") -> dict[str, float]:
        """Figures by task, `TASK/FIGURE`, the same on every rank.

        None where a figure grows beyond what a number can be, as an untrained model's perplexity may. Raises
        `ConfigError` if lm-eval cannot ask, `StopRequested` on all ranks if one of them is to stop.
        """
        import torch

        from trainer.evaluation.harness import AskedModel, ask
        from trainer.evaluation.harness_tasks import figures_of, hearing
        from trainer.models.losses import masks_made

        was_training = model.training
        try:
            # Doubts are told before and after training.
            with hearing(), torch.compiler.set_stance("force_eager"), masks_made(model):
                asked = AskedModel(model, self._tokenizer(model), self._batch, runtime)
                found = ask(asked, self._loaded, self._options, resamples=0)
        except ConfigError as error:
            if not isinstance(error.__cause__, ArithmeticError):
                raise
            log.warning("%s", error)
            return {}
        finally:
            model.train(was_training)
        return {
            f"{name}/{figure}": each.value
            for name in found["results"]
            for figure, each in figures_of(found, name).items()
        }

    @cached_property
    def _loaded(self) -> "Loaded":
        from trainer.evaluation.harness_tasks import load_tasks

        return load_tasks(self._options)

    def _tokenizer(self, model: "PreTrainedModel") -> Any:
        """The tokenizer as `AutoTokenizer` loads it beside the model."""
        from trainer.data.chat.template import bound_template
        from trainer.models.pretrained import load_tokenizer

        with TemporaryDirectory() as folder:
            for file in self._files:
                Path(folder, file.name).write_bytes(file.read_bytes())
            model.config.save_pretrained(folder)
            tokenizer = load_tokenizer(folder)
        if self._options.chat_template:
            bound_template(tokenizer, "this job")
        return tokenizer
