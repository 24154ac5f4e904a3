"""The loss of held-out answers: of each token that the assistant says, from what stands before it in its conversation."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from trainer.config.chat import ChatJob
from trainer.data.chat.encoded import ChatSet, ChatSplit, pack_split, read_windows
from trainer.models.losses import next_tokens, token_losses_in_pieces
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded


class AnswerLoss(NamedTuple):
    """The mean loss in nats a token of the answers, how many tokens those are, and the bytes of their text."""

    loss: float
    tokens: int
    text_bytes: int

    def figures(self) -> dict[str, float]:
        """The figures by name; bits a byte of answers that have text, as of held-out text."""
        told = {"loss": self.loss, "perplexity": math.exp(min(self.loss, 700.0))}
        if self.text_bytes:
            told["bits_per_byte"] = self.loss * self.tokens / math.log(2) / self.text_bytes
        return told


@torch.no_grad()
def answer_losses(
    model: PreTrainedModel,
    split: ChatSplit,
    job: ChatJob,
    data: ChatSet,
    runtime: Runtime,
    advance: Callable[[int], None] = lambda windows: None,
) -> AnswerLoss:
    """Measure a model on a split, shared among the ranks.

    Sums are in float64 and taken in a fixed order, so the number of ranks changes nothing.
    """
    was_training, batch = model.training, job.evaluation.batch
    model.eval()
    windows = pack_split(job.data, split, data.details["context"])
    sums = torch.zeros(len(windows), dtype=torch.float64)
    for round_ in range(0, len(windows), runtime.ranks * batch):
        runtime.check_stop()
        first = round_ + runtime.rank * batch
        own = range(first, min(first + batch, len(windows)))
        if not own and not is_sharded(model):  # of the last round, some ranks have no share
            break
        chosen = own or range(1)  # they must compute all the same where each holds a part of the model
        read = {name: torch.from_numpy(part) for name, part in read_windows(split, windows, chosen, data.pad_id).items()}
        shape = read["input_ids"].shape
        with runtime.accelerator.autocast():
            each = token_losses_in_pieces(
                model,
                read["input_ids"].to(runtime.device),
                next_tokens(read["labels"]).to(runtime.device),
                read["position_ids"].to(runtime.device) if job.data.packing else None,
            )
        sums[first : first + len(own)] = each.view(shape)[: len(own)].double().sum(dim=1).cpu()
        advance(len(own) * runtime.ranks)
    model.train(was_training)
    tokens = int(split.answer_tokens.sum())
    return AnswerLoss(math.fsum(runtime.sum(sums).tolist()) / tokens, tokens, split.answer_bytes)
