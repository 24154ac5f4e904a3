"""Find models by name: a run or folder of the store, any other folder, or a name of the hub.

Also loads their configurations and tokenizers, without running code from the model's repository.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainer.common.errors import ArtifactError, ConfigError, TokenizerError, brief, reason_of
from trainer.common.transient import is_transient
from trainer.models.hub import NO_NAME, fetch_from_hub, is_hub_name
from trainer.models.tensor_files import of_optimizer
from trainer.models.weights import CONVERT, Base, is_adapter, read_base, require_base
from trainer.records.run_names import RUN_PREFIX, is_path, made_by, run_at, suggest_runs, ways_to
from trainer.records.sealed import read_pointer, read_sealed
from trainer.store.artifact_files import explaining_removal, fetch_files, require_intact
from trainer.store.checked_files import local_version
from trainer.store.manifest import MANIFEST, Manifest, digest_file, read_manifest
from trainer.store.names import CARD, CHAMPION, CHECKPOINT_KIND, CONFIG, FINAL, FINAL_KIND, LAST, is_plain_key
from trainer.store.storage import Store

if TYPE_CHECKING:
    from transformers import PretrainedConfig

UNLIMITED = 10**20
"""A length from here on means that there is no limit: of a model's positions, or of a tokenizer's `model_max_length`.
"""


HUB_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.safetensors")
"""Files of a model that libraries load. Pickled weights (pytorch_model.bin) are neither fetched nor loaded."""

TEMPLATES = "additional_chat_templates"
"""The folder of a tokenizer's named chat templates, of which one may be its `default`."""


class Checkpoint(NamedTuple):
    """A found checkpoint: its folder, the digests of its files, its key if it is in the store, and its origin.

    For an adapter, `beside` is the folder of its base model.
    """

    folder: str
    files: dict[str, str]
    key: str | None
    origin: Literal["store", "folder", "hub"]
    beside: str | None = None


def find_model(store: Store, name: str, hub: bool = False) -> Checkpoint:
    """Find a model as `_find` does, and the base model of an adapter.

    Raises `ArtifactError` if the model is missing or damaged, or the base model has changed.
    """
    return _with_base(store, _find(store, name, hub))


def find_pretrained(store: Store, name: str) -> Checkpoint:
    """Find a model to train further: as `find_model` does if `is_named_own`, else a local folder or one of the hub.

    A run may have the name of the model that it was trained from, so a name alone never means a run: the next start
    would train its result again. Raises as `find_model`.
    """
    if is_named_own(store, name):
        return find_model(store, name)
    return _with_base(store, _find_outside(store, name, hub=True))


def is_named_own(store: Store, name: str) -> bool:
    """Whether a name is the key or path of a run or champion of the store: runs/..., models/..."""
    return "/" in name and any(way.startswith((RUN_PREFIX, "models/")) for way in ways_to(store, name))


def _with_base(store: Store, found: Checkpoint) -> Checkpoint:
    base = read_base(Path(found.folder)) if is_adapter(Path(found.folder)) else None
    if base is None:
        return found
    beside = _find_beside(store, found.folder, base)
    require_base(Path(found.folder), identify_base(base.name, beside))
    return found._replace(beside=beside.folder)


def _find_beside(store: Store, folder: str, base: Base) -> Checkpoint:
    """Find the base model of an adapter; raises `ArtifactError` if it is missing or damaged."""
    places = (
        [base.key or base.name]
        if base.path is None
        else [place for place in (base.path, base.name) if _is_model(place)]
    )
    if not places:
        raise ArtifactError(
            f"{folder} is an adapter of the model {base.name!r}, which is neither in {base.path}, where it was during "
            f"training, nor at that name relative to {Path.cwd()}; put it back"
        )
    try:
        if base.origin == "hub":
            return _fetch_from_hub(store, places[0])
        return find_pretrained(store, places[0])
    except ArtifactError as error:
        raise ArtifactError(
            f"{folder} is an adapter, and its base model is not available: {error}", error.transient
        ) from error


def _is_model(folder: str) -> bool:
    return Path(folder, "config.json").is_file()


