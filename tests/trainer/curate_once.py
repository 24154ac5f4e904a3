"""`curate` in a process that can be killed: `python -m tests.trainer.curate_once CONFIG`."""

import sys

from trainer.common.progress import silent
from trainer.config.files import load_job
from trainer.config.jobs import PrepareJob
from trainer.curation.curating import curate

if __name__ == "__main__":
    print(curate(load_job(PrepareJob, sys.argv[1]), silent()).key)
