"""Models to start from or to measure, by name: a run of the store, a folder in it, or any folder of a pretrained model."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from trainer.errors import ArtifactError, ConfigError
from trainer.manifest import MANIFEST, digest_file, read_manifest, require_intact
from trainer.places import CARD, CHAMPION, CHECKPOINT_KIND, FINAL, FINAL_KIND
from trainer.pointers import read_pointer
from trainer.storage import Store

HUB_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
OLD_WEIGHTS = ("pytorch_model*.bin*",)


class Checkpoint(NamedTuple):
    """A checkpoint found: where its files are, the digests of all of them, its key if it is in the store, and its origin."""

    folder: str
    files: dict[str, str]
    key: str | None
    origin: Literal["store", "folder", "hub"]


def find_model(store: Store, name: str, hub: bool = False) -> Checkpoint:
    """A run's name, a pointer (runs/NAME/checkpoint-best, models/NAME/champion), a folder in the store, or a pretrained folder.

    With `hub`, what is none of these and looks like it is taken for the name of a model of the Hugging Face hub, and fetched.
    Raises `ArtifactError` if there is no such model or it is damaged.
    """
    candidates = [name, f"runs/{name}/{FINAL}", *(f"runs/{run}/{FINAL}" for run in runs_of(store, name))]
    is_pointer = name.rsplit("/", 1)[-1].startswith("checkpoint-") and not Path(name).is_dir()
    if is_pointer and (target := read_pointer(store, name)):
        candidates.insert(0, f"{name.rsplit('/', 1)[0]}/{target.checkpoint}")
    champion = store.read_json(name)["moves"][-1] if _is_champion(store, name) else None
    if champion is not None:
        candidates.insert(0, f"{champion['run']}/{FINAL}")
    for key in candidates:
        kind = FINAL_KIND if key.endswith(f"/{FINAL}") else CHECKPOINT_KIND
        if not Path(key).is_absolute() and (manifest := read_manifest(store, key, kind)):
            if champion is not None and champion["fingerprint"] != manifest.fingerprint:
                raise ArtifactError(f"{store.path(key)} holds another model than the one that became {name}; promote one anew")
            require_intact(store, key, manifest)
            # The model card tells of an evaluation, so it must not make that evaluation another one.
            files = {name: sha256 for name, sha256 in manifest.digests().items() if name != CARD}
            return Checkpoint(str(store.fetch_folder(key, manifest.digests())), files, key, "store")
    if Path(name, "config.json").is_file():
        return Checkpoint(name, digest_files(Path(name)), None, "folder")
    if hub and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists():
        folder = _fetch_from_hub(store, name)
        return Checkpoint(str(folder), digest_files(folder), None, "hub")
    raise ArtifactError(f"no checkpoint {name!r}: {_not_here(store)}")


def _is_champion(store: Store, name: str) -> bool:
    return re.fullmatch(rf"models/[^/]+/{CHAMPION}", name) is not None and store.exists(name)


def digest_files(folder: Path) -> dict[str, str]:
    """The digests of a model folder's files, by name: of those that libraries load, not of what is told about them.

    What has not changed since the last time is not read again.
    """
    patterns = HUB_FILES if any(folder.glob("*.safetensors")) else (*HUB_FILES, *OLD_WEIGHTS)
    loaded = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    found = {path.name: path.stat() for path in loaded if path.is_file() and path.name != MANIFEST}
    return {name: _digest(folder / name, status.st_size, status.st_mtime_ns) for name, status in found.items()}


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, modified: int) -> str:
    return digest_file(path).sha256


def _fetch_from_hub(store: Store, name: str) -> Path:
    """The files of a model of the hub in its local cache: of the newest revision, or, without network, of the cached one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    def fetch(patterns: tuple[str, ...]) -> Path:
        return Path(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=["*/*"]))

    try:
        folder = fetch(HUB_FILES)
        if not any(folder.glob("*.safetensors")):
            fetch(OLD_WEIGHTS)
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ArtifactError(
            f"no checkpoint {name!r}: {_not_here(store)}; and it cannot be fetched from the Hugging Face hub: {error}"
        ) from error
    return folder


def _not_here(store: Store) -> str:
    return f"neither a run in {store.path('runs')}, nor a published folder there, nor a model folder"


def runs_of(store: Store, job: str) -> list[str]:
    """The one run that a job of this name has made. Raises `ConfigError` if there are several."""
    runs = [run for run in store.names("runs") if re.fullmatch(re.escape(job) + r"-[0-9a-f]{8}", run)]
    if len(runs) > 1:
        raise ConfigError(f"{job!r} has made several runs: {', '.join(runs)}; say which one is meant")
    return runs