def identify_base(name: str, found: Checkpoint) -> Base:
    """The record of an adapter's base model, with the digests of the files that determine what it computes."""
    files = {
        file: sha256
        for file, sha256 in sorted(found.files.items())
        if file == "config.json" or (file.endswith(".safetensors") and not of_optimizer(file))
    }
    path = str(Path(name).absolute()) if found.origin == "folder" else None
    return Base(name=name, origin=found.origin, key=found.key, files=files, path=path)


def _find(store: Store, name: str, hub: bool) -> Checkpoint:
    """Find a model of the store as `locate` does, else a local folder, else with `hub` one of the Hugging Face hub.

    Raises `ArtifactError` if the model is missing or damaged, `ConfigError` for a name of two models.
    """
    if (own := locate(store, name)) is None:
        return _find_outside(store, name, hub)
    key, manifest = own
    # Contents in a remote store are compared when they are fetched.
    with explaining_removal(store, key):
        require_intact(store, key, manifest, depth="changed" if store.local else "sizes")
        folder = fetch_files(store, key, manifest, lambda file: not of_optimizer(file))
    # The model card reports an evaluation, so it must not change that evaluation's fingerprint.
    files = {name: sha256 for name, sha256 in manifest.digests().items() if name != CARD}
    return Checkpoint(str(folder), files, key, "store")


def locate(store: Store, name: str) -> tuple[str, Manifest] | None:
    """The key and manifest of a model of the store: a run's final model (NAME, runs/NAME, with the run's full name or
    its job's), a champion (models/NAME), a pointer (runs/NAME/checkpoint-best), or another folder; None if there is
    none.

    Raises `ArtifactError` if the champion's run now has another model, `ConfigError` for a name that a local model's
    folder has too.
    """
    ways = [*dict.fromkeys(ways_to(store, name))]
    job, slash, rest = posixpath.normpath(name).removeprefix(RUN_PREFIX).partition("/")
    of_job = [f"{RUN_PREFIX}{run}{slash}{rest}" for run in ([] if is_path(name) else made_by(store, job))]
    runs = [*(way if way.startswith(RUN_PREFIX) else f"{RUN_PREFIX}{way}" for way in ways), *of_job]
    pointers = [way for way in (*ways, *of_job) if way.startswith(RUN_PREFIX) and is_plain_key(way)]
    targets = [
        f"{way.rpartition('/')[0]}/{target.checkpoint}"
        for way in pointers
        if way.rpartition("/")[2].startswith("checkpoint-") and (target := read_pointer(store, way))
    ]
    champion = next(filter(None, (_champion(store, way) for way in ways)), None)
    promoted = [f"{champion['run']}/{FINAL}"] if champion else []
    for key in (*promoted, *targets, *ways, *of_job, *(f"{run}/{FINAL}" for run in runs)):
        kind = FINAL_KIND if key.endswith(f"/{FINAL}") else CHECKPOINT_KIND
        if is_plain_key(key) and (manifest := read_manifest(store, key, kind)):
            if champion is not None and champion["fingerprint"] != manifest.fingerprint:
                raise ArtifactError(
                    f"{store.path(key)} now holds a different model than the one promoted as {name}; promote one again"
                )
            if not is_path(name) and posixpath.normpath(name) != key and _is_model_outside(store, name):
                raise ConfigError(
                    f"{name!r} is both {key} in the store {store.url} and a local folder; write {key}, or for the "
                    f"folder ./{posixpath.normpath(name)}"
                )
            return key, manifest
    return None


def _find_outside(store: Store, name: str, hub: bool) -> Checkpoint:
    if _is_model_outside(store, name):
        return Checkpoint(name, digest_files(Path(name)), None, "folder")
    if hub and is_hub_name(name) and not Path(name).exists():
        return _fetch_from_hub(store, name)
    named, why = posixpath.normpath(name), _suggest_own(store, name)
    if not why and Path(name).is_dir():
        why = "; the folder has no config.json: give a model's folder"
    elif not why and hub and not is_hub_name(name):
        why = f"; {NO_NAME}"
    elif not why and store.names("runs"):
        prefix = RUN_PREFIX if named.startswith(RUN_PREFIX) else ""
        why = f"; {suggest_runs(store, named.removeprefix(RUN_PREFIX).partition('/')[0], prefix)}"
    raise ArtifactError(f"no checkpoint {name!r}: {_not_here(store)}{why}")


