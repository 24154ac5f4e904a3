"""A reference model's log-probabilities of answers, computed once for all runs of the same pairs, model and precision,
which then hold one model in memory.

All ranks compute them together; a file that is written is kept if the work is broken off.
"""

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.common.progress import Progress
from trainer.data.chat.encoded import ChatSet, open_chat
from trainer.data.chat.reference import PartOf, parts_of, read_reference, tell_reference
from trainer.data.encoded import encoded_manifest
from trainer.engines.executors import Advance
from trainer.evaluation.scoring import nothing, score_each
from trainer.kinds.preference.encoding import answer_lengths, read_pairs
from trainer.kinds.preference.job import PreferenceJob
from trainer.kinds.preference.prepare import find_reference, reference_step
from trainer.kinds.tuning_workload import placed_causal
from trainer.models.losses import next_tokens, token_losses_in_pieces
from trainer.models.pretrained import find_model
from trainer.records.sealed import recall_sealed, sealed_bytes
from trainer.records.steps import Step, describe, find_artifact
from trainer.store.manifest import ArtifactRef, FileRecord, Manifest, digest_file, write_manifest
from trainer.store.storage import Store
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.runtime import Runtime, start_runtime

log = logging.getLogger(__name__)


@explaining_lost_ranks()
def make_reference(job: PreferenceJob, data: ArtifactRef, progress: Progress) -> ArtifactRef:
    """Find what the model, as the job starts it, makes of the answers of an encoded set, or compute and publish it.

    Called by every rank. What was written before the work was broken off is not computed again.
    """
    training, store = job.training, Store(job.store)
    runtime = start_runtime(training.precision, training.device, training.deterministic)
    step = reference_step(store, job, progress, data)
    if (found := runtime.on_first(lambda: find_artifact(step))) is not None:
        return found
    runtime.on_first(store.sweep)
    pairs = open_chat(store, data.key)
    parts = parts_of({split: len(answer_lengths(each)) for split, each in pairs.splits.items()})
    missing: list[PartOf] = runtime.on_first(lambda: [part for part in parts if _read(step, part) is None])
    if missing:
        base = find_model(store, job.model.pretrained, hub=True)
        with (
            placed_causal(job, base, pairs.details, runtime) as model,
            progress.bar("reference", sum(len(part.pairs) for part in missing), "pair") as bar,
        ):
            for part in missing:
                sums = sum_answers(model, pairs, part, job.evaluation.batch, runtime, bar.advance)
                runtime.on_first(lambda part=part, sums=sums: _write(step, part, sums))  # type: ignore[misc]
    return runtime.on_first(lambda: step.refer(_publish(step, pairs, parts)))


def sum_answers(
    model: PreTrainedModel, data: ChatSet, part: PartOf, batch: int, runtime: Runtime, advance: Advance = nothing
) -> torch.Tensor:
    """log p(answer | prompt) in nats of both answers of some pairs, of shape [N, 2], float64: the same on every rank,
    and for any number of them. In the state for evaluation.
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
    """The same of a batch of `read_pairs`, with gradients; [2B, T] -> [B, 2]."""
    losses = token_losses_in_pieces(model, input_ids, next_tokens(labels))
    return -losses.view(input_ids.shape).to(dtype).sum(dim=1).view(-1, 2)


Reference = dict[str, NDArray[np.float64]]
"""log p(answer | prompt) in nats of both answers of each pair, by split, of shape [N, 2]."""


def open_reference(store: Store, job: PreferenceJob, encoded: str) -> Reference | None:
    """What a job reads of its reference model; None of a loss that asks for none.

    Raises `ArtifactError` if it is missing or damaged.
    """
    content = encoded_manifest(store, encoded).content
    found = find_reference(store, job, ArtifactRef(key=encoded, fingerprint="", size=0, content=content))
    return read_reference(store, found.key) if found else None


def reference_of(reference: Reference | None, split: str, pairs: NDArray[np.int64]) -> torch.Tensor:
    """That of some pairs of a split, of shape [B, 2]; zeros where there is none."""
    return torch.from_numpy(np.zeros((len(pairs), 2)) if reference is None else reference[split][pairs])


def _read(step: Step, part: PartOf) -> dict[str, Any] | None:
    return recall_sealed(step.store, f"{step.key}/{part.name}", "it is computed again")


def _write(step: Step, part: PartOf, sums: torch.Tensor) -> None:
    key = f"{step.key}/{part.name}"
    step.store.write_bytes(key, sealed_bytes(key, {"sums": sums.tolist()}, indent=None))


def _publish(step: Step, data: ChatSet, parts: list[PartOf]) -> Manifest:
    files: list[FileRecord] = []
    sums: dict[str, list[list[float]]] = {}
    for part in parts:
        found = _read(step, part)
        assert found is not None, part.name
        sums.setdefault(part.split, []).extend(found["sums"])
        files.append(digest_file(step.store.fetch(f"{step.key}/{part.name}"), part.name))
    splits = {}
    for split, each in sums.items():
        means = np.array(each) / answer_lengths(data.splits[split])
        splits[split] = {"pairs": len(means), "likelier": float((means[:, 0] > means[:, 1]).mean())}
    manifest = describe(step, files, {"splits": splits})
    write_manifest(step.store, step.key, manifest)
    log.info("%s", tell_reference(manifest))
    return manifest
