"""The look at the tasks of lm-eval that a job names, before long work starts."""

from typing import Any

from transformers import PretrainedConfig

from trainer.common.stopping import check_stop
from trainer.config.evaluation import HarnessConfig
from trainer.config.runs import PromotionConfig


def try_harness(
    options: HarnessConfig | None, gate: PromotionConfig | None, config: PretrainedConfig, tokenizer: Any = None
) -> None:
    """Try the tasks of lm-eval, if some are named; what they read of the hub is then here. Raises as `try_tasks`
    does.
    """
    if options is None:
        return
    from trainer.evaluation.harness_identity import installed_version

    installed_version()  # else that is told
    from trainer.evaluation.harness_trial import try_tasks

    try_tasks(options, config, gate.metric if gate else None, tokenizer)
    check_stop()
