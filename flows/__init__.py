"""Prefect flows, which are whole jobs composed of tasks, and the command lines that start them.

Prefect takes seconds to load. What does not need it, such as help or a refused configuration, is in modules that leave it out.
"""

import sys

from trainer.common.stopping import heed_stops

LATEST = 3.0
"""Seconds from a stop request, or from the end of the stage that is stopped, to the end of a flow's process."""

RUNNING = ("run", "finetune", "prepare", "train", "evaluate", "predict", "promote", "rollback")
"""Commands that run a flow on a configuration: SIGTERM and SIGINT ask them to stop, from their first moment on."""

if sys.argv[0] == "-m":  # as long as `python -m flows.X` is looked for: before Prefect is loaded, which takes seconds
    heed_stops(LATEST)
