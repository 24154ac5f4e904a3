"""The command line of every flow: a YAML file, `key=value` words, `--dry-run`, and an explanation of every field."""

import argparse
import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, cast

import httpx
from prefect import Flow
from prefect.settings import PREFECT_API_URL

from flows import LATEST
from tasks.credentials import use_credentials
from tasks.patience import OutOfPatience
from tasks.upkeep import REMOVE
from trainer.common.errors import EXIT_PREEMPTED, PipelineError, Preempted
from trainer.common.formats import plural, size
from trainer.common.outages import exit_status
from trainer.common.progress import for_people
from trainer.common.stopping import check_stop, heed_stops, leave, stoppable
from trainer.config.files import Job, add_config, add_verify, explain, read_values, validate_job
from trainer.config.finetuning import FinetuneJob
from trainer.config.jobs import EvaluateJob, GarbageJob, PipelineJob, PrepareJob, PromoteJob, RollbackJob
from trainer.config.predicting import PredictJob
from trainer.corpus.preparation import PreparedData
from trainer.evaluation.predicted import describe, find_predictions, identify_predictions
from trainer.records.results import (
    Evaluation,
    FinetuneEvaluation,
    FinetuneOutcome,
    FinetunePreflight,
    Outcome,
    PredictedTexts,
    Preflight,
    Verdict,
)
from trainer.runs.records import read_records
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.upkeep.garbage import Garbage, collect, tell
from trainer.upkeep.gate import Move
from trainer.upkeep.promotion import key_of


def main(
    flow: Flow[[Any], Any], schema: type[Job], show: Callable[[Job, Any], None], arguments: list[str] | None = None
) -> int:
    """Run a flow on this machine and print what it made. Returns 0, 2 on bad input, 75 if it is to be run again."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {flow.fn.__module__ if flow.fn.__module__ != '__main__' else 'flows.' + flow.fn.__name__}",
        description=flow.description,
        epilog="fields of the configuration:\n\n" + explain(schema),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, and start nothing")
    if "verify" in schema.model_fields:
        add_verify(parser)
    parsed = parser.parse_intermixed_args(arguments)
    heed_stops(LATEST)

    def work() -> None:
        job = load(schema, parsed.config, [*parsed.overrides, *getattr(parsed, "verify", [])])
        if parsed.dry_run:
            use_credentials(start_server=False)
            dry_run(job)
        else:
            hide_expected_traces()
            show(job, run(flow, job))

    return leave(status_of(work))


def run(flow: Flow[[Any], Any], job: Any) -> Any:
    """Run a flow in a thread: in the main one, Prefect puts a handler that raises in the place of ours."""
    with ThreadPoolExecutor(1, "flow") as pool:
        return pool.submit(copy_context().run, flow, job).result()


def status_of(work: Callable[[], None]) -> int:
    """Do a command's work; returns its exit status, after one message if it did not come to its end."""
    try:
        with stoppable():
            check_stop()
            work()
    except Preempted as stop:
        print(stop, file=sys.stderr)
        return EXIT_PREEMPTED
    except OutOfPatience as error:
        print(f"\n{error}", file=sys.stderr)
        return EXIT_PREEMPTED
    except PipelineError as error:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
        return exit_status(error)
    except httpx.TransportError as error:
        print(
            f"\nthe Prefect server at {PREFECT_API_URL.value()} cannot be reached ({error}): what is finished is in the store; "
            "once the server is back, run it again to continue",
            file=sys.stderr,
        )
        return EXIT_PREEMPTED
    return 0


def load(schema: type[Job], path: str, overrides: list[str]) -> Job:
    """Read a job; the file of a whole pipeline also serves to prepare its data."""
    values = read_values(path, overrides)
    if schema is PrepareJob and "model" in values:
        return cast(Job, validate_job(PipelineJob, values, path).preparation())
    return validate_job(schema, values, path)


