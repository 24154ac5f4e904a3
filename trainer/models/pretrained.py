"""Models to start from or to measure, by name: a run of the store, a folder in it, any folder, or the hub's; their
configurations and tokenizers, loaded without running anything that they bring.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainer.common.errors import ArtifactError, ConfigError, TokenizerError, brief, reason_of
from trainer.models.tensor_files import of_optimizer
from trainer.models.weights import CONVERT, Base, base_of, is_adapter, read_base, require_base
from trainer.records.run_names import made_by, tell_runs_like, ways_to
from trainer.records.sealed import read_pointer, read_sealed
from trainer.store.manifest import MANIFEST, digest_file, fetch_files, read_manifest, require_intact
from trainer.store.names import CARD, CHAMPION, CHECKPOINT_KIND, CONFIG, FINAL, FINAL_KIND, is_plain_key
from trainer.store.storage import Store

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NO_NAME = "it is no file or folder here, and no name of the Hugging Face hub (MODEL or OWNER/MODEL); check the path"
"""What to say of a path that leads nowhere; relative ones begin at the folder that one is in."""


def is_hub_name(name: str) -> bool:
    """Whether a repository of the hub could have this name; a path that leads nowhere can have none, or none that is
    there.
    """
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


_commits: dict[str, str] = {}
"""Commits of repositories of the hub, by name. A repository may change at any time, and what names a run must be what
is loaded for it: so all files that a process takes of a repository are of one commit.
"""


def revision_of(name: str) -> dict[str, Any]:
    """The option by which libraries load a pretrained name of the hub: its commit, the newest when this process first
    asks for it, or, without network, the cached one. Nothing for a folder.

    Raises what `snapshot_download` does.
    """
    from huggingface_hub import snapshot_download

    if Path(name).is_dir() or not is_hub_name(name):
        return {}
    if name not in _commits:
        _commits[name] = Path(snapshot_download(name, allow_patterns=["config.json"])).name
    return {"revision": _commits[name]}


def commits_taken() -> dict[str, str]:
    """The commits that this process takes files of, by the names of their repositories."""
    return dict(_commits)


def take_commits(commits: Mapping[str, str]) -> None:
    """Take files of these commits from now on, whichever are newest."""
    _commits.update(commits)


HUB_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.safetensors")
"""What libraries load of a model. Older weights, pytorch_model.bin, are pickled, and are neither fetched nor loaded."""


class Checkpoint(NamedTuple):
    """A checkpoint found: where its files are, the digests of all of them, its key if it is in the store, and its
    origin.

    Of an adapter, `beside` is the folder of the model that it was trained beside.
    """

    folder: str
    files: dict[str, str]
    key: str | None
    origin: Literal["store", "folder", "hub"]
    beside: str | None = None


def find_model(store: Store, name: str, hub: bool = False) -> Checkpoint:
    """A model, as `_find` says, and the base model of what is an adapter.

    Raises `ArtifactError` if there is no such model or it is damaged, or the base model is another one now.
    """
    found = _find(store, name, hub)
    base = read_base(Path(found.folder)) if is_adapter(Path(found.folder)) else None
    if base is None:
        return found
    beside = _find_beside(store, found.folder, base)
    require_base(Path(found.folder), identify_base(base.name, beside))
    return found._replace(beside=beside.folder)


def _find_beside(store: Store, folder: str, base: Base) -> Checkpoint:
    """The base model that an adapter's folder names. Raises `ArtifactError` if it is not there, or damaged."""
    places = (
        [base.key or base.name]
        if base.path is None
        else [place for place in (base.path, base.name) if _is_model(place)]
    )
    if not places:
        raise ArtifactError(
            f"{folder} is an adapter of the model {base.name!r}, which is neither in {base.path}, where it was when "
            f"that was trained, nor there as seen from {Path.cwd()}; put it back"
        )
    try:
        return _find(store, places[0], base.origin == "hub")
    except ArtifactError as error:
        raise ArtifactError(f"{folder} is an adapter, and its base model is not to be had: {error}") from error


def _is_model(folder: str) -> bool:
    return Path(folder, "config.json").is_file()


def find_base(store: Store, name: str) -> Checkpoint:
    """The model that an adapter is trained beside: a folder here, else as `find_model` finds it, on the hub too."""
    return find_outside(store, name) if _is_model(name) else _find(store, name, hub=True)


