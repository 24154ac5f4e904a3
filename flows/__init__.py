"""Prefect flows, which compose tasks into whole jobs, and the command lines that start them.

Prefect takes seconds to load. Modules for work that does not need it, such as printing help or refusing a
configuration, do not import it.
"""

import os
import sys

from trainer.common.stopping import install_signal_handlers
from trainer.config.kinds import KINDS

STOP_SECONDS = 3.0
"""Time from a stop request, or from the end of the stopped stage, to the end of a flow's process."""

READS = {
    "prepare": "trainer.config.jobs.PrepareJob",
    "train": "trainer.config.jobs.PipelineJob",
    "evaluate": "trainer.config.jobs.EvaluateJob",
    "predict": "trainer.config.labelled.PredictJob",
    "promote": "trainer.config.jobs.PromoteJob",
    "rollback": "trainer.config.jobs.RollbackJob",
}
"""Commands that run a flow, with the schema of their configuration; the table of kinds has those of training jobs."""

RUNNING = (*dict.fromkeys(kind.command for kind in KINDS), *READS)
"""All commands that run a flow, in the help's order. From their start, SIGTERM and SIGINT ask them to stop."""

os.environ.setdefault("DO_NOT_TRACK", "1")  # turns off Prefect's telemetry; Prefect reads it when it is imported

# While Python still resolves `python -m flows.X`, argv[0] is "-m": the handlers are installed before Prefect is loaded,
# which takes seconds. `flows.command` installs them itself, for the commands that handle stop requests.
if sys.argv[0] == "-m" and "flows.command" not in (word.removeprefix("-m") for word in sys.orig_argv):
    install_signal_handlers(STOP_SECONDS)