def _is_model_outside(store: Store, name: str) -> bool:
    """Whether a path is a model's folder. A run's own folder is none: its config.json is not a model's."""
    if not _is_model(name):
        return False
    return store.local is None or not Path(name).resolve().is_relative_to((store.local / "runs").resolve())


def _champion(store: Store, name: str) -> dict[str, Any] | None:
    """The last move of the history at models/NAME/champion, given that key or models/NAME; None if there is none."""
    key = f"{name.removesuffix(f'/{CHAMPION}')}/{CHAMPION}"
    is_champion = re.fullmatch(rf"models/[^/]+/{CHAMPION}", key) is not None and is_plain_key(key)
    found = read_sealed(store, key) if is_champion else None
    return found["moves"][-1] if found else None


def require_one_meaning(store: Store, name: str) -> None:
    """Raise `ConfigError` if a name is that of a run and also of a champion from another run."""
    champion = _champion(store, f"models/{name}")
    if champion is not None and champion["run"] != f"runs/{name}" and store.exists(f"runs/{name}/{CONFIG}"):
        raise ConfigError(
            f"{name!r} is both a run and the name of a champion, the model of {champion['run']}: write runs/{name} or "
            f"models/{name}"
        )


def digest_files(folder: Path) -> dict[str, str]:
    """The digests, by name, of the files that libraries load from a model's folder; unchanged files are not reread."""
    loaded = sorted({path for pattern in (*HUB_FILES, f"{TEMPLATES}/*.jinja") for path in folder.glob(pattern)})
    files = {path.relative_to(folder).as_posix(): path for path in loaded if path.is_file()}
    found = {name: path.stat() for name, path in files.items() if name != MANIFEST}
    return {name: _digest(folder / name, local_version(status)) for name, status in found.items()}


@lru_cache(maxsize=1024)
def _digest(path: Path, version: str) -> str:
    return digest_file(path).sha256


