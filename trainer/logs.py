"""Log records of a process: its own, without those of libraries that tell of every connection."""

import logging

TALKATIVE = ("aiobotocore", "httpx")


def start_logging(level: int, handler: logging.Handler) -> None:
    """Send the records of this process from a level on to a handler."""
    logging.basicConfig(level=level, handlers=[handler])
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def for_terminals() -> logging.Handler:
    """A handler that writes lines with the time to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    return handler
