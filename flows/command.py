"""The command `headrace`: `headrace --help` lists what it does.

What is loaded here and in flows/commands is light: a command loads what it needs when it is called, so that help comes
at once.
"""

import sys
from typing import NoReturn

from flows import RUNNING, STOP_SECONDS
from trainer.common.stopping import install_signal_handlers


def main(arguments: list[str] | None = None) -> NoReturn:
    """Do what a command line asks for, and exit: with 0, 2 on bad input, 75 if it is to be run again."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in RUNNING:
        install_signal_handlers(STOP_SECONDS)  # before libraries are loaded, which takes seconds
    from flows.commands import app

    sys.exit(app(words, prog_name="headrace"))


if __name__ == "__main__":
    main()
