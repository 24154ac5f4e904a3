"""The stage in which lm-eval measures a model on its tasks: the same figures as its own command line gives."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from jinja2 import TemplateError
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.common.errors import ConfigError, brief
from trainer.common.progress import Progress
from trainer.common.stopping import StopRequested, check_stop, stop_requested
from trainer.config.evaluation import HarnessConfig
from trainer.config.harness_files import local_tasks
from trainer.config.jobs import EvaluateJob
from trainer.data.chat.template import bound_template
from trainer.evaluation.decontamination import find_kept_out
from trainer.evaluation.harness_identity import asked_for, identify, installed_version, name_of, questions_of
from trainer.evaluation.harness_tasks import (
    Loaded,
    Results,
    evaluate_tasks,
    figures_of,
    hearing,
    load_tasks,
    set_seeds,
    tasks_in,
)
from trainer.evaluation.measurement import Measurement
from trainer.evaluation.scoring import nothing
from trainer.models.causal import load_model, load_pretrained
from trainer.models.pretrained import continues_text, load_tokenizer, read_object
from trainer.records.basis import HarnessBasis
from trainer.records.evaluations import Asked, Result, Scores, Task
from trainer.records.run_names import run_at
from trainer.store.storage import Store
from trainer.training.runtime import Runtime, count_gpus
from trainer.training.sharding import is_sharded

log = logging.getLogger(__name__)


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


RESAMPLES = 100_000
"""What lm-eval takes by default for the standard errors of figures that are no means."""


def measure_harness(wanted: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Have lm-eval measure a checkpoint, on one device: the first rank asks, and the others wait.

    Raises `ConfigError` for tasks that cannot be loaded, or that lm-eval cannot ask.
    """
    return runtime.on_first(lambda: _measure(wanted.settings, wanted, progress))


def _measure(job: EvaluateJob, wanted: Measurement, progress: Progress) -> Result:
    with progress.bar("harness", None, "request") as bar:
        with hearing():  # of how a model is given; and of tasks, which it says again when it asks them
            loaded = load_tasks(asked_for(job))
            model = _load(wanted.model.folder, wanted.model.beside, job, bar.advance)
        with hearing() as heard:
            found = ask(model, loaded, asked_for(job))
    doubts = [*loaded.doubts, *heard()]
    for doubt in doubts:
        log.warning("evaluation.harness: %s", doubt)
    return _result(Store(job.store), job, wanted, found, doubts)


def ask(model: AskedModel, loaded: Loaded, options: HarnessConfig, resamples: int = RESAMPLES) -> Results:
    """What lm-eval finds out of a model; the standard errors of some figures are of so many `resamples`.

    Raises `ConfigError` if it cannot ask.
    """
    together = loaded.together()
    set_seeds(together["tasks"].values())
    try:
        with model.asked():
            return evaluate_tasks(model, together, options, options.limit, resamples)
    except (KeyError, TypeError, ValueError, ArithmeticError, AssertionError, TemplateError) as error:
        raise ConfigError(
            f"evaluation.harness: lm-eval cannot ask {', '.join(options.tasks)}: {type(error).__name__}: "
            f"{brief(error)}; its own command line, `lm_eval`, tells more of a task"
        ) from error


def _load(folder: str, beside: str | None, job: EvaluateJob, advance: Callable[[int], None]) -> AskedModel:
    """The model as `lm_eval --model hf --model_args pretrained=FOLDER` loads it, on one device; an adapter is merged.

    Raises `ConfigError` if it continues no text, or has no chat template, but is to be asked by one.
    """
    architectures: list[str] = read_object(Path(folder, "config.json")).get("architectures") or []
    if not continues_text(architectures):
        raise ConfigError(
            f"evaluation.harness: lm-eval asks models that continue text, which {', '.join(architectures)} of {folder} "
            "does not; leave it out"
        )
    tokenizer, options = load_tokenizer(folder), asked_for(job)
    if options.chat_template:
        if not tokenizer.chat_template:
            raise ConfigError(
                f"evaluation.harness.chat_template is true, but the tokenizer of {folder} has no chat template; set it "
                "to false"
            )
        bound_template(tokenizer, folder)
    device = "cuda" if count_gpus(job.device, where="") else "cpu"
    model = load_model(folder, beside=beside) if beside else load_pretrained(AutoModelForCausalLM, folder, dtype="auto")
    return AskedModel(cast(Any, model).to(device), tokenizer, job.evaluation.batch, advance=advance)


def _result(store: Store, job: EvaluateJob, wanted: Measurement, found: Results, doubts: list[str]) -> Result:
    """What lm-eval found: of the tasks and groups that were asked for, and of those in groups."""
    options, run = asked_for(job), run_at(store, wanted.model.key) if wanted.model.key else None
    local = local_tasks(options)
    measured = {name: figures for name in found["results"] if (figures := figures_of(found, name))}
    told = identify(options.model_copy(update={"tasks": list(measured)}), installed_version())
    identities = {name: name_of(identity) for name, identity in told.items()}
    tasks = {
        name: Task(
            version=str(found["versions"].get(name, "")), identity=identities[name],
            greater_is_better={figure: each.greater for figure, each in figures.items() if each.greater is not None},
            **(find_kept_out(store, run, asked) if run and (asked := questions_of(name, local)) else {}),
        )
        for name, figures in measured.items()
    }  # fmt: skip
    return wanted.result(
        by="task",
        groups={
            name: Scores(
                figures={figure: each.value for figure, each in figures.items()},
                errors={figure: each.error for figure, each in figures.items() if each.error is not None},
                counts={"examples": _examples(name, found), **_few_shot(name, found)},
            )
            for name, figures in measured.items()
        },
        measured_on=HarnessBasis(harness=identities),
        asked=Asked(lm_eval=installed_version(), limit=options.limit, tasks=tasks, doubts=doubts),
    )


def _examples(name: str, found: Results) -> int:
    """The examples of a task that were asked, or of all tasks of a group."""
    return sum(int(found["n-samples"][each]["effective"]) for each in tasks_in(found, name))


def _few_shot(name: str, found: Results) -> dict[str, int]:
    """How many solved examples stood before each question; nothing of a group whose tasks differ in that."""
    told = {int(found["n-shot"].get(each, 0)) for each in tasks_in(found, name)}
    return {"few_shot": told.pop()} if len(told) == 1 else {}
