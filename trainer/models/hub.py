"""Fetch files of models from the Hugging Face hub; a process uses one commit of each repository."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.common.errors import ArtifactError, brief
from trainer.common.transient import FULL, is_busy, is_transient, number_of

NO_NAME = "it is no local file or folder, and not a name of the Hugging Face hub (MODEL or OWNER/MODEL); check the path"
"""Error text for a missing path."""


def is_hub_name(name: str) -> bool:
    """Whether this is a valid name of a hub repository; most missing paths are not."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def request_errors() -> tuple[Any, ...]:
    """The exceptions of requests to the hub: of the HTTP library, of the system, and of hf_xet."""
    from huggingface_hub.errors import HfHubHTTPError

    return (HfHubHTTPError.__bases__[0], OSError, RuntimeError)  # which HTTP library depends on the hub's library


def may_pass(error: Exception) -> bool:
    """Whether a request to the hub that failed may succeed later. A hub that cannot be reached at all does not count:
    its address may be wrong, or the network switched off.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        return is_busy(error.response.status_code)
    # `datasets` raises a plain ConnectionError for such a hub.
    away = isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled) or type(error) is ConnectionError
    return is_transient(error) and not away


_commits: dict[str, str] = {}
"""Commits of hub repositories, by name. A repository may change at any time, but the files that are fingerprinted must
be those that are loaded.
"""


def fetch_from_hub(name: str, wanted: Sequence[str], ignored: Sequence[str] = ()) -> Path:
    """Fetch the files of a repository that match patterns into the hub's local cache, and return their folder.

    The commit is the newest one when this process first asks for the repository, or the cached one without network.
    Raises `ArtifactError` with the reason if the hub does not provide it; transient if it may do so later.
    """
    from huggingface_hub import snapshot_download

    try:
        if name not in _commits:
            _commits[name] = Path(snapshot_download(name, allow_patterns=["config.json"])).name
        found = snapshot_download(
            name, allow_patterns=[*wanted], ignore_patterns=[*ignored] or None, revision=_commits[name]
        )
    except (ValueError, *request_errors()) as error:
        cause = cause_of(error)
        raise ArtifactError(
            f"the Hugging Face hub does not provide it: {hub_reason(cause)}", may_pass(cause)
        ) from error
    return Path(found)


def cause_of(error: Exception) -> Exception:
    """The error behind a `DatasetGenerationError` of `datasets`, or the hub's answer behind a file that the local cache
    does not hold; else the error itself.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    cause = error.__cause__
    if type(error).__name__ == "DatasetGenerationError" and isinstance(cause, Exception):
        return cause
    return cause if isinstance(error, LocalEntryNotFoundError) and isinstance(cause, HfHubHTTPError) else error


def hub_reason(error: Exception) -> str:
    """Describe why the hub did not provide a repository, file or data set."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return "access needs its owner's approval: request it on the hub, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "no repository has this name, or it is private"
    if isinstance(error, LocalEntryNotFoundError):
        return "the hub cannot be reached, and the local cache does not hold it"
    if number_of(error) in FULL:
        return f"{brief(error)}: free some space in its local cache, or set HF_HOME to a folder on a larger disk"
    return brief(error)


def commits_taken() -> dict[str, str]:
    """The commits that this process uses, by repository name."""
    return dict(_commits)


def take_commits(commits: Mapping[str, str]) -> None:
    """Use these commits from now on instead of the newest ones."""
    _commits.update(commits)
