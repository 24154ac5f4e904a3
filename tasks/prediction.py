"""The task that predicts new texts."""

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.patience import patient
from tasks.showing import TaskLogger, reused, showing, worth_retrying
from tasks.stage import run_stage
from tasks.tokenization import show_skipped
from tasks.turns import DEVICES, turn
from trainer.config.predicting import PredictJob
from trainer.kinds.labelled.predictions import describe, find_predictions, identify_predictions, predictions_step
from trainer.records.results import PredictedTexts
from trainer.store.storage import Store


@task(name="predict", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=10, retry_condition_fn=worth_retrying)
@patient()
def predict_texts(job: PredictJob) -> PredictedTexts:
    """Predict each text, unless that is published and intact."""
    logger, store = TaskLogger(), Store(job.store)
    made = find_predictions(predictions_step(store, job, identify_predictions(store, job)))
    if made is None:
        with turn(DEVICES), showing() as show:
            made = PredictedTexts(**run_stage("predict", {"job": job.model_dump(mode="json")}, show, logger, job.processes))
    create_table_artifact(
        [{"predicted": name, "value": value} for name, value in made.predicted.items()],
        key="predictions",
        description=f"{made.key}: {made.texts:,} texts, by {made.model}",
    )
    show_skipped({"splits": {job.name: made.model_dump()}})
    logger.info("%s", describe(store, made))
    return reused(made, f"{made.key} is of the same model and texts") if made.reused else made
