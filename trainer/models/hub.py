"""Fetch files of models from the Hugging Face hub; a process uses one commit of each repository."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.common.errors import ArtifactError, brief
from trainer.common.transient import FULL, is_transient, number_of

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
    """The exceptions of requests to the hub: of its library and the HTTP library, of the system, and of hf_xet."""
    from huggingface_hub.errors import HfHubHTTPError

    return (HfHubHTTPError.__bases__[0], OSError, RuntimeError)  # the library depends on the version


BROKEN_OFF = {"NetworkError", "RemoteProtocolError", "TimeoutException"}
"""Names of the HTTP library's exceptions for requests that may succeed later."""


_commits: dict[str, str] = {}
"""Commits of hub repositories, by name. A repository may change at any time, but the files that are fingerprinted must
be those that are loaded.
"""


def fetch_from_hub(name: str, wanted: Sequence[str], ignored: Sequence[str] = ()) -> Path:
    """Fetch the files of a repository that match patterns into the hub's local cache, and return their folder.

    The commit is the newest one when this process first asks for the repository, or the cached one without network.
    Raises `ArtifactError` with the reason if the hub does not provide it; transient if a download broke off.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        if name not in _commits:
            _commits[name] = Path(snapshot_download(name, allow_patterns=["config.json"])).name
        found = snapshot_download(
            name, allow_patterns=[*wanted], ignore_patterns=[*ignored] or None, revision=_commits[name]
        )
    except (ValueError, *request_errors()) as error:
        # A hub that cannot be reached at all is not waited for: its address may be wrong.
        broke_off = not isinstance(error, HfHubHTTPError) and (
            is_transient(error) or any(kind.__name__ in BROKEN_OFF for kind in type(error).__mro__)
        )
        raise ArtifactError(f"the Hugging Face hub does not provide it: {hub_reason(error)}", broke_off) from error
    return Path(found)


def cause_of(error: Exception) -> Exception:
    """The error behind one of `datasets` that only says that something failed; else the error itself."""
    hidden = error.__cause__ if type(error).__name__ == "DatasetGenerationError" else None
    return hidden if isinstance(hidden, Exception) else error


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
