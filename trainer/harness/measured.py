"""What lm-eval measured already: the identity of a measurement, and finding one made of the same; free of heavy imports."""

import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from trainer.common.errors import ArtifactError, ConfigError
from trainer.config.evaluation import HarnessConfig
from trainer.config.jobs import EvaluateJob
from trainer.harness.tasks import identify, name_of
from trainer.models.pretrained import Checkpoint, find_model
from trainer.records.basis import HarnessResult, TaskIdentity
from trainer.records.sealed import read_sealed
from trainer.store.manifest import fingerprint
from trainer.store.names import FINAL, HARNESS
from trainer.store.storage import Store

log = logging.getLogger(__name__)

FORMAT = 2

INSTALL = "pip install 'headrace[harness]'"


class HarnessMeasurement(NamedTuple):
    """The model, what each task asks of it, the measurement's fingerprint, and the keys that its result may be under.

    It is written under the first.
    """

    model: Checkpoint
    tasks: dict[str, TaskIdentity]
    fingerprint: str
    keys: list[str]


def installed_version() -> str:
    """The version of lm-eval. Raises `ConfigError` if it is not installed."""
    try:
        return version("lm_eval")
    except PackageNotFoundError as error:
        raise ConfigError(f"evaluation.harness needs lm-eval, which is not installed: {INSTALL}") from error


def asked_for(job: EvaluateJob) -> HarnessConfig:
    """What lm-eval is to measure. Raises `ConfigError` if that is nothing."""
    if job.evaluation.harness is None:
        raise ConfigError("evaluation.harness names no tasks: say which ones lm-eval is to measure the model on")
    return job.evaluation.harness


def identify_harness(store: Store, job: EvaluateJob, own: bool) -> HarnessMeasurement:
    """What a job has lm-eval measure, measured already or not. `own`: it is the final model of the run that the job trained.

    Raises `ArtifactError` if the model is missing or damaged, `ConfigError` for tasks whose files are not there.
    """
    tasks = identify(asked_for(job), installed_version())
    found = find_model(store, job.checkpoint)
    name = fingerprint([FORMAT, found.files, {task: name_of(identity) for task, identity in tasks.items()}])
    of_run = [f"{found.key.removesuffix(f'/{FINAL}')}/{HARNESS}"] if found.key and found.key.endswith(f"/{FINAL}") else []
    apart = [f"evaluations/{Path(job.checkpoint).name}-harness-{name}.json"]
    return HarnessMeasurement(found, tasks, name, of_run if own else [*apart, *of_run])


def find_harness(store: Store, wanted: HarnessMeasurement) -> HarnessResult | None:
    """What was measured already of the same; a damaged record is to be made anew, which a warning tells."""
    for key in wanted.keys:
        try:
            values = read_sealed(store, key)
            found = None if values is None else HarnessResult(**values)
        except ArtifactError as error:
            log.warning("%s: measuring again", error)
            continue
        except ValueError as error:
            log.warning("%s is no record of lm-eval's figures (%s): measuring again", store.path(key), error)
            continue
        if found is not None and found.fingerprint == wanted.fingerprint:
            return found.model_copy(update={"reused": True})
    return None