def find_outside(store: Store, name: str) -> Checkpoint:
    """A model that is not of the store: a folder here, else of the hub. Raises `ArtifactError` if the hub has none."""
    if Path(name).is_dir():
        return Checkpoint(name, digest_files(Path(name)), None, "folder")
    folder = _fetch_from_hub(store, name)
    return Checkpoint(str(folder), digest_files(folder), None, "hub")


def identify_base(name: str, found: Checkpoint) -> Base:
    """What an adapter's folder says of the model that it is beside."""
    return base_of(name, found.origin, found.key, found.files)


def _find(store: Store, name: str, hub: bool) -> Checkpoint:
    """A run's name, a pointer (runs/NAME/checkpoint-best, models/NAME for a champion), a folder in the store, or a
    pretrained folder.

    With `hub`, what is none of these and looks like it is taken for the name of a model of the Hugging Face hub, and
    fetched. Raises `ArtifactError` if there is no such model or it is damaged.
    """
    named = posixpath.normpath(name)
    made = [named, *made_by(store, named)]
    candidates = [*dict.fromkeys(ways_to(store, name)), *(f"runs/{run}/{FINAL}" for run in made)]
    is_pointer = named.rsplit("/", 1)[-1].startswith("checkpoint-") and is_plain_key(named) and not Path(name).is_dir()
    if is_pointer and (target := read_pointer(store, named)):
        candidates.insert(0, f"{named.rsplit('/', 1)[0]}/{target.checkpoint}")
    champion = _champion(store, named)
    if champion is not None:
        candidates.insert(0, f"{champion['run']}/{FINAL}")
    for key in candidates:
        kind = FINAL_KIND if key.endswith(f"/{FINAL}") else CHECKPOINT_KIND
        if is_plain_key(key) and (manifest := read_manifest(store, key, kind)):
            if champion is not None and champion["fingerprint"] != manifest.fingerprint:
                raise ArtifactError(
                    f"{store.path(key)} holds another model than the one that became {name}; promote one anew"
                )
            # Else it is compared when it is fetched.
            require_intact(store, key, manifest, content=store.local is not None)
            # The model card tells of an evaluation, so it must not make that evaluation another one.
            files = {name: sha256 for name, sha256 in manifest.digests().items() if name != CARD}
            folder = fetch_files(store, key, manifest, lambda file: not of_optimizer(file))
            return Checkpoint(str(folder), files, key, "store")
    if _is_model(name) or (hub and is_hub_name(name) and not Path(name).exists()):
        return find_outside(store, name)
    if _champion(store, f"models/{named}") is not None:
        raise ArtifactError(f"no checkpoint {name!r}: {_not_here(store)}; the champion is called models/{named}")
    like = tell_runs_like(store, named.removeprefix("runs/").partition("/")[0]) if store.names("runs") else ""
    raise ArtifactError(f"no checkpoint {name!r}: {_not_here(store)}{f'; {like}' if like else ''}")


def _champion(store: Store, name: str) -> dict[str, Any] | None:
    """The last move of the history at models/NAME/champion, which models/NAME stands for too; None if there is none."""
    key = f"{name.removesuffix(f'/{CHAMPION}')}/{CHAMPION}"
    is_champion = re.fullmatch(rf"models/[^/]+/{CHAMPION}", key) is not None and is_plain_key(key)
    found = read_sealed(store, key) if is_champion else None
    return found["moves"][-1] if found else None


def require_one_meaning(store: Store, name: str) -> None:
    """Raise `ConfigError` if a name is a run's, and the one under which another run's model is champion."""
    champion = _champion(store, f"models/{name}")
    if champion is not None and champion["run"] != f"runs/{name}" and store.exists(f"runs/{name}/{CONFIG}"):
        raise ConfigError(
            f"{name!r} is a run, and the name under which the model of {champion['run']} is champion: say runs/{name}, "
            f"or models/{name}"
        )


def digest_files(folder: Path) -> dict[str, str]:
    """The digests of a model folder's files, by name: of those that libraries load, not of what is told about them.

    What has not changed since the last time is not read again.
    """
    loaded = sorted({path for pattern in HUB_FILES for path in folder.glob(pattern)})
    found = {path.name: path.stat() for path in loaded if path.is_file() and path.name != MANIFEST}
    return {name: _digest(folder / name, status.st_size, status.st_mtime_ns) for name, status in found.items()}


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, modified: int) -> str:
    return digest_file(path).sha256


