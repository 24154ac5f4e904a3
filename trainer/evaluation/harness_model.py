"""A model as lm-eval asks it: on one device, or on several ranks, of which each answers its share of the questions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

from trainer.common.stopping import StopRequested, check_stop, stop_requested
from trainer.evaluation.scoring import nothing
from trainer.training.runtime import Runtime
from trainer.training.sharding import is_sharded


class AskedModel(HFLM):  # type: ignore[misc]
    """A model of transformers as lm-eval takes it, which counts what it is asked, and ends where it is asked to
    stop.

    `runtime`: the ranks that are asked together. Each has the same questions, answers those of its share of the
    documents, and gives all answers. Before each pass over the model they agree that all go on, as ranks that hold a
    part of the model each must all compute, and none may end alone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        batch: int,
        runtime: Runtime | None = None,
        advance: Callable[[int], None] = nothing,
    ) -> None:
        # Sums of logarithms in half precision would make answers equal that are not.
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch, softmax_dtype="float32")
        if runtime is not None:
            self._device = runtime.device  # where a divided model computes, wherever it lies
        self._runtime, self._advance, self._resting = runtime, advance, False

    @contextmanager
    def asked(self) -> Iterator["AskedModel"]:
        """Agree before each pass over the model, for the length of a block."""
        # Before a divided model gathers its weights, which all ranks must do, and which a stop must not leave begun.
        hook = self.model.register_forward_pre_hook(lambda *_: self._before_pass(), prepend=True)
        try:
            yield self
        finally:
            hook.remove()

    def _before_pass(self) -> None:
        if not self._resting:
            self._agree(asks=True)

    def _agree(self, asks: bool) -> bool:
        """Whether a rank still asks. Raises `StopRequested`, on every rank, if one of them is to stop."""
        if self._runtime is None:
            check_stop()
            return asks
        asking, stopping = self._runtime.sum(torch.tensor([int(asks), int(stop_requested())])).tolist()
        if stopping:
            raise StopRequested
        return bool(asking)

    def _share(self, ask: Callable[..., list[Any]], requests: Sequence[Any]) -> list[Any]:
        """The answers to requests, in their order; of several ranks each asks those about its share of documents."""
        if self._runtime is None or self._runtime.ranks == 1:
            return ask(requests, disable_tqdm=True)
        rank, ranks = self._runtime.rank, self._runtime.ranks
        shares = [
            [place for place, each in enumerate(requests) if each.doc_id % ranks == other] for other in range(ranks)
        ]
        mine = [requests[place] for place in shares[rank]]
        answers = ask(mine, disable_tqdm=True) if mine else []
        self._rest()
        found: list[Any] = [None] * len(requests)
        for places, told in zip(shares, self._runtime.on_each(lambda: answers), strict=True):
            for place, answer in zip(places, told, strict=True):
                found[place] = answer
        return found

    def _rest(self) -> None:
        """Wait until no rank asks any more; of a divided model, compute what the others need this rank's part for."""
        self._resting = True
        try:
            while self._agree(asks=False):
                if is_sharded(self.model):
                    with torch.no_grad():
                        self.model(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
        finally:
            self._resting = False

    def _model_call(self, inps: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        logits: torch.Tensor = super()._model_call(inps, *arguments, **options)
        self._advance(len(inps))
        return logits

    def _model_generate(self, context: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        # The ranks agree before each pass already, and some of them may ask nothing.
        made: torch.Tensor = super()._model_generate(context, *arguments, **options, synced_gpus=False)
        self._advance(len(context))
        return made

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        return self._share(super().loglikelihood, requests)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        return self._share(super().loglikelihood_rolling, requests)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        return self._share(super().generate_until, requests)
