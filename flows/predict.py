"""Predict new texts with a finished model: `python -m flows.predict CONFIG.yaml [key=value ...]`."""

import sys
from typing import Annotated

from prefect import flow

from flows.forms import FIRST, SettingsOf
from tasks.evaluation import predict_texts
from tasks.opening import open_flow
from trainer.config.files import Overrides
from trainer.config.labelled import PredictJob
from trainer.records.results import PredictedTexts


@flow(name="predict", flow_run_name="{job.name}", log_prints=True)
def predict(
    job: PredictJob,
    set: Annotated[Overrides, SettingsOf(PredictJob)] = FIRST,  # noqa: A002 - the name on the form
) -> PredictedTexts:
    """Predict the class or number of each text in some files; reuse existing predictions of the same inputs."""
    job = open_flow(job, set)
    result: PredictedTexts = predict_texts(job, return_state=True).result()
    return result


if __name__ == "__main__":
    from flows.command import main

    main(["predict", *sys.argv[1:]])
