"""Names of models on the Hugging Face hub, and the commits from which this process loads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.common.errors import brief

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


def hub_reason(error: Exception) -> str:
    """Describe why the hub did not provide a repository or file."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return "access needs its owner's approval: request it on the hub, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "no repository has this name, or it is private"
    if isinstance(error, LocalEntryNotFoundError):
        return "the hub cannot be reached, and the local cache does not hold it"
    return brief(error)


_commits: dict[str, str] = {}
"""Commits of hub repositories, by name. A repository may change at any time, but the files that are fingerprinted must
be those that are loaded, so a process uses one commit of each repository.
"""


def revision_of(name: str) -> dict[str, Any]:
    """The `revision` option with which libraries load a name of the hub; empty for a folder.

    It is the newest commit when this process first requests it, or the cached one without network. Raises the errors
    of `snapshot_download`.
    """
    from huggingface_hub import snapshot_download

    if Path(name).is_dir() or not is_hub_name(name):
        return {}
    if name not in _commits:
        _commits[name] = Path(snapshot_download(name, allow_patterns=["config.json"])).name
    return {"revision": _commits[name]}


def commits_taken() -> dict[str, str]:
    """The commits that this process uses, by repository name."""
    return dict(_commits)


def take_commits(commits: Mapping[str, str]) -> None:
    """Use these commits from now on instead of the newest ones."""
    _commits.update(commits)
