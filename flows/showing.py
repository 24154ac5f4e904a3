"""Print a flow's results for people."""

import math
import sys
from collections.abc import Sequence
from typing import Any

from trainer.common.display import escaped, plain_score, show, size
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob, PromoteJob, RollbackJob
from trainer.config.labelled import PredictJob, TuningJob
from trainer.kinds.labelled.predictions import describe
from trainer.records.evaluations import Result, Sample
from trainer.records.plans import PreparedData
from trainer.records.results import Outcome, PredictedTexts
from trainer.records.shapes import Move
from trainer.registry.content import compare_evaluations
from trainer.registry.promotion import key_of
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import final_manifest
from trainer.training.metrics_reader import read_records


def show_prepared(job: PrepareJob, data: PreparedData) -> None:
    """Print where the prepared data is."""
    store = Store(job.store)
    for ref in [data.tokenizer, *data.shards]:
        print(f"{'reused   ' if ref.reused else 'published'}  {store.path(ref.key)}  ({size(ref.size)})")


def show_run(job: PipelineJob, run: ArtifactRef) -> None:
    """Print the paths of the trained model and its metrics, and the change of its loss."""
    store = Store(job.store)
    print(f"model      {store.path(run.key)}/final{'  (reused)' if run.reused else ''}")
    print(f"metrics    {store.path(run.key)}/metrics.jsonl")
    show_losses(store, run.key)


def show_losses(store: Store, run: str) -> None:
    """Print the validation losses of a run before training and of its final model, if both are of the same text."""
    records = [record for record in read_records(store, run) if record["kind"] == "evaluation"]
    final = final_manifest(store, run)
    compared = compare_evaluations(records, final.details.get("step") if final else None)
    if compared is None:
        return
    first, last = compared
    bits = [each["bits_per_byte"] for each in (first, last) if "bits_per_byte" in each]
    more = f", {bits[0]:.3f} -> {bits[1]:.3f} bits a byte" if len(bits) == 2 else ""
    change = last["loss"] / first["loss"] - 1 if first["loss"] else math.nan
    share = f" ({change:+z.0%})" if math.isfinite(change) else ""
    print(f"validation loss {first['loss']:.3f} -> {last['loss']:.3f}{share}{more}")


def show_evaluation(job: EvaluateJob, result: Result) -> None:
    """Print scores, and a language model's samples."""
    print("\n".join(result.lines()))
    show_samples(result.samples)
    print(f"evaluation {Store(job.store).path(result.key)}")


def show_samples(samples: Sequence[Sample]) -> None:
    """Print prompts, each followed by the model's continuation, with an empty line at the end."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("|", "")
    for sample in samples:
        print(f"\n{escaped(sample.prompt)}{bold}{escaped(sample.continuation)}{plain}")
    if samples:
        print()


def show_predictions(job: PredictJob, made: PredictedTexts) -> None:
    """Print a summary of the predictions and their path."""
    show(f"{describe(Store(job.store), made)}\n")


def show_outcome(job: PipelineJob, outcome: Outcome) -> None:
    """Print the loss before and after, the evaluation with samples, and all paths."""
    store = Store(job.store)
    print()
    show_losses(store, outcome.run)
    if outcome.evaluation is not None:
        show_evaluation(EvaluateJob(store=job.store, checkpoint=outcome.run), outcome.evaluation)
    _close(store, outcome)


def _close(store: Store, outcome: Outcome) -> None:
    """Print the paths of all results, and the gate's verdict, if there is a gate."""
    print(f"metrics    {store.path(outcome.run)}/metrics.jsonl")
    print(f"report     {store.path(outcome.report)}")
    print(f"model      {store.path(outcome.run)}/final")
    if outcome.promotion is not None:
        print(f"gate       {'passed' if outcome.promotion.passed else 'not met'}: {outcome.promotion.reason}")


def show_finetuned(job: TuningJob, outcome: Outcome) -> None:
    """Print the figures before and after, the evaluation with samples, and all paths."""
    evaluation = outcome.evaluation
    assert evaluation is not None  # fine-tuning always holds examples out
    store = Store(job.store)
    print()
    records = read_records(store, outcome.run)
    before: dict[str, Any] = next((record for record in records if record["kind"] == "evaluation"), {})
    for name, value in evaluation.judged.figures.items():
        earlier = evaluation.before(name, before)
        start = "" if earlier is None else f"{plain_score(earlier)} -> "
        print(f"validation {evaluation.label(name)} {start}{plain_score(value)}")
    print("\n".join(evaluation.lines()))
    show_samples(evaluation.samples)
    print(f"evaluation {store.path(evaluation.key)}")
    for key in evaluation.predictions:
        print(f"predicted  {store.path(key)}")
    _close(store, outcome)


def show_move(job: PromoteJob | RollbackJob, move: Move) -> None:
    """Print the new champion."""
    print(f"{Store(job.store).path(key_of(job.name))}: {move.run} since {move.time} ({move.reason})")
