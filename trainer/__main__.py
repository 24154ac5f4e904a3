"""Train without an orchestrator: `python -m trainer CONFIG.yaml [key=value ...]`, also under torchrun and accelerate launch.

Prepares the data if it is not prepared (on rank 0), trains or continues, evaluates, and writes the report. A configuration
whose `data` names a `source` fine-tunes on labelled data; any other pretrains on corpora.
"""

import argparse
import os
import sys

from trainer.config import PipelineJob
from trainer.config_file import explain
from trainer.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, PipelineError, Preempted
from trainer.finetune_config import FinetuneJob
from trainer.jobs import train
from trainer.stopping import interruptible


def main(arguments: list[str]) -> int:
    """Parse the command line, train, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description=__doc__,
        epilog=f"fields for corpora:\n\n{explain(PipelineJob)}\n\nfields for labelled data:\n\n{explain(FinetuneJob)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    parsed = parser.parse_args(arguments)
    try:
        with interruptible():
            train(parsed.config, *parsed.overrides)
    except Preempted as stop:
        print(stop, file=sys.stderr)
        return EXIT_PREEMPTED
    except PipelineError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
