"""Report and comparison content of preference tuning: rewards of held-out answers, and sample answers."""

from dataclasses import replace

from trainer.kinds.preference.job import LOSS_SETTINGS, WITH_REFERENCE, PreferenceJob
from trainer.kinds.tuning_page import compare_tuning, describe_tuning, use_by_asking
from trainer.records.plans import TuningPlan
from trainer.registry.content import ReportContent, Section
from trainer.registry.facts import RunFacts
from trainer.registry.sections import sample_blocks

UNIT = "a pair"

ANSWERS = "Held-out prompts, and the final model's answer (greedy decoding: the likeliest token each time)."


def describe_preferences(facts: RunFacts, plan: TuningPlan) -> ReportContent:
    """The report of a run on pairs of answers."""
    tuning = describe_tuning(
        facts,
        plan,
        UNIT,
        "text-generation",
        "preference-tuned language",
        use_by_asking(facts),
        loss=_loss_settings(facts),
    )
    return replace(
        tuning, samples=[Section("Answers", sample_blocks(facts, ANSWERS, "No held-out prompt was answered."))]
    )


def _loss_settings(facts: RunFacts) -> list[tuple[str, str]]:
    training = facts.job["training"]
    settings = [f"{name} {training[name]:g}" for name in LOSS_SETTINGS if training[name]]
    pairs = [("Loss", ", ".join([training["loss"], *settings]))]
    if training["loss"] not in WITH_REFERENCE:
        return pairs
    return [*pairs, ("Reference", f"{facts.job['model']['pretrained']}, whose log-probabilities were computed once")]


COMPARED = compare_tuning(
    "pairs",
    unit=lambda run: UNIT,
    metrics=lambda runs: [figure for figure in PreferenceJob.figures if figure != "loss"],
)