def dry_run(job: Any) -> None:
    """Print what a job would do."""
    if isinstance(job, PipelineJob):
        from trainer.preflight.pretraining import preflight

        show_preflight(preflight(job, for_people()))
    elif isinstance(job, PrepareJob):
        from trainer.corpus.sources import find_sources
        from trainer.corpus.unpacked import unpacked_bytes

        for corpus in job.data.corpora:
            files = find_sources(corpus)
            print(f"{corpus.name}: {plural(len(files), 'file')}, {size(unpacked_bytes(corpus, files))}")
    elif isinstance(job, FinetuneJob):
        from trainer.preflight.finetuning import finetune_preflight

        show_finetune_preflight(finetune_preflight(job, for_people()))
    elif isinstance(job, PromoteJob):
        Store(job.store).require_there()
        print(f"would make runs/{job.run} the champion of models/{job.name} in {job.store}")
    elif isinstance(job, RollbackJob):
        Store(job.store).require_there()
        print(f"would take the champion of models/{job.name} in {job.store} away")
    elif isinstance(job, GarbageJob):
        tell(collect(job.model_copy(update={"remove": False})), False, REMOVE)
    elif isinstance(job, PredictJob):
        show_prediction_plan(job)
    elif isinstance(job, EvaluateJob):
        print(f"would evaluate {job.checkpoint} in {job.store}")


def show_preflight(found: Preflight) -> None:
    """Print the plan of a pipeline that is not started."""
    print(f"{'corpus':<16}{'files':>9}{'raw':>12}{'documents':>12}{'tokens':>14}")
    for corpus in found.corpora:
        documents, tokens = (("?" if n is None else f"{n:,}") for n in (corpus.documents, corpus.tokens))
        print(f"{corpus.name:<16}{corpus.files:>9,}{size(corpus.raw_bytes):>12}{documents:>12}{tokens:>14}")
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
    for name, value in rows:
        print(f"{name:<16}{value}")
    if not found.plan:
        print("Token counts are known once the text is tokenized; until then windows and steps are estimates.")


def show_finetune_preflight(found: FinetunePreflight) -> None:
    """Print the plan of a fine-tuning that is not started."""
    rows = [("model", f"{found.model}, {found.parameters:,} parameters"), ("metrics", ", ".join(found.metrics))]
    rows.append(("looked at", found.looked_at))
    rows += [(name, f"{count:,} examples") for name, count in (found.splits or {}).items()]
    if found.plan is not None:
        rows.append(("steps", f"{found.plan.total_steps:,}, of {found.plan.global_batch} examples on {found.ranks} ranks"))
    for name, value in rows:
        print(f"{name:<16}{value}")
    if found.plan is None:
        print("Examples are counted, and steps planned, once the data is encoded.")


def show_prepared(job: PrepareJob, data: PreparedData) -> None:
    """Print where the prepared data is."""
    store = Store(job.store)
    for ref in [data.tokenizer, *data.shards]:
        print(f"{'reused   ' if ref.reused else 'published'}  {store.path(ref.key)}  ({ref.size / 1e6:.1f} MB)")


def show_run(job: PipelineJob, run: ArtifactRef) -> None:
    """Print where the trained model is, and how its loss fell."""
    store = Store(job.store)
    print(f"model      {store.path(run.key)}/final{'  (reused)' if run.reused else ''}")
    print(f"metrics    {store.path(run.key)}/metrics.jsonl")
    show_losses(store, run.key)


def show_losses(store: Store, run: str) -> None:
    """Print the first and the last validation loss of a run: both on the same held-out windows."""
    records = [record for record in read_records(store, run) if record["kind"] == "evaluation"]
    if records:
        first, last = records[0], records[-1]
        bits = [each["bits_per_byte"] for each in (first, last) if "bits_per_byte" in each]
        told = f", {bits[0]:.3f} -> {bits[1]:.3f} bits a byte" if len(bits) == 2 else ""
        print(f"validation loss {first['loss']:.3f} -> {last['loss']:.3f} ({last['loss'] / first['loss'] - 1:+.0%}){told}")


