"""Models to start from or to measure, by name: a run of the store, a folder in it, or any folder of a pretrained model."""

import re
from pathlib import Path
from typing import NamedTuple

from trainer.errors import ArtifactError, ConfigError
from trainer.manifest import digest_file, read_manifest, require_intact
from trainer.places import CARD, CHECKPOINT_KIND, FINAL, FINAL_KIND
from trainer.storage import Store


class Checkpoint(NamedTuple):
    """A checkpoint found: where its files are, the digests of all of them, and its key if it is in the store.

    Of a pretrained name only the name is known: the libraries find its files.
    """

    folder: str
    files: dict[str, str]
    key: str | None


def find_model(store: Store, name: str, hub: bool = False) -> Checkpoint:
    """A run's name, a pointer such as runs/NAME/checkpoint-best, a folder in the store, or a pretrained folder.

    With `hub`, what is none of these and looks like it is taken for the name of a pretrained model. Raises `ArtifactError`
    if there is no such model or it is damaged.
    """
    candidates = [name, f"runs/{name}/{FINAL}", *(f"runs/{run}/{FINAL}" for run in _runs_of(store, name))]
    if name.rsplit("/", 1)[-1].startswith("checkpoint-") and (target := store.read_json(name)):
        candidates.insert(0, f"{name.rsplit('/', 1)[0]}/{target['checkpoint']}")
    for key in candidates:
        kind = FINAL_KIND if key.endswith(f"/{FINAL}") else CHECKPOINT_KIND
        if not Path(key).is_absolute() and (manifest := read_manifest(store, key, kind)):
            require_intact(store, key, manifest)
            # The model card tells of an evaluation, so it must not make that evaluation another one.
            files = {record.name: record.sha256 for record in manifest.files if record.name != CARD}
            return Checkpoint(str(store.fetch_folder(key)), files, key)
    if Path(name, "config.json").is_file():
        files = {path.name: digest_file(path).sha256 for path in Path(name).iterdir() if path.is_file()}
        return Checkpoint(name, files, None)
    if hub and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists():
        return Checkpoint(name, {}, None)
    raise ArtifactError(
        f"no checkpoint {name!r}: neither a run in {store.path('runs')}, nor a published folder there, nor a model folder"
    )


def _runs_of(store: Store, job: str) -> list[str]:
    """The one run that a job of this name has made. Raises `ConfigError` if there are several."""
    runs = [run for run in store.names("runs") if re.fullmatch(re.escape(job) + r"-[0-9a-f]{8}", run)]
    if len(runs) > 1:
        raise ConfigError(f"{job!r} has made several runs: {', '.join(runs)}; say which one is meant")
    return runs
