"""What a job would reuse, continue or do again if it were started now, and why:

    python -m trainer.explain CONFIG.yaml [key=value ...] [--json]

For every stage the name of what it gives; where that is not in the store, what differs from the most similar one that
is. Nothing is made, and nothing is written to the store; raw files that changed since they were last digested are read,
and a model or a data set of the hub is fetched as the job itself would.
"""

import argparse
import sys

from trainer.common.errors import PipelineError
from trainer.common.formats import show, show_json
from trainer.common.outages import tell_failure
from trainer.config.files import add_config
from trainer.kinds.table import load_training_job
from trainer.pipelines.explain import foresee
from trainer.preflight.explain import Foreseen
from trainer.training.identity import TrainingJob


def describe(stage: Foreseen) -> str:
    """A stage in a line, and a line for each reason."""
    made = f", made {stage.created.replace('T', ' ').replace('+00:00', ' UTC')}" if stage.created else ""
    first = f"{stage.verdict:<11}{stage.stage:<23} {stage.key or ''}{made}".rstrip()
    return "\n".join([first, *(f"{'':<11}{line}" for line in (*stage.reasons, stage.work) if line)])


def main(arguments: list[str]) -> int:
    """Print what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.explain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parsed = parser.parse_intermixed_args(arguments)
    try:
        tell(load_training_job(parsed.config, parsed.overrides), parsed.json)
    except PipelineError as error:
        return tell_failure(error)
    return 0


def tell(job: TrainingJob, as_json: bool = False) -> None:
    """Print what becomes of every stage of a job."""
    stages = foresee(job)
    if as_json:
        show_json(stages)
    else:
        show("\n".join([*map(describe, stages), ""]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
