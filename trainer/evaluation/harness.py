"""The stage that measures a model with lm-eval; its figures equal those of lm-eval's command line."""

import logging
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from traceback import walk_tb
from typing import Any, NamedTuple, cast

import torch
from jinja2 import TemplateError
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.common.errors import ConfigError, PipelineError, brief
from trainer.common.progress import Progress
from trainer.common.stopping import StopRequested, check_stop, stop_requested
from trainer.common.transient import retry_transient
from trainer.config.evaluation import HarnessConfig
from trainer.config.harness_files import definitions, local_tasks
from trainer.config.jobs import EvaluateJob
from trainer.data.chat.template import bound_template
from trainer.evaluation.decontamination import find_kept_out, read_searched
from trainer.evaluation.harness_identity import asked_for, identify, installed_version, name_of, questions_of
from trainer.evaluation.harness_tasks import (
    Results,
    doubts_of,
    evaluate_tasks,
    figures_of,
    hearing,
    load_tasks,
    set_seeds,
    tasks_in,
)
from trainer.evaluation.measurement import Measurement, find_result, record
from trainer.evaluation.scoring import nothing
from trainer.models.causal import load_model, load_whole
from trainer.models.pretrained import architectures_of, continues_text, load_tokenizer
from trainer.records.basis import HarnessBasis
from trainer.records.evaluations import HarnessRun, Result, Scores, Task
from trainer.records.run_names import run_at
from trainer.store.storage import Store
from trainer.training.runtime import Runtime, count_gpus
from trainer.training.sharding import is_sharded

log = logging.getLogger(__name__)


class AskedModel(HFLM):  # type: ignore[misc]
    """A transformers model for lm-eval that counts its requests, handles stop requests and may run on several ranks.

    With `runtime`, every rank gets the same requests, computes those of its share of the documents, and returns all
    answers. Before each forward pass the ranks agree to continue, because ranks of a sharded model must all compute,
    and no rank may stop alone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        batch: int,
        runtime: Runtime | None = None,
        advance: Callable[[int], None] = nothing,
    ) -> None:
        # In half precision, sums of log probabilities of different answers could become equal.
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch, softmax_dtype="float32")
        if runtime is not None:
            self._device = runtime.device  # where a sharded model computes; its weights may be elsewhere
        self._runtime, self._advance, self._resting = runtime, advance, False

    @contextmanager
    def in_agreement(self) -> Iterator["AskedModel"]:
        """Within the block, agree with the other ranks before each forward pass."""
        # Runs before a sharded model gathers its weights, which all ranks must do and a stop must not interrupt.
        hook = self.model.register_forward_pre_hook(lambda *_: self._before_pass(), prepend=True)
        try:
            yield self
        finally:
            hook.remove()

    def _before_pass(self) -> None:
        if not self._resting:
            self._agree(asks=True)

    def _agree(self, asks: bool) -> bool:
        """Whether any rank still has requests; raises `StopRequested` on every rank if one of them must stop."""
        if self._runtime is None:
            check_stop()
            return asks
        asking, stopping = self._runtime.sum(torch.tensor([int(asks), int(stop_requested())])).tolist()
        if stopping:
            raise StopRequested
        return bool(asking)

    def _share(self, ask: Callable[..., list[Any]], requests: Sequence[Any]) -> list[Any]:
        """The answers to all requests, in order; each rank computes those of its share of the documents."""
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
        for places, answered in zip(shares, self._runtime.on_each(lambda: answers), strict=True):
            for place, answer in zip(places, answered, strict=True):
                found[place] = answer
        return found

    def _rest(self) -> None:
        """Wait until no rank has requests; with a sharded model, take part in the forward passes of the others."""
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
        # Ranks already agree before each forward pass, and some may have no requests.
        made: torch.Tensor = super()._model_generate(context, *arguments, **options, synced_gpus=False)
        self._advance(len(context))
        return made

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        return self._share(super().loglikelihood, requests)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        return self._share(super().loglikelihood_rolling, requests)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        return self._share(super().generate_until, requests)


OF_LM_EVAL = KeyError, TypeError, ValueError, ArithmeticError, AssertionError, TemplateError
"""Types of errors that lm-eval's own code raises for a task, such as one of its metrics."""

