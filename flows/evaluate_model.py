"""Any checkpoint, measured on held-out text: `python -m flows.evaluate_model CONFIG.yaml [key=value ...]`."""

import sys

from prefect import flow

from tasks.credentials import use_credentials
from tasks.evaluation import evaluate
from trainer.config import EvaluateJob
from trainer.results import Evaluation


@flow(name="evaluate-model", log_prints=True)
def evaluate_model(job: EvaluateJob) -> Evaluation:
    """Score a checkpoint by corpus and in total, and let it continue the prompts."""
    use_credentials()
    result: Evaluation = evaluate(job, return_state=True).result()
    return result


if __name__ == "__main__":
    from flows.cli import main, show_evaluation

    sys.exit(main(evaluate_model, EvaluateJob, show_evaluation))
