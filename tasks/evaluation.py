"""The task that measures a checkpoint on held-out text."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.showing import TaskLogger, reused, showing, worth_retrying
from tasks.stage import run_stage
from tasks.turns import DEVICES, turn
from trainer.config import EvaluateJob
from trainer.finetune_config import FinetuneJob
from trainer.measured import find_evaluation, find_scoring, identify_evaluation, identify_scoring
from trainer.results import Evaluation, FinetuneEvaluation
from trainer.storage import Store


@task(name="evaluate", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
def evaluate(job: EvaluateJob) -> Evaluation:
    """Score a checkpoint by corpus and in total, and let it continue the prompts."""
    logger, store = TaskLogger(), Store(job.store)
    result = find_evaluation(store, identify_evaluation(store, job))
    if result is None:
        with turn(DEVICES), showing() as show:
            result = Evaluation(**run_stage("evaluate", {"job": job.model_dump(mode="json")}, show, logger))
    total = result.scores.total
    create_table_artifact(
        score_table(result), key="evaluation", description=f"{job.checkpoint}: held-out loss {total.loss:.4f} nats a token"
    )
    logger.info("held-out loss %.4f, perplexity %.1f, over %d tokens", total.loss, total.perplexity, total.tokens)
    if result.reused:
        return reused(result, f"{result.key} is of this checkpoint and these settings")
    return result


def score_table(result: Evaluation) -> list[dict[str, object]]:
    """A row for each corpus, and one for all of them."""
    rows = [*result.scores.corpora.items(), ("all", result.scores.total)]
    return [
        {"corpus": name, "loss": round(score.loss, 4), "perplexity": round(score.perplexity, 2), "tokens": score.tokens}
        for name, score in rows
    ]


@task(name="evaluate", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
def evaluate_run(job: FinetuneJob, run_key: str, ranks: int) -> FinetuneEvaluation:
    """Score a run's final model on the labelled splits, and write its predictions."""
    logger, store = TaskLogger(), Store(job.store)
    result = find_scoring(store, identify_scoring(store, job, run_key))
    if result is None:
        arguments = {"job": job.model_dump(mode="json"), "run_key": run_key}
        with turn(DEVICES), showing() as show:
            result = FinetuneEvaluation(**run_stage("evaluate-run", arguments, show, logger, ranks))
    create_table_artifact(
        [{"split": split, **figures} for split, figures in result.scores.items()], key="evaluation", description=run_key
    )
    if result.reused:
        logger.info("reused %s", result.key)
        return reused(result, f"{result.key} is of the same model and data")
    return result
