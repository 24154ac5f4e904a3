"""The command `headrace` in the test's process."""

from flows.commands import app


def headrace(*words: str) -> int:
    """Run a command line; return the exit status."""
    try:
        app(list(words), prog_name="headrace")
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a command ends with a status")
