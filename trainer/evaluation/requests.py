"""How the final model of a job, or another one like it, is measured."""

from trainer.config.chat import ChatJob
from trainer.config.evaluation import PREFIX, EvaluationConfig
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.config.runs import PromotionConfig
from trainer.records.evaluations import Evaluation
from trainer.store.names import FINAL


def measurement(job: PipelineJob, run_key: str) -> EvaluateJob:
    """How a pipeline's own final model is measured."""
    return _of_run(job, run_key, job.evaluation)


def harness_measurement(job: ChatJob, run_key: str) -> EvaluateJob:
    """How lm-eval measures the final model of a run on conversations, or of one that is compared with it."""
    return _of_run(job, run_key, EvaluationConfig(batch=job.evaluation.batch, harness=job.evaluation.harness))


def _of_run(job: PipelineJob | ChatJob, run_key: str, evaluation: EvaluationConfig) -> EvaluateJob:
    return EvaluateJob(
        store=job.store,
        checkpoint=f"{run_key}/{FINAL}",
        precision=job.training.precision,
        device=job.training.device,
        sharding=job.training.sharding,
        cpu_offload=job.training.cpu_offload,
        evaluation=evaluation,
        engine=job.engine,
    )


def measurement_alike(measuring: EvaluateJob, run_key: str, evaluation: Evaluation) -> EvaluateJob:
    """How the final model of another run is measured on the same text, in the same way."""
    evaluated = measuring.evaluation.model_copy(update={"prompts": []})
    changes = {"shards": evaluation.shards, "context": evaluation.context, "evaluation": evaluated}
    return measuring.model_copy(update={"checkpoint": f"{run_key}/{FINAL}", **changes})


def gates_on_harness(gate: PromotionConfig | None) -> bool:
    """Whether a gate's figure is one of lm-eval, so that a champion must be measured by it too."""
    return gate is not None and gate.metric.startswith(PREFIX)
