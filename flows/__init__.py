"""Prefect flows, which compose tasks into whole jobs, and the command lines that start them.

Prefect takes seconds to load. Modules for work that does not need it, such as printing help or refusing a
configuration, do not import it.
"""

import os
import sys
from typing import NamedTuple

from trainer.common.stopping import install_signal_handlers

STOP_SECONDS = 3.0
"""Time from a stop request, or from the end of the stopped stage, to the end of a flow's process."""


class FlowCommand(NamedTuple):
    """The flow that a command runs, and the function that prints its result; loaded after its configuration is read.

    `reads` is the schema of the configuration; None for training jobs, whose schemas are in the table of kinds.
    """

    flow: str
    show: str
    reads: str | None = None


FLOW_COMMANDS = {
    "run": FlowCommand("flows.data_to_model.data_to_model", "flows.showing.show_outcome"),
    "finetune": FlowCommand("flows.finetune.finetune", "flows.showing.show_finetuned"),
    "prepare": FlowCommand(
        "flows.prepare_data.prepare_data", "flows.showing.show_prepared", "trainer.config.jobs.PrepareJob"
    ),
    "train": FlowCommand("flows.train_model.train_model", "flows.showing.show_run", "trainer.config.jobs.PipelineJob"),
    "evaluate": FlowCommand(
        "flows.evaluate_model.evaluate_model", "flows.showing.show_evaluation", "trainer.config.jobs.EvaluateJob"
    ),
    "predict": FlowCommand(
        "flows.predict.predict", "flows.showing.show_predictions", "trainer.config.labelled.PredictJob"
    ),
    "promote": FlowCommand("flows.promote.promote_model", "flows.showing.show_move", "trainer.config.jobs.PromoteJob"),
    "rollback": FlowCommand(
        "flows.rollback.roll_back_model", "flows.showing.show_move", "trainer.config.jobs.RollbackJob"
    ),
}
"""The commands that run a flow, in the help's order. From their start, SIGTERM and SIGINT ask them to stop."""

os.environ.setdefault("DO_NOT_TRACK", "1")  # turns off Prefect's telemetry; Prefect reads it when it is imported

# While Python still resolves `python -m flows.X`, argv[0] is "-m": the handlers are installed before Prefect is loaded,
# which takes seconds. `flows.command` installs them itself, for the commands that handle stop requests.
if sys.argv[0] == "-m" and "flows.command" not in (word.removeprefix("-m") for word in sys.orig_argv):
    install_signal_handlers(STOP_SECONDS)
