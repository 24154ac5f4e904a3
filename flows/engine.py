"""Run a deployed flow: `python -m flows.engine`, the command of deployments made by `headrace up`.

Does what `python -m prefect.engine` does, while a worker process loads the libraries of the flow's first stage.
"""

import os
from runpy import run_module

from flows import FLOW_COMMANDS
from tasks.stage import load_early


def main() -> None:
    """Run the flow run that a worker of Prefect names in the environment."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # so that Ctrl-C in a worker's terminal ends only the worker
    flow = os.environ.get("PREFECT__FLOW_NAME")
    if first := next((command.first for command in FLOW_COMMANDS.values() if command.name == flow), None):
        load_early(first)
    run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
