"""Prefect flows, which are whole jobs composed of tasks, and the command lines that start them.

Prefect takes seconds to load. What does not need it, such as help or a refused configuration, is in modules that leave
it out.
"""

import os
import sys

from trainer.common.stopping import install_signal_handlers
from trainer.config.kinds import KINDS

STOP_SECONDS = 3.0
"""Seconds from a stop request, or from the end of the stage that is stopped, to the end of a flow's process."""

READS = {
    "prepare": "trainer.config.jobs.PrepareJob",
    "train": "trainer.config.jobs.PipelineJob",
    "evaluate": "trainer.config.jobs.EvaluateJob",
    "predict": "trainer.config.labelled.PredictJob",
    "promote": "trainer.config.jobs.PromoteJob",
    "rollback": "trainer.config.jobs.RollbackJob",
}
"""Commands that run a flow, and the schema of the configuration that each reads; those that read whole jobs are in the
table of kinds.
"""

RUNNING = (*dict.fromkeys(kind.command for kind in KINDS), *READS)
"""All of them, in the order of the help. SIGTERM and SIGINT ask these commands to stop, from their first moment on."""

os.environ.setdefault("DO_NOT_TRACK", "1")  # Prefect reads it when it is loaded: it sends no figures of use

# As long as `python -m flows.X` is looked for: before Prefect is loaded, which takes seconds. Not for `flows.command`,
# which knows of each command whether it heeds a stop.
if sys.argv[0] == "-m" and "flows.command" not in (word.removeprefix("-m") for word in sys.orig_argv):
    install_signal_handlers(STOP_SECONDS)
