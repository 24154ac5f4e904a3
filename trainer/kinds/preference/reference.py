"""Log-probabilities of pairs of answers by the reference model, with which preference tuning compares the trained
model's; and encoded pairs as rows of a batch.

references/NAME-FP/
    train.npy …       float64 [pairs, 2]: log p(answer | prompt) in nats, of the chosen and of the rejected answer
cache/reference-FP/
    train-00000.json  sealed: `sums`, a part of them, during the computation

The chosen and the rejected answer of pair i are conversations 2i and 2i + 1 of a split. All ranks compute the
log-probabilities together, once for all runs with the same pairs, model and precision, so that training holds only one
model in memory. An interrupted computation continues with the first missing part.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.common.errors import ArtifactError
from trainer.common.progress import Progress
from trainer.data.chat.encoded import ChatSet, ChatSplit, open_chat, read_windows
from trainer.data.encoded import encoded_manifest
from trainer.engines.executors import Advance
from trainer.evaluation.scoring import nothing, score_each
from trainer.kinds.preference.job import PreferenceJob
from trainer.kinds.preference.kind import BATCH, describe_reference, find_reference, reference_step
from trainer.kinds.tuning_workload import placed_causal
from trainer.models.losses import next_tokens, token_losses_in_pieces
from trainer.models.pretrained import find_pretrained
from trainer.records.sealed import recall_sealed, write_sealed
from trainer.records.steps import Step, find_artifact, publish
from trainer.store.artifact_files import fetch_made
from trainer.store.manifest import ArtifactRef, Manifest, require_manifest
from trainer.store.names import REFERENCE_KIND
from trainer.store.storage import Store
from trainer.training.rank_agreement import name_together, require_same_model
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.runtime import Runtime, require_shared, start_runtime

log = logging.getLogger(__name__)

PART = 2048
"""Pairs per part: the most that an interruption can lose."""

Reference = Mapping[str, NDArray[np.float64]]
"""By split, of shape [pairs, 2]."""


class PartOf(NamedTuple):
    """Some pairs of a split."""

    split: str
    pairs: range

    @property
    def name(self) -> str:
        """The name of the part's file."""
        return f"{self.split}-{self.pairs.start // PART:05d}.json"


def parts_of(pairs: Mapping[str, int]) -> list[PartOf]:
    """The parts of splits with these numbers of pairs."""
    return [
        PartOf(split, range(first, min(first + PART, size)))
        for split, size in pairs.items()
        for first in range(0, size, PART)
    ]


def read_reference(store: Store, key: str) -> Reference:
    """Read published log-probabilities of a reference. Raises `ArtifactError` if they are missing or damaged."""
    manifest = require_manifest(
        store, key, REFERENCE_KIND,
        "holds no log-probabilities of a reference model; run the job's command again to compute them",
    )  # fmt: skip
    digests = manifest.digests()
    return {
        split: np.load(fetch_made(store, key, f"{split}.npy", digests[f"{split}.npy"]))
        for split in manifest.details["splits"]
    }


def answer_lengths(split: ChatSplit) -> NDArray[np.int64]:
    """The tokens of the chosen and the rejected answer of each pair, of shape [N, 2]."""
    return split.answer_tokens.reshape(-1, 2)


def read_pairs(split: ChatSplit, pairs: Iterable[int], pad_id: int) -> dict[str, torch.Tensor]:
    """Some pairs as rows of a batch, padded to the longest: input_ids and labels, of shape [2B, T]."""
    rows = [row for pair in pairs for row in (2 * pair, 2 * pair + 1)]
    read = read_windows(split, split.alone, rows, pad_id)
    return {name: torch.from_numpy(read[name]) for name in ("input_ids", "labels")}


@explaining_lost_ranks()
def make_reference(job: PreferenceJob, data: ArtifactRef, progress: Progress) -> ArtifactRef:
    """Find the log-probabilities of an encoded set's answers by the model that training starts from, or compute and
    publish them. Called by every rank.

    Raises `ArtifactError` if one is not finite, `ConfigError` if machines have different files of the model.
    """
    training, store = job.training, Store(job.store)
    runtime = start_runtime(training.precision, training.device, training.deterministic)
    require_shared(store, runtime)
    name_together(lambda: find_pretrained(store, job.model.pretrained), runtime)
    step = reference_step(store, job, progress, data)
    if (found := runtime.on_first(lambda: find_artifact(step))) is not None:
        return found
    runtime.on_first(store.sweep)
    pairs = open_chat(store, data.key)
    parts = parts_of({split: len(answer_lengths(each)) for split, each in pairs.splits.items()})
    missing: list[PartOf] = runtime.on_first(lambda: [part for part in parts if _read(step, part) is None])
    if missing:
        base = find_pretrained(store, job.model.pretrained)
        require_same_model(str(base.folder), runtime)
        with (
            placed_causal(job, base, pairs.details, runtime, job.model.quantize) as model,
            progress.bar("reference", sum(len(part.pairs) for part in missing), "pair") as bar,
        ):
            for part in missing:
                sums = sum_answers(model, pairs, part, BATCH, runtime, bar.advance)
                _require_finite(job, pairs, part, sums)
                runtime.on_first(lambda part=part, sums=sums: _keep(step, part, sums))  # type: ignore[misc]
    made = runtime.on_first(lambda: _publish(step, pairs, parts))
    runtime.on_first(lambda: store.delete(f"cache/reference-{step.fingerprint}"))
    return made


