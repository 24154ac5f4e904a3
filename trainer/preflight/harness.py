"""The look at the tasks of lm-eval that a job names, before long work starts."""

from typing import Any

from transformers import PretrainedConfig

from trainer.common.stopping import check_stop
from trainer.config.evaluation import HarnessConfig, SelectionConfig
from trainer.config.runs import RunJob


def try_harness(job: RunJob, options: HarnessConfig | None, config: PretrainedConfig, tokenizer: Any = None) -> None:
    """Try the tasks of lm-eval, if some are named; what they read of the hub is then here. Raises as `try_tasks`
    does.
    """
    if options is None:
        return
    from trainer.evaluation.harness_identity import installed_version

    installed_version()  # else that is told
    from trainer.evaluation.harness_trial import Decides, try_tasks

    decide = {}
    if isinstance(asked := job.evaluation, SelectionConfig):
        decide["evaluation.best_by"] = Decides(asked.best_by, asked.greater_is_better)
    if (gate := job.promotion) is not None:
        decide["promotion.metric"] = Decides(gate.metric, gate.greater_is_better)
    try_tasks(options, config, decide, tokenizer)
    check_stop()
