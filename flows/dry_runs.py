"""What a job would do, for people and as JSON. Nothing is started; Prefect is loaded only where it may know credentials."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flows.credentials import take_credentials
from trainer.common.formats import plural, size
from trainer.common.loading import loading
from trainer.common.plain_values import show_json
from trainer.common.progress import for_people
from trainer.config.finetuning import FinetuneJob
from trainer.config.jobs import EvaluateJob, GarbageJob, PipelineJob, PrepareJob, PromoteJob, RollbackJob
from trainer.config.predicting import PredictJob
from trainer.records.results import FinetunePreflight, Preflight
from trainer.store.storage import Store


class Foretold(NamedTuple):
    """What would be done: as it is printed for people, and as a record for programs."""

    lines: list[str]
    record: Any


def dry_run(job: Any, as_json: bool = False) -> None:
    """Print what a job would do."""
    take_credentials(job.model_dump_json(), ask_server=True)  # as the job itself would
    if isinstance(job, GarbageJob):
        _show_garbage(job)
        return
    told = DRY_RUNS[type(job)](job)
    if as_json:
        show_json(told.record)
    else:
        print("\n".join(told.lines))


def describe_preflight(found: Preflight) -> list[str]:
    """The plan of a pipeline that is not started."""
    lines = [f"{'corpus':<16}{'files':>9}{'raw':>12}{'documents':>12}{'tokens':>14}"]
    for corpus in found.corpora:
        documents, tokens = (("?" if n is None else f"{n:,}") for n in (corpus.documents, corpus.tokens))
        lines.append(f"{corpus.name:<16}{corpus.files:>9,}{size(corpus.raw_bytes):>12}{documents:>12}{tokens:>14}")
    about = "" if found.plan else "about "
    rows = [
        ("vocabulary", f"{found.vocab_size:,} tokens"),
        ("model", f"{found.parameters:,} parameters"),
        ("windows", f"{about}{found.about_windows:,}"),
        ("steps", f"{about}{found.about_steps:,} on {found.ranks} rank{'s' if found.ranks > 1 else ''}"),
        ("memory", f"about {size(found.about_memory_bytes)} a rank"),
        ("disk", f"about {size(found.about_disk_bytes)}"),
    ]
    if found.about_host_bytes != found.about_memory_bytes:
        rows.append(("host memory", f"about {size(found.about_host_bytes)}, with the copies of a checkpoint"))
    if found.free_disk_bytes is not None:
        rows.append(("free disk", size(found.free_disk_bytes)))
    lines += [f"{name:<16}{value}" for name, value in rows]
    if not found.plan:
        lines.append("Token counts are known once the text is tokenized; until then windows and steps are estimates.")
    return lines


def describe_finetune_preflight(found: FinetunePreflight) -> list[str]:
    """The plan of a fine-tuning that is not started."""
    rows = [("model", f"{found.model}, {found.parameters:,} parameters"), ("metrics", ", ".join(found.metrics))]
    rows.append(("looked at", found.looked_at))
    rows += [(name, f"{count:,} examples") for name, count in (found.splits or {}).items()]
    if found.plan is not None:
        rows.append(("steps", f"{found.plan.total_steps:,}, of {found.plan.global_batch} examples on {found.ranks} ranks"))
    lines = [f"{name:<16}{value}" for name, value in rows]
    if found.plan is None:
        lines.append("Examples are counted, and steps planned, once the data is encoded.")
    return lines


def _foretell_pipeline(job: PipelineJob) -> Foretold:
    with loading():
        from trainer.preflight.pretraining import preflight

    found = preflight(job, for_people())
    return Foretold(describe_preflight(found), found)


def _foretell_finetuning(job: FinetuneJob) -> Foretold:
    with loading():
        from trainer.preflight.finetuning import finetune_preflight

    found = finetune_preflight(job, for_people())
    return Foretold(describe_finetune_preflight(found), found)


def _foretell_preparation(job: PrepareJob) -> Foretold:
    from trainer.corpus.sources import find_sources
    from trainer.corpus.unpacked import unpacked_bytes

    lines, corpora = [], []
    for corpus in job.data.corpora:
        files = find_sources(corpus)
        amount = unpacked_bytes(corpus, files)
        lines.append(f"{corpus.name}: {plural(len(files), 'file')}, {size(amount)}")
        corpora.append({"name": corpus.name, "files": len(files), "raw_bytes": amount})
    return Foretold(lines, {"corpora": corpora})


def _foretell_evaluation(job: EvaluateJob) -> Foretold:
    return Foretold([f"would evaluate {job.checkpoint} in {job.store}"], {"checkpoint": job.checkpoint, "store": job.store})


def _foretell_predictions(job: PredictJob) -> Foretold:
    """What would be predicted, or that it is predicted already."""
    from trainer.evaluation.predicted import describe, find_predictions, identify_predictions

    store = Store(job.store)
    wanted = identify_predictions(store, job)
    made = find_predictions(store, job, wanted)
    files = sum(map(len, wanted.source.parts.values()))
    told = f"would predict {plural(files, 'file')} with {job.model}, as {store.path(wanted.key)}"
    record = {"key": wanted.key, "model": job.model, "files": files, "made": made}
    return Foretold([describe(store, made) if made else told], record)


def _foretell_promotion(job: PromoteJob) -> Foretold:
    Store(job.store).require_there()
    told = f"would make runs/{job.run} the champion of models/{job.name} in {job.store}"
    return Foretold([told], {"champion_of": f"models/{job.name}", "run": f"runs/{job.run}", "store": job.store})


def _foretell_rollback(job: RollbackJob) -> Foretold:
    Store(job.store).require_there()
    told = f"would take the champion of models/{job.name} in {job.store} away"
    return Foretold([told], {"champion_of": f"models/{job.name}", "store": job.store})


def _show_garbage(job: GarbageJob) -> None:
    """Print what would be removed, as it is found."""
    from tasks.upkeep import REMOVE
    from trainer.upkeep.garbage import collect, tell

    tell(collect(job.model_copy(update={"remove": False})), False, REMOVE)


DRY_RUNS: dict[type, Callable[[Any], Foretold]] = {
    PipelineJob: _foretell_pipeline,
    PrepareJob: _foretell_preparation,
    FinetuneJob: _foretell_finetuning,
    EvaluateJob: _foretell_evaluation,
    PredictJob: _foretell_predictions,
    PromoteJob: _foretell_promotion,
    RollbackJob: _foretell_rollback,
}
