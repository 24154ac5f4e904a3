"""The workload of preference tuning: its losses, its training batches, and the measurement of a model on pairs.

A loss maps the log-probabilities of a pair's two answers to the value to minimise. `sums` are log p(answer | prompt) in
nats of the chosen and the rejected answer of each pair, summed over the answer's tokens, of shape [B, 2]; `reference`
are those of the original model, `tokens` the lengths of the answers.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from trainer.common.errors import ConfigError
from trainer.common.progress import Progress
from trainer.data.chat.encoded import ChatSet, open_chat
from trainer.data.chat.messages import MESSAGES
from trainer.data.dataset import Batch
from trainer.data.encoded import split_sizes
from trainer.data.splits import TRAIN, VALIDATION
from trainer.data.step_plan import make_tuning_plan
from trainer.engines.executors import Advance
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.dialogue import answer, spread_evenly
from trainer.evaluation.measurement import PREDICTED, Measurement
from trainer.evaluation.scoring import nothing
from trainer.kinds.preference.job import OF_WHOLE_ANSWERS, PreferenceJob, PreferenceTrainingConfig
from trainer.kinds.preference.kind import pairs_basis, stands_beside_plain_base
from trainer.kinds.preference.reference import (
    PartOf,
    Reference,
    answer_lengths,
    answer_sums,
    open_reference,
    read_pairs,
    reference_of,
    sum_answers,
)
from trainer.kinds.tuning_workload import CausalTuning, measured_causal, placed_causal
from trainer.models.dropout import DRAWN
from trainer.models.losses import adds_to_loss, has_plain_head
from trainer.models.outline import Outline, Rows
from trainer.models.pretrained import find_pretrained
from trainer.models.trial import check_causal, check_repeats
from trainer.records.basis import basis_by_split
from trainer.records.evaluations import Result, Scores
from trainer.store.manifest import ArtifactRef
from trainer.store.names import FINAL
from trainer.store.storage import Store
from trainer.training.runtime import Runtime
from trainer.training.throughput import flops_per_token
from trainer.training.workload import Measured

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PreferenceTrainingConfig], torch.Tensor]


def dpo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Rafailov et al. 2023 (arXiv:2305.18290), equation 7: -log sigmoid(reward of chosen - reward of rejected).

    With label smoothing e: (1 - e) of that plus e of the same with the answers exchanged, Mitchell 2023, "A note on DPO
    with noisy preferences", equation 3.
    """
    margin = how.beta * _difference(sums - reference)
    smoothed = how.label_smoothing
    return -logsigmoid(margin) * (1 - smoothed) - logsigmoid(-margin) * smoothed


def ipo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Azar et al. 2023 (arXiv:2310.12036), equation 17, with means over an answer's tokens instead of sums, as its
    authors have recommended since: (difference - 1 / (2 beta)) ** 2.
    """
    return (_difference((sums - reference) / tokens) - 1 / (2 * how.beta)) ** 2


def simpo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Meng et al. 2024 (arXiv:2405.14734), equation 6: -log sigmoid(beta * difference of means - gamma)."""
    return -logsigmoid(how.beta * _difference(sums / tokens) - (how.gamma or 0.0))


