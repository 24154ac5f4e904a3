"""Measuring a model that was tuned on preferences: figures of held-out pairs, and its answers before and after.

runs/X/eval.json     figures by split, and the answers
"""

from trainer.common.progress import Progress
from trainer.data.chat.encoded import open_chat
from trainer.data.chat.messages import MESSAGES
from trainer.data.splits import VALIDATION
from trainer.evaluation.answers import answer, spread_evenly
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.measurement import PREDICTED, Measurement
from trainer.kinds.preference.job import PreferenceJob
from trainer.kinds.preference.prepare import describe_rewards, pairs_basis
from trainer.kinds.preference.reference import open_reference
from trainer.kinds.preference.workload import score_pairs
from trainer.kinds.tuning_workload import measured_causal, placed_causal
from trainer.models.pretrained import find_model
from trainer.records.evaluations import Result
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.runtime import Runtime


def measure_preferences(wanted: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Measure a run's final model, or another model with the same tokenizer, and have it answer, and the model that it
    was before. Called by every rank.

    Raises `TokenizerError` if the model does not read this data, `ArtifactError` if what the reference model made of it
    is missing or damaged.
    """
    job: PreferenceJob = wanted.settings
    store, (encoded,) = Store(job.store), wanted.data
    data, run = open_chat(store, encoded), wanted.checkpoint.removesuffix(f"/{FINAL}")
    reference = runtime.on_first(lambda: open_reference(store, job, encoded))
    splits = {split: len(data.splits[split]) // 2 for split in PREDICTED if split in data.splits}
    held_out, asked = data.splits[VALIDATION], job.evaluation
    chosen = [2 * pair for pair in spread_evenly(splits[VALIDATION], asked.samples)]
    with (
        measured_causal(wanted, data.details, runtime) as model,
        progress.bar("evaluate", sum(splits.values()), "pair") as bar,
    ):
        groups = {split: score_pairs(model, data, split, job, reference, runtime, bar.advance) for split in splits}
        samples = answer(model, store, encoded, held_out, chosen, asked.new_tokens, runtime)
    del model  # before there is another one
    if wanted.is_own and chosen:
        base = find_model(store, job.model.pretrained, hub=True)
        with placed_causal(job, base, data.details, runtime) as model:
            before = answer(model, store, encoded, held_out, chosen, asked.new_tokens, runtime)
        samples = [
            each.model_copy(update={"before": earlier.continuation})
            for each, earlier in zip(samples, before, strict=True)
        ]
    rewards = describe_rewards(job)
    return wanted.result(
        by="split",
        groups=groups,
        samples=samples,
        measured_on=pairs_basis(data.details, job.data.model_dump(), VALIDATION, job.training.precision, rewards),
        clean_of=runtime.on_first(lambda: clean_of_splits(store, run, data.details, [MESSAGES])),
    )
