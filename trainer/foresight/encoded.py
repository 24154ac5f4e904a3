"""What would become of a job's encoded set, and why."""

from collections.abc import Mapping
from typing import Any

from trainer.chat.encoding import locate_conversations
from trainer.common.formats import plural
from trainer.config.chat import ChatDataConfig, ChatJob
from trainer.config.finetuning import FinetuneJob
from trainer.config.labelled import LabelledDataConfig
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.likeness import Likeness, compare_files, compare_options, explain_likeness, find_similar, look
from trainer.labelled.encoded import KIND
from trainer.labelled.encoding import Recipe, locate_encoded
from trainer.pretrained.finding import find_model
from trainer.records.origins import labelled_digests
from trainer.store.manifest import ArtifactRef, Manifest
from trainer.store.storage import Store


def foresee_data(store: Store, job: FinetuneJob) -> tuple[list[Foreseen], ArtifactRef]:
    """The stage before training, and a reference to what it gives."""
    encoded, ref = foresee_encoded(store, job)
    return [encoded], ref


def foresee_encoded(store: Store, job: FinetuneJob) -> tuple[Foreseen, ArtifactRef]:
    """Whether the labelled set is there, encoded, and what will refer to it. Raises as encoding does for missing input."""
    return foresee_recipe(store, job.data, locate_encoded(store, job, find_model(store, job.model.pretrained, hub=True).folder))


def foresee_conversations(store: Store, job: ChatJob) -> tuple[list[Foreseen], ArtifactRef]:
    """The same as `foresee_data`, of conversations."""
    recipe = locate_conversations(store, job, find_model(store, job.model.pretrained, hub=True).folder)
    encoded, ref = foresee_recipe(store, job.data, recipe)
    return [encoded], ref


def foresee_recipe(
    store: Store, data: LabelledDataConfig | ChatDataConfig, recipe: Recipe[Any]
) -> tuple[Foreseen, ArtifactRef]:
    """Whether the set of a recipe is there, and what will refer to it."""
    stage = _foresee(store, data, recipe)
    return stage, recipe.refer(0, stage.verdict == "reused")


def _foresee(store: Store, data: LabelledDataConfig | ChatDataConfig, recipe: Recipe[Any]) -> Foreseen:
    stage, allowed = f"encoded set {data.name}", data.max_bad_records
    manifest, problems = look(store, recipe.key, KIND)
    bad = max(split["bad_records"] for split in manifest.details["splits"].values()) if manifest else 0
    if manifest is not None and bad <= allowed:
        return Foreseen(stage, "reused", recipe.key, created=manifest.created)
    if manifest is not None:
        return Foreseen(stage, "refused", recipe.key, (f"{plural(bad, 'bad record')} in a split, at most {allowed} allowed",))
    paths = {split: [part.path for part in parts] for split, parts in recipe.source.parts.items()}
    wanted = labelled_digests(recipe.source.identity, paths)

    def compare(other: Manifest) -> list[str]:
        known = other.details["source"].get("recipe", {})
        return compare_options({f"data.{key}": value for key, value in known.items()}, options)

    def files(other: Likeness) -> list[str]:
        source = other.manifest.details["source"]
        return _compare_content(labelled_digests(source["identity"], source.get("paths", {})), wanted)

    options = {f"data.{key}": value for key, value in recipe.options.items()}
    similar = find_similar(store, recipe.key, KIND, compare)
    return Foreseen(stage, "made", recipe.key, tuple(problems or explain_likeness(similar, files)))


def _compare_content(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Files that differ; one that only has another name is the same."""
    same = set(old.values()) & set(new.values())
    before, now = ({name: digest for name, digest in each.items() if digest not in same} for each in (old, new))
    return compare_files(before, now)
