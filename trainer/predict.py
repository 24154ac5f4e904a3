"""Predict new texts with a finished model: `python -m trainer.predict CONFIG.yaml [key=value ...]`."""

import argparse
import logging
import sys

from trainer.common.display import show
from trainer.common.process import on_rank, own_rank
from trainer.common.progress import for_people, silent
from trainer.common.stopping import install_signal_handlers, leave
from trainer.common.streams import open_closed_streams
from trainer.config.files import add_config, explain, load_job
from trainer.config.labelled import PredictJob
from trainer.kinds.labelled.predict import predict_texts
from trainer.kinds.labelled.predictions import describe
from trainer.store.storage import Store
from trainer.training.logs import for_terminals, start_logging
from trainer.training.runtime import leave_group


def main(arguments: list[str]) -> int:
    """Predict, also under torchrun, and print a summary. Returns 0, 2 for bad input, or 75 if it must be run again."""
    open_closed_streams()
    install_signal_handlers()
    parser = argparse.ArgumentParser(
        prog="python -m trainer.predict",
        description=__doc__,
        epilog=f"fields of the configuration:\n\n{explain(PredictJob)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config(parser)
    parsed = parser.parse_args(arguments)
    first = not own_rank()
    start_logging(logging.INFO if first else logging.ERROR, for_terminals())

    def work() -> None:
        job = load_job(PredictJob, parsed.config, parsed.overrides)
        made = predict_texts(job, for_people(sys.stderr) if first else silent())
        leave_group()
        if first:
            show(f"{describe(Store(job.store), made)}\n")

    return leave(on_rank(work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
