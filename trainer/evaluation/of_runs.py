"""A run's own evaluation, and the encoded set that it is of: its test split may be another one than it was trained
beside.
"""

from typing import Any

from trainer.common.errors import ArtifactError, RunError
from trainer.records.basis import HarnessResult
from trainer.records.sealed import read_sealed, require_sealed
from trainer.records.shapes import remedy_of, require_evaluation
from trainer.store.names import CONFIG, EVALUATION, HARNESS
from trainer.store.storage import Store


def encoded_in(config: dict[str, Any]) -> str | None:
    """The key of the encoded set that a run's config.json names; None of a run on shards."""
    key: str | None = config.get("data", {}).get("key")
    return key


def encoded_of(store: Store, run: str) -> str:
    """The key of a fine-tuned run's encoded set, with the test split that the run was last asked for with.

    Raises `ArtifactError` if its config.json does not say it.
    """
    place = f"{run}/{CONFIG}"
    key = encoded_in(require_sealed(store, place))
    if key is None:
        raise ArtifactError(f"{store.path(place)} is damaged: it names no encoded data set; {remedy_of(place)}")
    return key


def check_asked(store: Store, run: str, encoded: str | None) -> None:
    """Raise `RunError` if a run was asked for with another test split since a job prepared the set `encoded`, if
    any.
    """
    if encoded is not None and (now := encoded_of(store, run)) != encoded:
        raise RunError(
            f"{store.path(run)} was asked for with another test split ({now}) while this job measures it on {encoded}; "
            "start the command again to have this one's figures in its place"
        )


def read_evaluation(store: Store, run: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """The record of the evaluation of a run's final model, with all its figures, also those of lm-eval; None if there
    is none.

    One of another encoded set than that in `config`, the run's config.json as the caller knows it, does not count
    either: the run was asked for with another test split since, or a process that measured it on a former one ended
    late. Raises `ArtifactError` if the record is damaged.
    """
    key = f"{run}/{EVALUATION}"
    found = read_sealed(store, key)
    if found is None or found.get("encoded") != encoded_in(config):
        return None
    if (harness := read_sealed(store, f"{run}/{HARNESS}")) is not None:
        found["harness"] = harness
        if found.get("measured_on"):
            found["measured_on"]["harness"] = HarnessResult(**harness).identities()
    try:
        require_evaluation(found)
    except ValueError as error:
        raise ArtifactError(f"{store.path(key)} is damaged: {error}; {remedy_of(key)}") from error
    return found
