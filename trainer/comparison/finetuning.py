"""What is compared of fine-tuning runs: labelled sets, the model that they start from, and figures by split."""

from collections.abc import Sequence
from typing import Any

from trainer.common.formats import count
from trainer.comparison.data import DIGITS, compare_labelled
from trainer.comparison.runs import ComparedKind, ComparedRun, Measured
from trainer.records import kinds
from trainer.records.basis import split_content
from trainer.report.finetuning import LOSS_UNITS, RECORD_FIELDS
from trainer.report.finetuning_data import in_order
from trainer.store.manifest import fingerprint


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    if run.encoded is None:
        return {}
    details = run.encoded.details
    return {"vocabulary": count(details["vocab_size"]), "digest": details["tokenizer_sha256"][:DIGITS]}


def _measure(run: ComparedRun, evaluation: dict[str, Any]) -> Measured:
    """Figures by split, whose examples are the same if their content is, whatever the tokenizer and wherever it lies."""
    return {
        f"{figure}, {split}": (value, [_examples(run, split), evaluation.get("positive", {}).get(figure)])
        for split, scores in in_order(evaluation["scores"]).items()
        for figure, value in scores.items()
    }


def _examples(run: ComparedRun, split: str) -> Any:
    """What tells the examples of a split from any others; of a set that is gone, its name."""
    if run.encoded is None:
        return run.config["data"]["key"]
    return split_content(run.encoded.details, run.job["data"], split)


def _metrics(runs: Sequence[ComparedRun]) -> list[str]:
    names = [name for run in runs for record in run.of_kind("evaluation")[-1:] for name in record]
    return [name for name in dict.fromkeys(names) if name not in RECORD_FIELDS and name != "loss"]


FINE_TUNING = ComparedKind(
    recorded=kinds.FINE_TUNING,
    data="labelled sets",
    unit=lambda run: LOSS_UNITS[run.job["data"]["task"]],
    tokenizer=_tokenizer,
    tokenizer_note="A fine-tuning run's tokenizer is the file that its model's library saved: digests differ by that, too.",
    base=lambda run: fingerprint(run.config["identity"]["model"]),
    compare_data=lambda store, runs: compare_labelled(runs),
    measure=_measure,
    metrics=_metrics,
)
