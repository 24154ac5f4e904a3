"""A rank that compares its folder of a pretrained model with the others': `main([FOLDER])`."""

import sys

from trainer.common.errors import EXIT_BAD_INPUT, PipelineError
from trainer.training.rank_agreement import require_same_model
from trainer.training.runtime import leave_group, start_runtime


def main(arguments: list[str]) -> int:
    """Compare; a difference is told, and ends with the status of bad input."""
    runtime = start_runtime("fp32", "cpu")
    try:
        require_same_model(arguments[0], runtime)
    except PipelineError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    finally:
        leave_group()
    return 0
