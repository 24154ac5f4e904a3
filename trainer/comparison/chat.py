"""What is compared of runs on conversations: their sets, the model that they start from, and figures of held-out answers."""

from typing import Any

from trainer.common.formats import count
from trainer.comparison.data import DIGITS, compare_labelled
from trainer.comparison.harness import measured_by_harness
from trainer.comparison.runs import ComparedKind, ComparedRun, Measured
from trainer.records import kinds
from trainer.records.basis import answers_basis, facts_of
from trainer.report.chat import UNIT
from trainer.report.finetuning_data import in_order
from trainer.store.manifest import fingerprint


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    if run.encoded is None:
        return {}
    details = run.encoded.details
    return {"vocabulary": count(details["vocab_size"]), "digest": details["tokenizer_sha256"][:DIGITS]}


def _measure(run: ComparedRun, evaluation: dict[str, Any]) -> Measured:
    """Figures by split, and of tasks of lm-eval, each with what it was measured on."""
    own = {
        f"{figure.replace('_', ' ')}, {split}": (value, _answers(run, figure, split))
        for split, scores in in_order(evaluation["scores"]).items()
        for figure, value in scores.items()
    }
    return {**own, **measured_by_harness(evaluation)}


def _answers(run: ComparedRun, figure: str, split: str) -> Any:
    """What a figure of a split was measured on; of a set that is gone, its name."""
    if run.encoded is None:
        return run.config["data"]["key"]
    return facts_of(figure, answers_basis(run.encoded.details, run.job["data"], split, run.job["training"]["precision"]))


CHAT = ComparedKind(
    recorded=kinds.CHAT,
    data="conversations",
    unit=lambda run: UNIT,
    tokenizer=_tokenizer,
    tokenizer_note="A run on conversations has the tokenizer's file as its model's library saved it: digests differ by that.",
    base=lambda run: fingerprint(run.config["identity"]["model"]),
    compare_data=lambda store, runs: compare_labelled(runs),
    measure=_measure,
    metrics=lambda runs: ["perplexity"],
)
