"""The errors that headrace raises on purpose.

    PipelineError
    ├── ConfigError        a setting is unknown, impossible or contradicts another
    ├── CorpusError        raw input is missing, empty or unreadable
    │   ├── RecordError    one record is invalid; the message contains the file and the line or offset
    │   └── ChangedFile    a raw file changed after it was read
    ├── TokenizerError     a tokenizer cannot be loaded or does not fit the data or the model
    ├── StorageError       the store cannot be read or written
    ├── ArtifactError      a published artifact is missing, damaged or of another kind
    │   └── WrongContent   a file differs from the one that its manifest lists
    ├── DeviceError        the machine lacks the requested device or precision
    ├── RunError           a run directory contains another run than the requested one
    └── RankLost           another rank ended with an error, or its machine or network connection was lost
        └── FirstRankFailed    rank 0 failed; it reports the error itself

Each message says what was found, what was expected, where, and what to do. `transient` marks errors that pass without
intervention, such as an unreachable store or a full disk: a later attempt may succeed. `waited_for` marks errors that
have been retried until the time limit.
"""

from typing import TYPE_CHECKING

from trainer.common.addresses import redacted

if TYPE_CHECKING:
    from pydantic import ValidationError

EXIT_CRASHED = 1
"""Exit status after an unexpected error, such as a bug."""

EXIT_BAD_INPUT = 2
"""Exit status after a PipelineError that the user must correct: another attempt would fail as well."""

EXIT_PREEMPTED = 75
"""Exit status after a stop request or a transient error: running the command again continues the work."""


BRIEF = 600
"""Maximum number of characters quoted from a library's message; some list every known class."""


class PipelineError(Exception):
    """An error that the user can correct, or that is transient; reported as a message without a traceback."""

    def __init__(self, message: str, transient: bool = False, waited_for: bool = False) -> None:
        # A quoted name may contain half of a surrogate pair, which neither a log nor a record can hold.
        super().__init__(redacted(message).encode(errors="backslashreplace").decode())
        self.transient, self.waited_for = transient, waited_for


class ConfigError(PipelineError):
    """A setting is unknown, impossible or contradicts another one.

    Remedy: change the setting in the message; `headrace COMMAND --help` lists the values that each setting accepts.
    """


class CorpusError(PipelineError):
    """Raw input is missing, empty or unreadable.

    Remedy: correct the paths or the format in the configuration, or the file in the message.
    """


class RecordError(CorpusError):
    """One record of a raw file is invalid.

    Remedy: correct the record at the line or offset in the message, or allow records to be skipped with
    `max_bad_records`.
    """


class ChangedFile(CorpusError):
    """A raw file changed after it was read; `path` is its key in the record of read files.

    Remedy: wait until no program writes to the file, then start the command again.
    """

    def __init__(self, message: str, path: str = "", transient: bool = False, waited_for: bool = False) -> None:
        super().__init__(message, transient, waited_for)
        self.path = path


class TokenizerError(PipelineError):
    """A tokenizer cannot be loaded, or does not fit the data or the model.

    Remedy: set another tokenizer, or the one that belongs to the model; for a newly trained one, another `vocab_size`.
    """


class StorageError(PipelineError):
    """The store cannot be read or written.

    Remedy: check the address, the permissions and the free space of the store. Transient errors are retried first.
    """


class ArtifactError(PipelineError):
    """A published artifact is missing, damaged, or not what it should be.

    Remedy: follow the message. Most artifacts are rebuilt when the command that built them is started again.
    """


class WrongContent(ArtifactError):
    """A file differs from the one that its manifest lists.

    Remedy: start the command that built the artifact again, which rebuilds the file, or restore a copy of the file.
    """


class DeviceError(PipelineError):
    """The machine lacks the requested device or precision.

    Remedy: choose another `device`, `precision` or number of `processes`, or another machine.
    """


class RunError(PipelineError):
    """A run directory contains another run than the requested one, or another process uses it.

    Remedy: remove `run` or change it, use `resume: fork`, or wait until the other process ends.
    """


class RankLost(PipelineError):
    """Another rank ended with the error in the message, or its machine or network connection was lost.

    Remedy: correct the cause in the message, then start the same command again on every machine; it continues.
    """

    def __init__(self, message: str, status: int = EXIT_PREEMPTED) -> None:
        """`status` becomes the exit status of this rank, too."""
        super().__init__(message, transient=status == EXIT_PREEMPTED)
        self.status = status


class FirstRankFailed(RankLost):
    """Rank 0 failed in work that it does for all ranks. Only rank 0 reports the error.

    Remedy: read the error of rank 0 in the same output or in the run's `logs/`.
    """


class Preempted(Exception):
    """A stage stopped on request and can be continued; training has saved its state at a step boundary."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redacted(message))


def in_one_line(error: "ValidationError") -> str:
    """The first problems of a record in one line, as `files.0.size: Input should be greater than or equal to 0`."""
    problems = [(".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")) for each in error.errors()]
    first = "; ".join(f"{place}: {message}" if place else message for place, message in problems[:3])
    return f"{first}; and {len(problems) - 3} more" if len(problems) > 3 else first


def reason_of(error: Exception) -> str:
    """The message of the operating system or a library for an error, in one line, without internal details."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} (0x{error.object[error.start]:02x}) is not valid UTF-8"
    return (isinstance(error, OSError) and error.strerror) or brief(error)


def brief(error: Exception) -> str:
    """The start of a library's error message, in one line."""
    return shortened(str(error))


def shortened(message: str) -> str:
    """The start of a library's message, in one line."""
    text = redacted(" ".join(message.split()))
    return text if len(text) <= BRIEF else f"{text[:BRIEF]} …"