def sum_answers(
    model: PreTrainedModel, data: ChatSet, part: PartOf, batch: int, runtime: Runtime, advance: Advance = nothing
) -> torch.Tensor:
    """log p(answer | prompt) in nats of both answers of some pairs, in evaluation mode; shape [N, 2], float64. The
    result is the same on every rank and for any number of ranks.
    """
    split = data.splits[part.split]

    def score(chosen: range) -> torch.Tensor:
        read = read_pairs(split, part.pairs[chosen.start : chosen.stop], data.pad_id)
        ids, labels = (read[name].to(runtime.device) for name in ("input_ids", "labels"))
        return answer_sums(model, ids, labels, torch.float64)

    return score_each(model, len(part.pairs), 2, batch, runtime, score, advance)


def answer_sums(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The same for a batch of `read_pairs`, with gradients; [2B, T] -> [B, 2]."""
    losses = token_losses_in_pieces(model, input_ids, next_tokens(labels))
    return -losses.view(input_ids.shape).to(dtype).sum(dim=1).view(-1, 2)


def open_reference(store: Store, job: PreferenceJob, encoded: str) -> Reference | None:
    """The reference log-probabilities that a job reads; None if its loss needs none.

    Raises `ArtifactError` if they are missing or damaged.
    """
    content = encoded_manifest(store, encoded).content
    found = find_reference(store, job, ArtifactRef(key=encoded, fingerprint="", size=0, content=content))
    return read_reference(store, found.key) if found else None


def reference_of(reference: Reference | None, split: str, pairs: NDArray[np.int64]) -> torch.Tensor:
    """The reference log-probabilities of some pairs of a split, of shape [B, 2]; zeros without a reference."""
    return torch.from_numpy(np.zeros((len(pairs), 2)) if reference is None else reference[split][pairs])


def _require_finite(job: PreferenceJob, data: ChatSet, part: PartOf, sums: torch.Tensor) -> None:
    if not (finite := sums.isfinite().all(dim=1)).all():
        name = data.splits[part.split].name(2 * part.pairs[int(finite.int().argmin())])
        raise ArtifactError(
            f"{job.model.pretrained} gives a log-probability that is not finite for an answer of record {name} of the "
            f"{part.split} split, in {job.training.precision}; check its weights, or set training.precision to fp32"
        )


def _place(step: Step, part: PartOf) -> str:
    return f"cache/reference-{step.fingerprint}/{part.name}"


def _read(step: Step, part: PartOf) -> list[list[float]] | None:
    found: dict[str, Any] | None = recall_sealed(step.store, _place(step, part), "it is computed again")
    return found["sums"] if found and len(found["sums"]) == len(part.pairs) else None


def _keep(step: Step, part: PartOf, sums: torch.Tensor) -> None:
    write_sealed(step.store, _place(step, part), {"sums": sums.tolist()}, indent=None)


def _publish(step: Step, data: ChatSet, parts: list[PartOf]) -> ArtifactRef:
    """Publish the parts together, or return what another job has published meanwhile, which also deletes the parts."""
    sums: dict[str, list[list[float]]] = {}
    for part in parts:
        found = _read(step, part)
        if found is None and (published := find_artifact(step)) is not None:
            return published
        if found is None:
            raise ArtifactError(f"{step.store.path(_place(step, part))} was removed meanwhile; run the command again")
        sums.setdefault(part.split, []).extend(found)
    reference = {split: np.array(each, dtype=np.float64) for split, each in sums.items()}
    with step.store.staging(key=step.key) as folder:
        for split, each in reference.items():
            np.save(folder / f"{split}.npy", each)
        manifest = publish(step, folder, {"splits": {s: _describe(data, s, each) for s, each in reference.items()}})
    _log_reference(manifest)
    return step.refer(manifest)


def _describe(data: ChatSet, split: str, sums: NDArray[np.float64]) -> dict[str, Any]:
    means = sums / answer_lengths(data.splits[split])
    return {"pairs": len(means), "accuracy": float((means[:, 0] > means[:, 1]).mean())}


def _log_reference(manifest: Manifest) -> None:
    swapped = manifest.details["splits"]["train"]["accuracy"] < 0.5
    hint = "; if you did not expect this, check whether `chosen` and `rejected` are swapped"
    log.log(logging.WARNING if swapped else logging.INFO, "%s%s", describe_reference(manifest), hint if swapped else "")