def show_evaluation(job: EvaluateJob, result: Evaluation | FinetuneEvaluation) -> None:
    """Print scores, and a language model's samples."""
    if isinstance(result, FinetuneEvaluation):
        show_splits(result)
        print(f"evaluation {Store(job.store).path(result.key)}")
        return
    for name, score in [*result.scores.corpora.items(), ("all", result.scores.total)]:
        bits = "" if score.bits_per_byte is None else f"   {score.bits_per_byte:7.4f} bits a byte"
        print(f"{name:<16} loss {score.loss:7.4f}   perplexity {score.perplexity:10.2f}{bits}   {score.tokens:,} tokens")
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("|", "")
    for sample in result.samples:
        print(f"\n{sample.prompt}{bold}{sample.continuation}{plain}")
    print(f"\nevaluation {Store(job.store).path(result.key)}")


def show_prediction_plan(job: PredictJob) -> None:
    """Print what would be predicted, or that it is predicted already."""
    store = Store(job.store)
    wanted = identify_predictions(store, job)
    made = find_predictions(store, job, wanted)
    files = plural(sum(map(len, wanted.source.parts.values())), "file")
    print(describe(store, made) if made else f"would predict {files} with {job.model}, as {store.path(wanted.key)}")


def show_predictions(job: PredictJob, made: PredictedTexts) -> None:
    """Print what was predicted, and where it is."""
    print(describe(Store(job.store), made))


def show_outcome(job: PipelineJob, outcome: Outcome) -> None:
    """Print where everything is, with the loss before and after and a few lines that the model wrote."""
    store = Store(job.store)
    print()
    show_losses(store, outcome.run)
    if outcome.evaluation is not None:
        show_evaluation(EvaluateJob(store=job.store, checkpoint=outcome.run), outcome.evaluation)
    print(f"metrics    {store.path(outcome.run)}/metrics.jsonl")
    print(f"report     {store.path(outcome.report)}")
    print(f"model      {store.path(outcome.run)}/final")
    show_verdict(outcome.promotion)


def show_finetuned(job: FinetuneJob, outcome: FinetuneOutcome) -> None:
    """Print the figures before and after, and where everything is."""
    store = Store(job.store)
    print()
    before = next(record for record in read_records(store, outcome.run) if record["kind"] == "evaluation")
    for name, value in outcome.evaluation.scores["validation"].items():
        start = f"{before[name]:.4f} -> " if name in before else ""
        print(f"validation {outcome.evaluation.label(name)} {start}{value:.4f}")
    show_splits(outcome.evaluation)
    for key in [*outcome.evaluation.predictions, f"{outcome.run}/metrics.jsonl", outcome.report, f"{outcome.run}/final"]:
        print(store.path(key))
    show_verdict(outcome.promotion)


def show_splits(evaluation: FinetuneEvaluation) -> None:
    """Print a classifier's figures, a line for each labelled split."""
    for split, figures in evaluation.scores.items():
        print(f"{split:<10} " + ", ".join(f"{evaluation.label(name)} {value:.4f}" for name, value in figures.items()))


def show_move(job: PromoteJob | RollbackJob, move: Move) -> None:
    """Print which run is the champion now."""
    print(f"{Store(job.store).path(key_of(job.name))}: {move.run} since {move.time} ({move.reason})")


def show_garbage(job: GarbageJob, found: list[Garbage]) -> None:
    """Print what nothing reaches, with its size."""
    tell(found, job.remove, REMOVE)


def show_verdict(verdict: Verdict | None) -> None:
    """Print what the gate said, if there is one."""
    if verdict is not None:
        print(f"gate       {'passed' if verdict.passed else 'not met'}: {verdict.reason}")


def hide_expected_traces() -> None:
    """Leave the stack trace out of log records about errors whose message says all."""

    def shorten(record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], PipelineError | Preempted):
            record.exc_info = None
        return True

    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(shorten)
