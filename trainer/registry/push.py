"""Upload a finished model with its model card to the Hugging Face hub: `headrace push STORE MODEL REPO`.

The uploaded files are those listed in the manifest of the final folder, verified against it before upload. One commit
uploads all of them and deletes files of another model from the repository, so the hub has all files or none.
HF_ENDPOINT sets the hub; HF_TOKEN or `hf auth login` sets the token.
"""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from trainer.common.display import plural, show, show_json, size, text_pairs
from trainer.common.errors import ArtifactError, ConfigError, StorageError, brief
from trainer.common.transient import is_busy
from trainer.models.hub import request_errors
from trainer.models.weights import BASE, Base
from trainer.registry.lineage import find_run
from trainer.store.artifact_files import REPUBLISH, fetch_artifact, require_intact
from trainer.store.manifest import Manifest
from trainer.store.names import CARD, FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

OF_A_MODEL = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json", "config.json",
    "generation_config.json", "adapter_config.json", "adapter_model.bin", BASE, "tokenizer*", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.*",
)  # fmt: skip
"""Files of a former model that libraries would load together with, or instead of, those of the new one."""


class Pushed(NamedTuple):
    """What was uploaded, or would be: the repository, the run, and the files with their sizes in bytes."""

    repo: str
    run: str
    files: dict[str, int]
    commit: str | None
    """The URL of the commit; None if nothing was uploaded."""
    removed: list[str]
    """Files of a former model that the commit deleted."""


def push_or_preview(store: str, model: str, repo: str, private: bool, dry: bool, as_json: bool) -> None:
    """Upload a model, or print what would be uploaded."""
    found = push(Store(store), model, repo, private, dry)
    if as_json:
        show_json(found._asdict())
        return
    lines = text_pairs((size(count), name) for name, count in found.files.items())
    lines += text_pairs(("removed", name) for name in found.removed)
    total = f"{plural(len(found.files), 'file')}, {size(sum(found.files.values()))}"
    outcome = f"would be sent to {repo}" if found.commit is None else f"sent: {found.commit}"
    show("\n".join([*lines, f"{found.run}/{FINAL}: {total}, {outcome}\n"]))


def push(store: Store, model: str, repo: str, private: bool = False, dry: bool = False) -> Pushed:
    """Upload the final model of a run or champion to a repository of the hub, which is created if it is missing.

    Raises `ArtifactError` if the model is missing or damaged, `ConfigError` for an invalid repository name, a missing
    token, or a refusal by the hub, and `StorageError` if the hub cannot be reached.
    """
    _check_name(repo)
    run = find_run(store, model, exact=True)
    manifest = final_manifest(store, run)
    if manifest is None:
        raise ArtifactError(f"{store.path(run)} has no {FINAL} yet: finish the training first")
    files = {record.name: record.size for record in manifest.files}
    if CARD not in files:
        raise ArtifactError(
            f"{store.path(f'{run}/{FINAL}')} has no model card, {CARD}: run the report first, which writes it"
        )
    require_intact(store, f"{run}/{FINAL}", manifest, REPUBLISH, "changed")
    _require_reachable_base(store, run, manifest)
    if dry:
        return Pushed(repo, run, files, None, [])
    token = _token()
    folder = fetch_artifact(store, f"{run}/{FINAL}", FINAL_KIND)
    commit, removed = _send(folder, manifest, run, repo, private, token)
    return Pushed(repo, run, files, commit, removed)


def _require_reachable_base(store: Store, run: str, manifest: Manifest) -> None:
    """Raise `ConfigError` for an adapter whose base model is not on the hub, so that others cannot load it."""
    if BASE not in manifest.digests():
        return
    base = Base.model_validate(store.read_json(f"{run}/{FINAL}/{BASE}"))
    if base.origin != "hub":
        raise ConfigError(
            f"{run} is an adapter of {base.name!r}, which is not a model of the hub, so nobody else could load it; "
            "train it with model.lora.publish: merged"
        )


def _send(folder: Path, manifest: Manifest, run: str, repo: str, private: bool, token: str) -> tuple[str, list[str]]:
    """Create the repository if needed and commit the files; returns the commit's URL, and the files it deleted."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(token=token)
    additions = [CommitOperationAdd(record.name, str(folder / record.name)) for record in manifest.files]
    message = f"{run.removeprefix('runs/')}, fingerprint {manifest.fingerprint}"
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        names = {record.name for record in manifest.files}
        old = [each.path for each in api.list_repo_tree(repo) if _is_of_a_model(each.path) and each.path not in names]
        deletions = [CommitOperationDelete(name) for name in old]
        made: Any = api.create_commit(repo, [*additions, *deletions], commit_message=message)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if is_busy(status):
            raise StorageError(
                f"{api.endpoint} reports a temporary error (status {status}); try again later", transient=True
            ) from error
        hint = "; log in with a token that has write access: `hf auth login`" if status in (401, 403) else ""
        raise ConfigError(f"{api.endpoint} refuses {repo!r} (status {status}): {brief(error)}{hint}") from error
    except json.JSONDecodeError as error:
        raise StorageError(
            f"{api.endpoint} does not answer as a hub ({brief(error)}); check HF_ENDPOINT, or try again later",
            transient=True,
        ) from error
    except ValueError as error:  # the card or a file is refused
        raise ConfigError(
            f"{api.endpoint} refuses {repo!r}: {brief(error)}; to change the card, edit `card` in the job and "
            "start it again"
        ) from error
    except request_errors() as error:
        raise StorageError(
            f"{api.endpoint} cannot be reached ({brief(error)}); check the network, HF_ENDPOINT and HF_HUB_OFFLINE",
            transient=True,
        ) from error
    return str(made.commit_url), old


def _is_of_a_model(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in OF_A_MODEL)


def _check_name(repo: str) -> None:
    """Raise `ConfigError` for an invalid repository name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"{repo!r} is not a repository name: {brief(error)}; expected OWNER/NAME") from error
    if "/" not in repo:
        raise ConfigError(f"{repo!r} has no owner; expected OWNER/NAME, such as your-name/{repo}")


def _token() -> str:
    from huggingface_hub import get_token

    token = get_token()
    if token is None:
        raise ConfigError("no token for the Hugging Face hub: store one with `hf auth login`, or set HF_TOKEN")
    return token
