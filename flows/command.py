"""The command `headrace`; `headrace --help` lists its commands.

This module and flows/commands import only light modules, so that help appears immediately. A command imports what it
needs when it is called.
"""

import signal
import sys
from typing import NoReturn

from flows import FLOW_COMMANDS, STOP_SECONDS
from trainer.common.stopping import install_signal_handlers
from trainer.common.streams import open_closed_streams


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit: with 0, 2 on bad input, 75 if it should be run again."""
    open_closed_streams()
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in FLOW_COMMANDS:
        install_signal_handlers(STOP_SECONDS)  # before importing libraries, which takes seconds
    try:
        from flows.commands import app

        sys.exit(app(words, prog_name="headrace"))
    except KeyboardInterrupt:  # during the imports; later, Typer handles it
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
