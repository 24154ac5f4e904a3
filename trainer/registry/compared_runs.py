"""What the store says of runs that are compared: of any kind, and not all of them finished.

Nothing here needs the libraries that train.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.common.errors import ArtifactError, RunError
from trainer.config.kinds import JobKind, kind_of_run, load
from trainer.data.decisions import decisions_behind
from trainer.records.run_names import find_run_name, tell_runs_like
from trainer.records.sealed import read_pointer, read_sealed
from trainer.registry.content import Block
from trainer.registry.facts import RecordedRun, count_parameters, read_recorded, require_job
from trainer.registry.listing import state_of
from trainer.registry.references import artifact_kind, artifacts_of
from trainer.store.manifest import Manifest, read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, FINAL, LAST, PLAN
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

Measured = dict[str, tuple[float, Any]]
"""Figures by name, each with what it was measured on: figures are compared if that is equal."""


@dataclass(frozen=True)
class ComparedRun(RecordedRun):
    """A run, under the letter that stands for it. What it has not made yet is empty or None.

    `sources` are the manifests of what it was made from, and of the decisions about its text, by key; of what is gone
    from the store, None.
    """

    letter: str
    entry: JobKind
    state: str
    plan: dict[str, Any]
    parameters: int | None
    sources: dict[str, Manifest | None]

    @property
    def kind(self) -> "ComparedKind":
        """What is compared of runs of its kind."""
        compared: ComparedKind = load(self.entry.kind.compared)
        return compared

    @property
    def unit(self) -> str:
        """The unit of its loss."""
        return self.kind.unit(self)

    @property
    def steps(self) -> int:
        """The last step that was recorded."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def encoded(self) -> Manifest | None:
        """The labelled set that it is fine-tuned on."""
        return self.sources[self.config["data"]["key"]]


@dataclass(frozen=True)
class ComparedKind:
    """What is compared of the runs of one kind."""

    data: str
    """What its data is called, in the plural."""
    unit: Callable[[ComparedRun], str]
    """The unit of the loss."""
    tokenizer: Callable[[ComparedRun], dict[str, str]]
    """The tokenizer's name, vocabulary and digest, as far as they are known."""
    base: Callable[[ComparedRun], str]
    """A name of the files that training starts from."""
    compare_data: Callable[[Store, Sequence[ComparedRun]], list[Block]]
    metrics: Callable[[Sequence[ComparedRun]], list[str]]
    """The validation figures on the way, besides the loss."""
    tokenizer_note: str = ""
    """Why its tokenizers differ from those of other kinds, if they do."""


def read_runs(store: Store, names: list[str]) -> list[ComparedRun]:
    """The runs of these names, in this order. Raises `RunError` for a name that no run has, and says which are like it.

    A name may be that of a job that made one run, or the beginning of one run's. Raises `ConfigError` if it is of
    several.
    """
    keys = [f"runs/{find_run_name(store, name.strip('/').removeprefix('runs/'))}" for name in names]
    configs = [_read_config(store, key) for key in keys]
    return [_read(store, chr(ord("A") + i), *each) for i, each in enumerate(zip(keys, configs, strict=True))]


def _read_config(store: Store, key: str) -> dict[str, Any]:
    config = read_sealed(store, f"{key}/{CONFIG}")
    if config is None:
        like = tell_runs_like(store, key.removeprefix("runs/"))
        raise RunError(f"{store.path(key)} holds no run: it has no {CONFIG}; {like}")
    require_job(store, key, config)
    return config


def _read(store: Store, letter: str, key: str, config: dict[str, Any]) -> ComparedRun:
    final = final_manifest(store, key)
    model, manifest = (f"{key}/{FINAL}", final) if final else _last_checkpoint(store, key)
    weights = manifest and manifest.model_copy(
        update={"files": [f for f in manifest.files if f.name.startswith("model")]}
    )
    return ComparedRun(
        **read_recorded(store, key, config, model, manifest),
        letter=letter,
        entry=kind_of_run(config),
        state=state_of(store, key, final is not None),
        plan=read_sealed(store, f"{key}/{PLAN}") or {},
        parameters=sum(count_parameters(store, model, weights).values()) if weights else None,
        sources=_read_sources(store, artifacts_of(config)),
    )


def _read_sources(store: Store, keys: list[str]) -> dict[str, Manifest | None]:
    """The manifests of what a run names, and of the decisions that this names."""
    named = {key: _manifest(store, key, artifact_kind(key)) for key in keys}
    decisions = {key for manifest in named.values() if manifest for key in decisions_behind(manifest)}
    return {**named, **{key: _manifest(store, key, artifact_kind(key)) for key in sorted(decisions)}}


def _last_checkpoint(store: Store, key: str) -> tuple[str, Manifest | None]:
    """The newest checkpoint of a run that has no final model yet."""
    pointer = read_pointer(store, f"{key}/{LAST}")
    if pointer is None:
        return "", None
    folder = f"{key}/{pointer.checkpoint}"
    return folder, _manifest(store, folder, CHECKPOINT_KIND)


def _manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """An artifact's manifest; of a damaged artifact no more is told than of one that is gone."""
    try:
        return read_manifest(store, key, kind)
    except ArtifactError:
        return None
