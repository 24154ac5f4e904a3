"""`curate` in a process that can be killed: `python -m tests.trainer.curate_once CONFIG`."""

import sys

from tests.trainer.made import curate
from trainer.common.progress import silent
from trainer.config.files import load_job
from trainer.config.jobs import PrepareJob


def main(arguments: list[str]) -> int:
    print(curate(load_job(PrepareJob, arguments[0]), silent()).key)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
