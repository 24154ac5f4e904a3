"""Train without an orchestrator: `python -m trainer CONFIG.yaml [key=value ...]`, also under torchrun and accelerate launch.

Prepares the data if it is not prepared (on rank 0), trains or continues, evaluates, and writes the report.
"""

import argparse
import logging
import os
import sys

from trainer.config import EvaluateJob, PipelineJob
from trainer.config_file import explain, load_job
from trainer.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, PipelineError, Preempted
from trainer.progress import for_people, silent
from trainer.storage import Store


def main(arguments: list[str]) -> int:
    """Parse the command line, train, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description=__doc__,
        epilog="fields of the configuration:\n\n" + explain(PipelineJob),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    parsed = parser.parse_args(arguments)
    rank = int(os.environ.get("RANK", "0"))
    level = logging.INFO if rank == 0 else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        job = load_job(PipelineJob, parsed.config, parsed.overrides)
        return run(job, rank)
    except Preempted as stop:
        print(stop, file=sys.stderr)
        return EXIT_PREEMPTED
    except PipelineError as error:
        if rank == 0:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def run(job: PipelineJob, rank: int) -> int:
    """Train on every rank; evaluate on every rank; report on the first."""
    from trainer.measuring import evaluate_checkpoint
    from trainer.plan import StepPlan
    from trainer.preflight import preflight
    from trainer.report import make_report
    from trainer.runs import PLAN
    from trainer.runtime import leave_group
    from trainer.training import train

    progress = for_people() if rank == 0 else silent()
    if rank == 0:
        preflight(job, silent())
    trained = train(job, progress)
    if StepPlan(**Store(job.store).read_json(f"{trained.key}/{PLAN}")).holds_out:
        scores = evaluate_checkpoint(EvaluateJob(
            store=job.store, checkpoint=f"{trained.key}/final", precision=job.training.precision, evaluation=job.evaluation
        ), progress)  # fmt: skip
        if rank == 0:
            print(f"held-out loss {scores.scores.total.loss:.4f}, perplexity {scores.scores.total.perplexity:.1f}")
    leave_group()
    if rank == 0:
        store = Store(job.store)
        report = make_report(store, trained.key)
        print(f"model: {store.path(trained.key)}/final\nreport: {store.path(report.key)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