RESAMPLES = 100_000
"""lm-eval's default number of bootstrap resamples, for standard errors of figures that are not means."""


def measure_harness(measurement: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Measure a checkpoint with lm-eval on one device; rank 0 computes, the other ranks wait.

    Raises `ConfigError` for tasks that cannot be loaded or evaluated.
    """
    return runtime.on_first(lambda: _measure(measurement.settings, measurement, progress))


def _measure(job: EvaluateJob, measurement: Measurement, progress: Progress) -> Result:
    """Measure task by task, and record the figures of each of several, so that a lost process repeats only one task."""
    store = Store(job.store)
    whole = measurement.place or measurement.elsewhere  # which may hold the figures of one of the tasks
    parts = {
        name: replace(
            measurement, recipe={**measurement.recipe, "tasks": {name: identity}}, place=None, elsewhere=whole
        )
        for name, identity in measurement.recipe["tasks"].items()
    }
    results = {name: result for name, part in parts.items() if (result := find_result(store, part)) is not None}
    if missing := [name for name in parts if name not in results]:
        options = asked_for(job).model_copy(update={"tasks": missing})
        run = run_at(store, measurement.model.key)
        defined = _defined(options, store, run)  # before work of hours, in which a file may be edited
        with progress.bar("harness", None, "request") as bar:
            with hearing():  # drops warnings about the way a model is passed, and about tasks, which are repeated below
                loaded = load_tasks(options)
                model = _load(measurement.model.folder, measurement.model.beside, job, bar.advance)
            for name in missing:
                with hearing() as heard:
                    found = ask(model, loaded[name], options)
                doubts = [*doubts_of(loaded[name]), *heard(), *_left_out(found)]
                results[name] = _result(options, parts[name], found, defined, doubts)
                if len(parts) > 1:
                    # A retry of the whole would measure the task again, which may take hours.
                    retry_transient(partial(record, store, parts[name], results[name]))
    return _together(measurement, [results[name] for name in parts])


def _together(measurement: Measurement, parts: list[Result]) -> Result:
    """The results of several tasks as one; logs their warnings."""
    runs = [part.asked for part in parts if part.asked is not None]
    doubts = list(dict.fromkeys(doubt for run in runs for doubt in run.doubts))
    for doubt in doubts:
        log.warning("evaluation.harness: %s", doubt)
    tasks = {name: task for run in runs for name, task in run.tasks.items()}
    return measurement.result(
        by="task",
        groups={name: scores for part in parts for name, scores in part.groups.items()},
        measured_on=HarnessBasis(harness={name: task.identity for name, task in tasks.items()}),
        asked=runs[0].model_copy(update={"tasks": tasks, "doubts": doubts}),
    )


class Defined(NamedTuple):
    """The identity of a task or group, and whether its questions were kept out of training, as in a `Task`."""

    identity: str
    kept_out: Mapping[str, Any] = {}


def _defined(options: HarnessConfig, store: Store, run: str | None) -> dict[str, Defined]:
    """The requested tasks and groups, and the local ones in them, by name; `run` is that of the model, if known.

    Raises `ArtifactError` if a record of the run's training text is missing or damaged.
    """
    local = local_tasks(options)
    inner = [each.name for name in options.tasks for each in definitions(name, local)]
    names = list(dict.fromkeys([*options.tasks, *inner]))
    identities = identify(options.model_copy(update={"tasks": names}), installed_version())
    questions = {name: questions_of(name, local) if run else None for name in names}
    searched = read_searched(store, run) if run and any(questions.values()) else None  # once: decisions may be large
    kept_out = {name: find_kept_out(searched, each) for name, each in questions.items() if run and each}
    return {name: Defined(name_of(each), kept_out.get(name, {})) for name, each in identities.items()}


def ask(model: AskedModel, loaded: dict[str, Any], options: HarnessConfig, resamples: int = RESAMPLES) -> Results:
    """lm-eval's results of a task or group for a model; standard errors are of so many bootstrap `resamples`.

    Raises `ConfigError` if lm-eval fails.
    """
    set_seeds(loaded["tasks"].values())
    try:
        with model.in_agreement():
            return evaluate_tasks(model, loaded, options, options.limit, resamples)
    except (PipelineError, MemoryError):
        raise
    except Exception as error:
        blamed = _blamed(error, loaded["tasks"])
        if not (blamed or isinstance(error, OF_LM_EVAL)):
            raise  # of the model, the machine or another rank
        raise ConfigError(
            f"evaluation.harness: lm-eval fails on {', '.join(blamed or loaded['tasks'])}: {type(error).__name__}: "
            f"{brief(error)}; its own command line, `lm_eval`, prints more about a task"
        ) from error


def _blamed(error: Exception, tasks: Mapping[str, Any]) -> list[str]:
    """The task in whose own code, such as its functions, an error of any type was raised; empty if elsewhere."""
    owners = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    owners += [getattr(owner, "task", None) for owner in owners]  # lm-eval's results of a task
    return [name for name, task in tasks.items() if any(task is owner for owner in owners)]


def _load(folder: str, beside: str | None, job: EvaluateJob, advance: Callable[[int], None]) -> AskedModel:
    """Load the model as `lm_eval --model hf --model_args pretrained=FOLDER` does, on one device; merge an adapter.

    Raises `ConfigError` if the model does not continue text, or lacks the chat template that the job asks for.
    """
    architectures = architectures_of(folder)
    if not continues_text(architectures):
        raise ConfigError(
            f"evaluation.harness: lm-eval needs a model that continues text, but {folder} is a "
            f"{', '.join(architectures)}; remove evaluation.harness"
        )
    tokenizer, options = load_tokenizer(folder), asked_for(job)
    if options.chat_template:
        if not tokenizer.chat_template:
            raise ConfigError(
                f"evaluation.harness.chat_template is true, but the tokenizer of {folder} has no chat template; set it "
                "to false"
            )
        bound_template(tokenizer, folder)
    device = "cuda" if count_gpus(job.device) else "cpu"
    model = load_model(folder, beside=beside) if beside else load_whole(AutoModelForCausalLM, folder, dtype="auto")
    return AskedModel(cast(Any, model).to(device), tokenizer, job.evaluation.batch, advance=advance)


def _result(
    options: HarnessConfig, measurement: Measurement, found: Results, defined: dict[str, Defined], doubts: list[str]
) -> Result:
    """The result with lm-eval's figures for the requested tasks and groups, and for the members of groups."""
    measured = {name: figures for name in found["results"] if (figures := figures_of(found, name))}
    others = [name for name in measured if name not in defined]  # members of lm-eval's own groups
    identities = identify(options.model_copy(update={"tasks": others, "include_path": None}), installed_version())
    defined = defined | {name: Defined(name_of(identity)) for name, identity in identities.items()}
    tasks = {
        name: Task(
            version=str(found["versions"].get(name, "")), identity=defined[name].identity,
            greater_is_better={figure: each.greater for figure, each in figures.items() if each.greater is not None},
            **defined[name].kept_out,
        )
        for name, figures in measured.items()
    }  # fmt: skip
    return measurement.result(
        by="task",
        groups={
            name: Scores(
                figures={figure: each.value for figure, each in figures.items()},
                errors={figure: each.error for figure, each in figures.items() if each.error is not None},
                counts={"examples": _examples(name, found), **_few_shot(name, found)},
            )
            for name, figures in measured.items()
        },
        measured_on=HarnessBasis(harness={name: defined[name].identity for name in measured}),
        asked=HarnessRun(lm_eval=installed_version(), limit=options.limit, tasks=tasks, doubts=doubts),
    )


def _left_out(found: Results) -> list[str]:
    """What lm-eval found that is not finite, such as the perplexity of a model that gives a text no probability."""
    return [
        f"the {figure.partition(',')[0]} of the task {name!r} is {value}, and is left out"
        for name, figures in found["results"].items()
        for figure, value in figures.items()
        if isinstance(value, numbers.Real) and not math.isfinite(value) and "_stderr," not in figure
    ]


def _examples(name: str, found: Results) -> int:
    """The number of evaluated examples of a task, or of all tasks of a group."""
    return sum(int(found["n-samples"][each]["effective"]) for each in tasks_in(found, name))


def _few_shot(name: str, found: Results) -> dict[str, int]:
    """The number of solved examples before each question; empty for a group whose tasks differ in it."""
    shots = {int(found["n-shot"].get(each, 0)) for each in tasks_in(found, name)}
    return {"few_shot": shots.pop()} if len(shots) == 1 else {}
