"""Prefect flows, which compose tasks into whole jobs, and the command lines that start them.

Prefect takes seconds to load. Modules for work that does not need it, such as printing help or refusing a
configuration, do not import it.
"""

import os
import sys
from typing import NamedTuple

from trainer.common.stopping import install_signal_handlers
from trainer.common.streams import open_closed_streams

STOP_SECONDS = 3.0
"""Time from a stop request, or from the end of the stopped stage, to the end of a flow's process."""


class FlowCommand(NamedTuple):
    """The flow that a command runs, and the function that prints its result; loaded after its configuration is read.

    `first` is the module whose libraries the flow's first stage needs, if it has stages; in flows that train jobs of
    several kinds, what all of them need. `reads` is the schema of the configuration; None for training jobs, whose
    schemas are in the table of kinds. `needs` is a function that raises the error of a job whose data other commands
    have to make first, for dry runs.
    """

    flow: str
    show: str
    first: str | None = None
    reads: str | None = None
    needs: str | None = None

    @property
    def name(self) -> str:
        """The flow's name, which is that of its module."""
        return self.flow.split(".")[1].replace("_", "-")


FLOW_COMMANDS = {
    "run": FlowCommand(
        "flows.data_to_model.data_to_model", "flows.showing.show_outcome", "trainer.kinds.pretraining.preflight"
    ),
    "finetune": FlowCommand("flows.finetune.finetune", "flows.showing.show_finetuned", "trainer.training.run"),
    "prepare": FlowCommand(
        "flows.prepare_data.prepare_data", "flows.showing.show_prepared", "trainer.data.tokenizer_training",
        reads="trainer.config.jobs.PrepareJob",
    ),
    "train": FlowCommand(
        "flows.train_model.train_model", "flows.showing.show_run", "trainer.kinds.pretraining.preflight",
        reads="trainer.config.jobs.PipelineJob", needs="trainer.kinds.pretraining.kind.require_prepared",
    ),
    "evaluate": FlowCommand(
        "flows.evaluate_model.evaluate_model", "flows.showing.show_evaluation", "trainer.kinds.pretraining.evaluate",
        reads="trainer.config.jobs.EvaluateJob",
    ),
    "predict": FlowCommand(
        "flows.predict.predict", "flows.showing.show_predictions", "trainer.kinds.labelled.predict",
        reads="trainer.config.labelled.PredictJob",
    ),
    "promote": FlowCommand(
        "flows.promote.promote_model", "flows.showing.show_move", reads="trainer.config.jobs.PromoteJob"
    ),
    "rollback": FlowCommand(
        "flows.rollback.roll_back_model", "flows.showing.show_move", reads="trainer.config.jobs.RollbackJob"
    ),
}  # fmt: skip
"""The commands that run a flow, in the help's order. From their start, signals ask them to stop."""

os.environ.setdefault("DO_NOT_TRACK", "1")  # turns off Prefect's telemetry; Prefect reads it when it is imported

# While Python still resolves `python -m flows.X`, argv[0] is "-m": the handlers are installed before Prefect is loaded,
# which takes seconds. `flows.command` installs them itself, for the commands that handle stop requests; in a deployed
# flow, started by `flows.engine`, Prefect handles them.
if sys.argv[0] == "-m" and not {"flows.command", "flows.engine"} & {word.removeprefix("-m") for word in sys.orig_argv}:
    open_closed_streams()
    install_signal_handlers(STOP_SECONDS)
