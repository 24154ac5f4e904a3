"""The errors that headrace raises on purpose.

    PipelineError
    ├── ConfigError        a setting is unknown, impossible or contradicts another
    ├── CorpusError        raw input is missing, empty or unreadable
    │   ├── RecordError    one record of it is bad; names the file and the line or offset
    │   └── ChangedFile    a raw file's bytes are not those that were looked at
    ├── TokenizerError     a tokenizer cannot be loaded or does not fit the data or the model
    ├── StorageError       the store cannot be read or written
    ├── ArtifactError      a published artifact is missing, damaged or of another kind
    │   └── WrongContent   a file is not the one that its manifest lists
    ├── DeviceError        the machine lacks the device or precision that was asked for
    ├── RunError           a run directory holds something else than what was asked for
    └── RankLost           another rank has ended with an error, or is lost with its machine or network
        └── FirstRankFailed    it is rank 0, which tells its error itself

Each message says what was found, what was expected, where, and what to do about it. `transient` is true of what ends by
itself, like a store that is away or a disk that is full: trying again later will help. `waited_for`: it has been tried
for long enough.
"""

from typing import TYPE_CHECKING

from trainer.common.addresses import redacted

if TYPE_CHECKING:
    from pydantic import ValidationError

EXIT_CRASHED = 1
"""Exit status of a process that met what is nobody's to put right, like a mistake in a program."""

EXIT_BAD_INPUT = 2
"""Exit status of a process that stopped on a PipelineError that a person must put right: trying again will not help."""

EXIT_PREEMPTED = 75
"""Exit status of a process that was asked to stop, or met what passes by itself: running it again continues it."""


BRIEF = 600
"""Characters of a library's message that are passed on: some list every class that they know."""


class PipelineError(Exception):
    """Something that the user can put right, or that passes by itself; shown as its message, without a traceback."""

    def __init__(self, message: str, transient: bool = False, waited_for: bool = False) -> None:
        super().__init__(redacted(message))
        self.transient, self.waited_for = transient, waited_for


class ConfigError(PipelineError):
    """A setting is unknown, impossible or contradicts another one.

    Remedy: change the setting that the message names; `headrace COMMAND --help` tells what each setting takes.
    """


class CorpusError(PipelineError):
    """Raw input is missing, empty or unreadable.

    Remedy: correct the paths or the format in the configuration, or mend the file that the message names.
    """


class RecordError(CorpusError):
    """One record of a raw file is bad.

    Remedy: mend the record at the line or offset that the message names, or let some be skipped with `max_bad_records`.
    """


class ChangedFile(CorpusError):
    """A raw file's bytes are not those that were looked at; `path` is what it is remembered by.

    Remedy: start the command again, which looks at the file anew, once nothing writes to it any more.
    """

    def __init__(self, message: str, path: str = "", transient: bool = False, waited_for: bool = False) -> None:
        super().__init__(message, transient, waited_for)
        self.path = path


class TokenizerError(PipelineError):
    """A tokenizer cannot be loaded, or does not fit the data or the model.

    Remedy: name another tokenizer, or the one that belongs to the model; for one that is trained, another `vocab_size`.
    """


class StorageError(PipelineError):
    """The store cannot be read or written.

    Remedy: see to the address, the permissions or the space of the store. What passes by itself is waited for first.
    """


class ArtifactError(PipelineError):
    """A published artifact is missing, damaged, or not what it should be.

    Remedy: do what the message says for that file. Most can be made again by the command that made them first.
    """


class WrongContent(ArtifactError):
    """A file is not the one that its manifest lists.

    Remedy: start the command that made the artifact again, which makes the file anew, or put back a copy of it.
    """


class DeviceError(PipelineError):
    """The machine lacks the device or the precision that was asked for.

    Remedy: choose another `device`, `precision` or number of `processes`, or another machine.
    """


class RunError(PipelineError):
    """A run directory holds something else than what was asked for.

    Remedy: leave `run` out or choose another name for it, use `resume: fork`, or wait until the other process has
    ended.
    """


class RankLost(PipelineError):
    """Another rank is gone: by an error of its own, which the message tells, or with its machine or the network to it.

    Remedy: see to what the message tells; then start the same command again on every machine, which continues.
    """

    def __init__(self, message: str, status: int = EXIT_PREEMPTED) -> None:
        """`status` is that of this rank too."""
        super().__init__(message, transient=status == EXIT_PREEMPTED)
        self.status = status


class FirstRankFailed(RankLost):
    """Rank 0 failed in what it does for all ranks; it tells why, so that the others need not.

    Remedy: read the error of rank 0, in the same output or in `logs/` of the run.
    """


class Preempted(Exception):
    """A stage was asked to stop, and can be continued; training has saved its state at a step boundary."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redacted(message))


def in_one_line(error: "ValidationError") -> str:
    """What is wrong with a record that was read back, as `files.0.size: Input should be greater than or equal to 0`."""
    problems = [(".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")) for each in error.errors()]
    told = "; ".join(f"{place}: {message}" if place else message for place, message in problems[:3])
    return f"{told}; and {len(problems) - 3} more" if len(problems) > 3 else told


def reason_of(error: Exception) -> str:
    """What the system or a library says of an error, in one line, without what only its own authors understand."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} (0x{error.object[error.start]:02x}) is not valid UTF-8"
    return (isinstance(error, OSError) and error.strerror) or brief(error)


def brief(error: Exception) -> str:
    """The beginning of a library's message, in one line."""
    return shortened(str(error))


def shortened(said: str) -> str:
    """The beginning of what a library says, in one line."""
    text = redacted(" ".join(said.split()))
    return text if len(text) <= BRIEF else f"{text[:BRIEF]} …"
