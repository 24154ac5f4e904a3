"""Dry runs: check a job and print what it would do, for people or as JSON.

Nothing is started. Prefect is loaded only to get credentials.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from flows.credentials import take_credentials
from trainer.common.display import plural, show, show_json, size
from trainer.common.process import loading
from trainer.common.progress import for_people
from trainer.config.jobs import EvaluateJob, PrepareJob, PromoteJob, RollbackJob
from trainer.config.kinds import KINDS, load
from trainer.config.labelled import PredictJob
from trainer.kinds.kind import identify_checkpoint, kind_of
from trainer.models.pretrained import load_config
from trainer.store.probes import check_writable
from trainer.store.storage import Store


class Preview(NamedTuple):
    """What a job would do, as lines for people and as a record for programs."""

    lines: list[str]
    record: Any


def dry_run(job: Any, as_json: bool = False, needs: str | None = None) -> None:
    """Print what a job would do; `needs` is as in `FlowCommand`."""
    take_credentials(job.model_dump_json(), ask_server=True)  # as the job itself would
    found = DRY_RUNS[type(job)](job)
    if needs is not None:  # in the order of the job itself
        load(needs)(job)
    if as_json:
        show_json(found.record)
    else:
        show("".join(f"{line}\n" for line in found.lines))


def _preview_training(job: Any) -> Preview:
    kind = kind_of(job)
    store = Store(job.store)
    check_writable(store)
    kind.find_files(store, job)  # first, because the preflight loads torch, which takes seconds
    found = kind.preflight(job, for_people())
    return Preview(found.lines(), found)


def _preview_preparation(job: PrepareJob) -> Preview:
    from trainer.data.raw_files import unpacked_bytes
    from trainer.data.sources import find_sources, look_at_text

    lines, corpora = [], []
    for corpus in job.data.corpora:
        files = find_sources(corpus)
        look_at_text(corpus, [file.path for file in files])
        amount = unpacked_bytes(corpus, files)
        lines.append(f"{corpus.name}: {plural(len(files), 'file')}, {size(amount)}")
        corpora.append({"name": corpus.name, "files": len(files), "raw_bytes": amount})
    with loading():
        from trainer.data.tokenizer_training import preview_tokenizer
        from trainer.records.steps import look_for
    preview_tokenizer(Store(job.store), job.data)
    if job.data.curation is not None and look_for("curate", job) is None:
        with loading():
            from trainer.preflight.curation import preview_curation
        lines += preview_curation(Store(job.store), job.data).warnings
    return Preview(lines, {"corpora": corpora})


def _preview_evaluation(job: EvaluateJob) -> Preview:
    """Check a checkpoint to evaluate, and read the new labelled files to evaluate it on, if the job has any."""
    from trainer.data.shards import open_shards
    from trainer.evaluation.harness_identity import identify_harness
    from trainer.kinds.labelled.kind import NewFiles

    with loading():
        from trainer.training.runtime import check_devices
    store = Store(job.store)
    store.require_there()
    check_devices(job.precision, job.processes, job.device)
    lines = [f"would evaluate {job.checkpoint} in {job.store}"]
    record: dict[str, Any] = {"checkpoint": job.checkpoint, "store": job.store}
    _, measurement = identify_checkpoint(store, job)
    if job.evaluation.harness is not None:
        identify_harness(store, job, own=False)
    if isinstance(measurement.settings, NewFiles):
        with loading():
            from trainer.kinds.labelled.evaluate import names_of_files, open_files
        with open_files(measurement.settings, for_people()) as data:
            (figures,) = data.details["splits"].values()
        labelled, files = figures["labelled"], names_of_files(measurement.settings)
        lines[0] += f", on {plural(labelled, 'labelled example')} of {', '.join(files)}"
        record |= {"files": files, "labelled": labelled}
    elif isinstance(measurement.settings, tuple):  # of a measurement on held-out text
        with loading():
            from trainer.kinds.pretraining.evaluate import check_context
        for key in measurement.data:
            open_shards(store, key)
        check_context(load_config(measurement.model.folder), measurement.settings[1])
    return Preview(lines, record)


def _preview_predictions(job: PredictJob) -> Preview:
    """Check the model and the texts to predict, or find the predictions if they already exist."""
    from trainer.kinds.labelled.predictions import describe, find_predictions, identify_predictions, predictions_step

    store = Store(job.store)
    wanted = identify_predictions(store, job)
    step = predictions_step(store, job, wanted)
    made = find_predictions(step)
    files = sum(map(len, wanted.source.parts.values()))
    record = {"key": step.key, "model": job.model, "files": files, "made": made}
    if made is not None:
        return Preview([describe(store, made)], record)
    with loading():
        from trainer.kinds.labelled.predict import look_at_texts
    found = look_at_texts(job, wanted, for_people())
    line = f"would predict {plural(files, 'file')} with {job.model} and write {store.path(step.key)}"
    return Preview([*found.lines(), line], {**record, "found": found})


def _preview_promotion(job: PromoteJob) -> Preview:
    from trainer.records.run_names import find_run_name
    from trainer.registry.promotion import check_promotion

    store = Store(job.store)
    store.require_there()
    run = f"runs/{find_run_name(store, job.run, exact=True)}"
    already = check_promotion(store, job.name, run, job.another_use)
    would = f"{run} is already" if already else f"would make {run}"
    record = {"champion_of": f"models/{job.name}", "run": run, "store": job.store, "already": already}
    return Preview([f"{would} the champion of models/{job.name} in {job.store}"], record)


def _preview_rollback(job: RollbackJob) -> Preview:
    from trainer.registry.promotion import check_rollback

    store = Store(job.store)
    store.require_there()
    move, already = check_rollback(store, job.name, job.key)
    would = f"{move.run} is already" if already else f"would make {move.run}"
    record = {"champion_of": f"models/{job.name}", "run": move.run, "store": job.store, "already": already}
    return Preview([f"{would} the champion of models/{job.name} in {job.store}"], record)


DRY_RUNS: dict[type, Callable[[Any], Preview]] = {
    **{kind.schema: _preview_training for kind in KINDS},
    PrepareJob: _preview_preparation,
    EvaluateJob: _preview_evaluation,
    PredictJob: _preview_predictions,
    PromoteJob: _preview_promotion,
    RollbackJob: _preview_rollback,
}