def _fetch_from_hub(store: Store, name: str) -> Path:
    """The files of a model of the hub, of the commit that `revision_of` says, in its local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        wanted = [*HUB_FILES, CARD]  # the card says the model's license
        folder = Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"], **revision_of(name)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ArtifactError(
            f"no checkpoint {name!r}: {_not_here(store)}; and the Hugging Face hub does not give it: "
            f"{hub_reason(error)}"
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise ArtifactError(f"model {name!r} of the Hugging Face hub has no weights in safetensors; {CONVERT}")
    return folder


def _not_here(store: Store) -> str:
    return f"neither a run in {store.path('runs')}, nor a published folder there, nor a model folder"


OF_TEXTS, OF_WORDS = "ForSequenceClassification", "ForTokenClassification"
"""A head that classifies a text as a whole, and one that classifies each token."""

MASKED = "ForMaskedLM"
"""A head that tells hidden tokens."""


def classifies(architectures: Iterable[str] | None) -> bool:
    """Whether a model classifies anything, by the architectures that its configuration names."""
    return any(name.endswith((OF_TEXTS, OF_WORDS)) for name in architectures or ())


def classifies_words(architectures: Iterable[str] | None) -> bool:
    """Whether a model has a label for each token."""
    return any(name.endswith(OF_WORDS) for name in architectures or ())


def continues_text(architectures: Iterable[str] | None) -> bool:
    """Whether a model may be one that continues text: it neither classifies nor tells hidden tokens."""
    return not any(name.endswith((OF_TEXTS, OF_WORDS, MASKED)) for name in architectures or ())


SETTINGS = ("config.json", "tokenizer_config.json")
"""Files that may name Python code of the model's repository, which libraries would run or ask whether to."""


def check_settings(name: str) -> None:
    """Raise `ConfigError` if a model's folder, or a model of the hub, needs code of its own repository to be run."""
    for file in SETTINGS:
        path = _find_file(name, file)
        settings = read_object(path) if path else {}
        if "auto_map" in settings:
            raise ConfigError(
                f"{file} of model {name!r} has an auto_map ({settings['auto_map']!r}): it names Python code of the "
                "model's own repository, which is never run here. If transformers knows the model by its model_type, "
                "remove auto_map from a local copy and name that folder; else choose another model"
            )
        attention = settings.get("attn_implementation")
        if isinstance(attention, str) and "/" in attention:
            raise ConfigError(
                f"{file} of model {name!r} names {attention!r} as its attention implementation: that is code of the "
                "hub, which is never run here; remove attn_implementation from a local copy and name that folder"
            )


def _find_file(name: str, file: str) -> Path | None:
    """A file of a model: in its folder, or fetched from the hub. None if there is none, or it cannot be had."""
    if Path(name).is_dir():
        return Path(name, file) if Path(name, file).is_file() else None
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(name, file, **revision_of(name))
    except OSError:
        return None  # whatever loads the model says what is wrong with its name or the network
    return Path(found) if found else None


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file of a model holds. Raises `ConfigError` if that is no object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}")
    return value


def load_config(name: str) -> "PretrainedConfig":
    """The configuration of a model folder or a pretrained name. Raises `ConfigError` if it needs code of its own, or is
    bad.
    """
    from transformers import AutoConfig

    check_settings(name)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False, **revision_of(name))
    except Exception as error:  # hub, file system and format errors alike
        raise ConfigError(f"model {name!r} cannot be loaded: {brief(error)}") from error
    return config


def load_tokenizer(name: str, plain: bool = False) -> Any:
    """The tokenizer of a model folder or a pretrained name, of the `plain` class if so.

    Raises `ConfigError` if it needs code of its own, `TokenizerError` if there is none, or it cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    check_settings(name)
    try:
        tokenizer = (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the libraries raise bare Exceptions for every kind of bad file
        raise TokenizerError(f"the tokenizer of {name!r} cannot be loaded: {brief(error)}") from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"the tokenizer of {name!r} is none of the `tokenizers` library; convert it to a tokenizer.json"
        )
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # what transformers makes where there is none
        raise TokenizerError(
            f"model {name!r} has no tokenizer, or an empty one; put the files of its tokenizer beside it"
        )
    return tokenizer
