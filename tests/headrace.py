"""The command `headrace`, in the process that tests it."""

from flows.commands import app


def headrace(*words: str) -> int:
    """Do what a command line asks for; returns the exit status."""
    try:
        app(list(words), prog_name="headrace")
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a command ends with a status")