def _fetch_from_hub(store: Store, name: str) -> Checkpoint:
    try:
        fetch_from_hub(name, [f"{TEMPLATES}/*.jinja"])
        folder = fetch_from_hub(name, [*HUB_FILES, CARD], ignored=["*/*"])  # the card holds the model's license
    except ArtifactError as error:
        raise ArtifactError(
            f"no checkpoint {name!r}: {_not_here(store)}; and {error}{_suggest_own(store, name)}", error.transient
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise ArtifactError(f"model {name!r} of the Hugging Face hub has no weights in safetensors; {CONVERT}")
    return Checkpoint(str(folder), digest_files(folder), None, "hub")


def _not_here(store: Store) -> str:
    return f"neither a run in {store.path('runs')}, nor a published folder there, nor a model folder"


def _suggest_own(store: Store, name: str) -> str:
    """The champion or run of the store that a name probably means, as the end of a message; empty if there is none."""
    named = (run_at(store, name) or posixpath.normpath(name)).removeprefix("models/").removeprefix(RUN_PREFIX)
    champion = _champion(store, f"models/{named}")
    found = {f"models/{named}": champion["run"]} if champion else {}
    runs = [named]
    with suppress(ConfigError):  # several runs begin with this name
        runs += made_by(store, named)
    found |= {run: run for run in (f"{RUN_PREFIX}{each}" for each in runs)}
    for own, run in found.items():
        if is_plain_key(f"{run}/{FINAL}") and read_manifest(store, f"{run}/{FINAL}", FINAL_KIND):
            return f"; if {own} of the store is meant, write {own}"
        if is_plain_key(run) and store.exists(f"{run}/{CONFIG}"):
            return f"; {run} is not finished: give one of its checkpoints, such as {run}/{LAST}"
    return ""


OF_TEXTS, OF_WORDS = "ForSequenceClassification", "ForTokenClassification"
"""Class name endings of heads that classify a whole text, and each token."""

MASKED = "ForMaskedLM"
"""Class name ending of heads that predict hidden tokens."""


READS_PADDING = ("convbert", "fnet", "funnel", "nystromformer", "xlnet", "yoso")
"""Model types whose classifiers read padding as text, so that their outputs depend on the batch."""


def outputs_depend_on_batch(folder: str) -> bool:
    """Whether a classifier is of such a type; `depends_on_padding` tests any loaded one."""
    return read_object(Path(folder, "config.json")).get("model_type") in READS_PADDING


def classifies(architectures: Iterable[str] | None) -> bool:
    """Whether a model is a classifier, by its configuration's architectures."""
    return any(name.endswith((OF_TEXTS, OF_WORDS)) for name in architectures or ())


def classifies_words(architectures: Iterable[str] | None) -> bool:
    """Whether a model classifies each token."""
    return any(name.endswith(OF_WORDS) for name in architectures or ())


def continues_text(architectures: Iterable[str] | None) -> bool:
    """Whether a model may continue text: it is neither a classifier nor a masked language model."""
    return not any(name.endswith((OF_TEXTS, OF_WORDS, MASKED)) for name in architectures or ())


def architectures_of(folder: str) -> list[str]:
    """The architectures in the configuration of a model's folder; raises `ConfigError` if it cannot be read."""
    return [str(name) for name in read_object(Path(folder, "config.json")).get("architectures") or ()]


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The names of a classifier's classes in its configuration, in the order of their ids."""
    names: dict[str, str] = config.get("id2label") or {}
    return [names[number] for number in sorted(names, key=int)]


SETTINGS = ("config.json", "tokenizer_config.json")
"""Files that may refer to Python code of the model's repository, which libraries would run, or offer to run."""


def check_settings(folder: str, name: str | None = None) -> None:
    """Raise `ConfigError` if a model's folder needs code of the model's repository. Errors call the model by its name,
    else its folder.
    """
    name = name or folder
    for file in SETTINGS:
        path = Path(folder, file)
        settings = read_object(path) if path.is_file() else {}
        if "auto_map" in settings:
            raise ConfigError(
                f"{file} of model {name!r} has an auto_map ({settings['auto_map']!r}): it refers to Python code of the "
                "model's own repository, which headrace never runs. If transformers supports the model_type, remove "
                "auto_map from a local copy and use that folder; else choose another model"
            )
        for key in ("attn_implementation", "_attn_implementation"):  # a name, or names by the parts of the model
            if "/" in str(attention := settings.get(key)):
                raise ConfigError(
                    f"{file} of model {name!r} has the attention implementation {attention!r}: that is code of the "
                    f"hub, which headrace never runs; remove {key} from a local copy and use that folder"
                )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model; raises `ConfigError` if it is not an object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}")
    return value


def load_config(folder: str) -> "PretrainedConfig":
    """Load the configuration in a model's folder; raises `ConfigError` if it is bad or needs custom code."""
    from transformers import AutoConfig

    check_settings(folder)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # file system and format errors alike
        raise ConfigError(f"model {folder!r} cannot be loaded: {brief(error)}", is_transient(error)) from error
    return config


def most_positions(config: "PretrainedConfig") -> int:
    """The number of a model's positions; `UNLIMITED` if it has no limit."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or 0
    return positions if positions > 0 else UNLIMITED  # XLNet has -1


def load_tokenizer(folder: str, plain: bool = False) -> Any:
    """Load the tokenizer in a model's folder; with `plain`, as a `PreTrainedTokenizerFast`.

    Raises `ConfigError` if it needs custom code, `TokenizerError` if it is missing or cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    check_settings(folder)
    try:
        tokenizer = (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(
            folder, trust_remote_code=False
        )
    except Exception as error:  # the libraries raise bare Exceptions for every kind of bad file
        raise TokenizerError(
            f"the tokenizer of {folder!r} cannot be loaded: {brief(error)}", is_transient(error)
        ) from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"the tokenizer of {folder!r} is not one of the `tokenizers` library; convert it to a tokenizer.json"
        )
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # transformers builds this if there is none
        raise TokenizerError(
            f"model {folder!r} has no tokenizer, or an empty one; put the tokenizer's files into its folder"
        )
    return tokenizer