def orpo(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """Hong et al. 2024 (arXiv:2403.07691), equations 6 and 7: the mean loss of the chosen answer's tokens, and beta
    times -log sigmoid(log(odds of chosen / odds of rejected)), with odds p / (1 - p) of p = exp(mean of an answer).
    """
    means = sums / tokens
    log_odds = means - torch.log(-torch.expm1(means.clamp(max=-1e-7)))  # 1 - exp(mean) would lose digits near 1
    return -means[:, 0] - how.beta * logsigmoid(_difference(log_odds))


LOSSES: dict[str, Loss] = {"dpo": dpo, "ipo": ipo, "simpo": simpo, "orpo": orpo}


def rewards(
    sums: torch.Tensor, reference: torch.Tensor, tokens: torch.Tensor, how: PreferenceTrainingConfig
) -> torch.Tensor:
    """The loss's rewards of the two answers, of shape [B, 2]: beta times the log-probability, minus the reference's if
    there is one; of whole answers, or means over their tokens, depending on the loss.
    """
    over = sums - reference if how.needs_reference else sums
    return how.beta * (over if how.loss in OF_WHOLE_ANSWERS else over / tokens)


def _difference(values: torch.Tensor) -> torch.Tensor:
    """Chosen minus rejected answer: [B, 2] -> [B]."""
    return values[:, 0] - values[:, 1]


class PreferenceLoss(nn.Module):
    """A language model whose output is the sum of the job's loss over the pairs of a batch."""

    def __init__(self, model: PreTrainedModel, how: PreferenceTrainingConfig) -> None:
        super().__init__()
        self.model, self._how, self._loss = model, how, LOSSES[how.loss]
        has_plain_head(model)  # tested here, before training wraps the model

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        reference: torch.Tensor,
        tokens: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        """Takes rows as `read_pairs` returns them, [2B, T], and the reference's log-probabilities and the answers'
        lengths, [B, 2].
        """
        return self._loss(answer_sums(self.model, input_ids, labels), reference, tokens, self._how).sum() * weight


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Disable dropout, layer dropout and router jitter of a model in training mode, except an adapter's own dropout.

    Families that read the rate from their configuration at each call are not covered; `check_repeats` detects them.
    """
    for name, module in model.named_modules():
        if "lora_" in name:
            continue
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute, value in vars(module).items():
            if any(part in attribute for part in DRAWN) and isinstance(value, float):
                setattr(module, attribute, 0.0)
    return model


class Preference(CausalTuning):
    """The `Workload` of a `PreferenceJob`."""

    def __init__(self, job: PreferenceJob, store: Store, data: ArtifactRef, ranks: int) -> None:
        self._job, self._set = job, open_chat(store, data.key)
        self.set_details, self._train = self._set.details, self._set.splits[TRAIN]
        self._tokens, self._reference = answer_lengths(self._train), open_reference(store, job, data.key)
        plan = make_tuning_plan(job, split_sizes(self.set_details), ranks, "pair")
        lengths = self._train.lengths.reshape(-1, 2).sum(axis=1)  # of both conversations of a pair
        super().__init__(job, store, data, ranks, lengths, job.training.group_by_length, plan)

    def load_model(self, folder: Path | None) -> PreTrainedModel:
        """The model without its dropout, as in trl, because the reference has none; an adapter keeps its own."""
        return without_dropout(super().load_model(folder))

    def outline(self, folder: Path | None, rows: Rows) -> Outline | None:
        outline = super().outline(folder, rows)
        if outline is not None:
            without_dropout(outline.model)
        return outline

    def make_objective(self, model: PreTrainedModel) -> nn.Module:
        check_causal(model, self.set_details["context"])
        check_repeats(model, self.set_details["context"], self._job.model.pretrained)
        if adds_to_loss(model):
            raise ConfigError(
                f"{self._job.model.pretrained} adds a router loss, which preference losses do not support; set "
                "output_router_logits to false in the config.json of a copy, and set model.pretrained to that folder"
            )
        return PreferenceLoss(model, self._job.training)

    def flops_per_token(self, model: PreTrainedModel) -> float:
        return flops_per_token(model, model.config, int(self._train.lengths.mean()))

    def read_batch(self, number: int, rank: int) -> Batch:
        pairs, assigned = self.deal(number, rank)
        micro_batches = [
            {
                **read_pairs(self._train, part, self._set.pad_id),
                "reference": reference_of(self._reference, TRAIN, part).float(),
                "tokens": torch.from_numpy(self._tokens[part]).float(),
                "weight": torch.tensor(weight),
            }
            for part, weight in assigned
        ]
        return Batch(micro_batches, len(pairs), int(self._lengths[pairs].sum()))

    def measure(self, model: PreTrainedModel, runtime: Runtime) -> Measured:
        found = score_pairs(model, self._set, VALIDATION, self._job, self._reference, runtime)
        return Measured(dict(found.figures), {"examples": found.counts["pairs"]})


def score_pairs(
    model: PreTrainedModel,
    data: ChatSet,
    split: str,
    job: PreferenceJob,
    reference: Reference | None,
    runtime: Runtime,
    advance: Advance = nothing,
) -> Scores:
    """Measure a model on the pairs of a split, in float64; the number of ranks does not change the result."""
    tokens = torch.from_numpy(answer_lengths(data.splits[split])).double()
    pairs, how = PartOf(split, range(len(tokens))), job.training
    sums = sum_answers(model, data, pairs, job.evaluation.batch, runtime, advance)
    was = reference_of(reference, split, np.arange(len(tokens)))
    got = rewards(sums, was, tokens, how)
    preferred = (got[:, 0] > got[:, 1]).double()
    preferred[~got.isfinite().all(dim=1)] = math.nan  # a model that overflows on some pairs has no accuracy
    figures = {
        "loss": LOSSES[how.loss](sums, was, tokens, how).mean(),
        "accuracy": preferred.mean(),
        "margin": (got[:, 0] - got[:, 1]).mean(),
        "reward_chosen": got[:, 0].mean(),
        "reward_rejected": got[:, 1].mean(),
    }
    chosen, rejected = tokens.sum(dim=0).int().tolist()
    return Scores(
        figures={name: float(value) for name, value in figures.items()},
        counts={"pairs": len(tokens), "chosen_tokens": chosen, "rejected_tokens": rejected},
    )


def measure_preferences(measurement: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Measure a run's final model, or another model with the same tokenizer, and generate answers with it and with the
    original model. Called by every rank.

    Raises `TokenizerError` if the model cannot read this data, `ArtifactError` if the reference's log-probabilities are
    missing or damaged.
    """
    job: PreferenceJob = measurement.settings
    store, (encoded,) = Store(job.store), measurement.data
    data, run = open_chat(store, encoded), measurement.checkpoint.removesuffix(f"/{FINAL}")
    reference = runtime.on_first(lambda: open_reference(store, job, encoded))
    splits = {split: len(data.splits[split]) // 2 for split in PREDICTED if split in data.splits}
    held_out, evaluation = data.splits[VALIDATION], job.evaluation
    chosen = [2 * pair for pair in spread_evenly(splits[VALIDATION], evaluation.samples)]

    def placed_base() -> AbstractContextManager[PreTrainedModel]:
        return placed_causal(job, find_pretrained(store, job.model.pretrained), data.details, runtime)

    if reference is not None and stands_beside_plain_base(job):
        with placed_base() as model, progress.bar("reference", sum(splits.values()), "pair") as bar:
            parts = [PartOf(split, range(pairs)) for split, pairs in splits.items()]
            reference = {
                part.split: sum_answers(model, data, part, evaluation.batch, runtime, bar.advance).numpy()
                for part in parts
            }
        del model  # free its memory before the next model is loaded
    with (
        measured_causal(measurement, data.details, runtime) as model,
        progress.bar("evaluate", sum(splits.values()), "pair") as bar,
    ):
        groups = {split: score_pairs(model, data, split, job, reference, runtime, bar.advance) for split in splits}
        samples = answer(model, store, encoded, held_out, chosen, evaluation.new_tokens, runtime)
    del model  # free its memory before the next model is loaded
    if measurement.is_own and chosen:
        with placed_base() as model:
            before = answer(model, store, encoded, held_out, chosen, evaluation.new_tokens, runtime)
        samples = [
            each.model_copy(update={"before": earlier.continuation})
            for each, earlier in zip(samples, before, strict=True)
        ]
    return measurement.result(
        by="split",
        groups=groups,
        samples=samples,
        measured_on=basis_by_split(partial(pairs_basis, data.details, job), groups),
        clean_of=runtime.on_first(lambda: clean_of_splits(store, run, data.details, [MESSAGES])),
    )
