"""Names of the Hugging Face hub: what can be one, and why the hub gives nothing for it."""

from trainer.common.errors import brief

NO_NAME = "it is no file or folder here, and no name of the Hugging Face hub (MODEL or OWNER/MODEL); check the path"
"""What to say of a path that leads nowhere; relative ones begin at the folder that one is in."""


def is_hub_name(name: str) -> bool:
    """Whether a repository of the hub could have this name; a path that leads nowhere can have none, or none that is there."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def hub_reason(error: Exception) -> str:
    """Why the hub did not give a repository, or a file of it."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return "its owner grants access to it first: ask there, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "there is none of this name, or it is private"
    if isinstance(error, LocalEntryNotFoundError):
        return "it cannot be reached from here, and its local cache does not hold it"
    return brief(error)
