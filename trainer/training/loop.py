"""The training loop, and its speed figures."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from trainer.common.errors import ConfigError, Preempted
from trainer.common.progress import Bar
from trainer.common.stopping import StopRequested, defer_stop, stop_requested
from trainer.config.evaluation import PREFIX
from trainer.config.training import OptimizationConfig
from trainer.data.dataset import Batch
from trainer.models.quantized import weights_in
from trainer.records.evaluations import Criterion
from trainer.records.plans import Plan
from trainer.training.checkpoint import Divergence, TrainState
from trainer.training.run_log import RunLog
from trainer.training.run_records import ASKED, ENDED, SCHEDULE
from trainer.training.runtime import Runtime, describe_threads, seed_everything
from trainer.training.saver import Commit, Saver, take_snapshot
from trainer.training.schedules import planned_rates
from trainer.training.sharding import is_sharded, local_part
from trainer.training.step import Outcome, train_step

log = logging.getLogger(__name__)


MEASURED_SIZE = 1024

SHOWN = 12
"""Figures of an evaluation that its line in the log shows."""

PEAK_FLOPS = {
    ("NVIDIA A100", "bf16"): 312e12,
    ("NVIDIA A100", "fp16"): 312e12,
    ("NVIDIA A100", "fp32"): 19.5e12,
    ("NVIDIA H100", "bf16"): 989e12,
    ("NVIDIA H100", "fp16"): 989e12,
    ("NVIDIA H100", "fp32"): 67e12,
    ("NVIDIA H200", "bf16"): 989e12,
    ("NVIDIA H200", "fp16"): 989e12,
    ("NVIDIA H200", "fp32"): 67e12,
}
"""Dense peak rates from NVIDIA's data sheets (SXM), in operations a second."""


def flops_per_token(model: nn.Module, config: PretrainedConfig, context: int) -> float:
    """Arithmetic of training on one token: 6 N + 12 L H Q T (Chowdhery et al., PaLM, 2022, appendix B).

    N counts parameters that multiply (embeddings that only look up are left out, a tied output matrix is not).
    """
    text = config.get_text_config()
    count = sum(weights_in(parameter) for parameter in model.parameters())
    output = getattr(model, "get_output_embeddings", lambda: None)()
    lookups = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    count -= sum(weight.numel() for weight in lookups if output is None or weight is not output.weight)
    layers, width = getattr(text, "num_hidden_layers", 0), getattr(text, "hidden_size", 0)
    return 6.0 * count + 12.0 * layers * width * context


def peak_flops(device: torch.device, precision: str) -> float:
    """Operations a second that the device can do: from its data sheet, else measured with a matrix product."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for (prefix, kind), peak in PEAK_FLOPS.items():
            if name.startswith(prefix) and kind == precision:
                return peak
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return measured_flops(device, dtype)


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """The best rate of a square matrix product within some time."""
    size = MEASURED_SIZE if device.type == "cpu" else 8 * MEASURED_SIZE
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        started = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


class Meter:
    """Gathers what happens between two metric records. Losses stay on the device until then."""

    def __init__(self, device: torch.device, flops_per_token: float, peak: float) -> None:
        self._flops_per_token, self._peak = flops_per_token, peak
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self.loss = torch.zeros((), device=self._device)
        self.attempts = self.steps = self._tokens = 0
        self._waited = self._paused = 0.0
        self._started = time.perf_counter()

    def add(self, loss: torch.Tensor, tokens: int, waited: float, skipped: bool = False) -> None:
        """Count a step over so many tokens, and the seconds for which it waited for data. A skipped one adds no
        loss.
        """
        if not skipped:
            self.loss += loss
            self.steps += 1
        self.attempts += 1
        self._tokens += tokens
        self._waited += waited

    def pause(self, seconds: float) -> None:
        """Leave out time spent on something else than steps."""
        self._paused += seconds

    def read(self) -> dict[str, float]:
        """The interval's figures. Waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._started - self._paused
        rate = self._tokens / seconds
        return {
            "tokens_per_second": rate,
            "mfu": rate * self._flops_per_token / self._peak,
            "step_seconds": seconds / self.attempts,
            "data_wait_seconds": self._waited / self.attempts,
        }


class Measured(NamedTuple):
    """Validation figures by name, `loss` among them, and what else a record of them says."""

    scores: dict[str, float]
    details: dict[str, Any]


@dataclass(frozen=True)
class Session:
    """All that one process needs to train; `log` is rank 0's alone, `saver` too unless the model is sharded."""

    training: OptimizationConfig
    plan: Plan
    runtime: Runtime
    model: PreTrainedModel
    objective: nn.Module
    optimizer: Any
    schedule: Any
    state: TrainState
    measure: Callable[[], Measured | None]
    ask: Callable[[], Mapping[str, float]] | None
    ask_every: int | None
    criterion: Criterion
    log: RunLog | None
    saver: Saver | None
    meter: Meter
    bar: Bar
    roll_back: Callable[["Session"], None]
    attention: Callable[[], AbstractContextManager[object]] = nullcontext
    """In which steps are taken."""

    @property
    def bare_optimizer(self) -> Any:
        """The optimizer that accelerate wraps: whose state is saved and restored."""
        return getattr(self.optimizer, "optimizer", self.optimizer)


def run_loop(session: Session, batches: Iterator[Batch]) -> None:
    """Train to the plan's last step, evaluating and saving on the way.

    Raises `Preempted` if this process, or that of another rank, is asked to stop: all ranks at the same step, which is
    saved.
    """
    plan, state = session.plan, session.state
    session.objective.train()
    if state.step == 0:
        note_schedule(session)
        evaluate_now(session, asks=True)
    elif state.unmeasured:
        measure_and_save(session)
    session.meter.reset()
    with ExitStack() as unsaved:
        if run_steps(session, batches, unsaved) != state.step:
            save_now(session, None)
        finish_saving(session)
    if session.runtime.any(stop_requested()):
        raise Preempted(f"asked to stop: saved at step {state.step} of {plan.total_steps}; run it again to continue")
    if session.log is not None:
        session.log.write(ENDED, state.step)


def note_schedule(session: Session) -> None:
    """Record the learning rates to come: records of steps may be too far apart to show the warm-up."""
    if session.log is not None:
        rates = planned_rates(session.schedule, session.plan.total_steps, session.plan.warmup_steps)
        session.log.write(SCHEDULE, 0, rates=rates)


def run_steps(session: Session, batches: Iterator[Batch], unsaved: ExitStack) -> int:
    """Take steps to the last, or until a rank is asked to stop; returns the step that was saved last.

    From the first step on there is something to save: `unsaved` then keeps the process from being ended before that.
    """
    plan, state, training, meter = session.plan, session.state, session.training, session.meter
    divergence = Divergence(plan.global_batch)
    saved = first = state.step
    while not (state.step >= plan.total_steps or stops_early(session)):
        asked = time.perf_counter()
        batch = next(batches)
        session.runtime.wait_for_all()
        waited = time.perf_counter() - asked
        seed_everything(training.seed, state.attempts, session.runtime.rank)
        with session.attention():
            outcome = train_step(
                session.objective, session.optimizer, session.schedule, batch, training.max_grad_norm, session.runtime,
                training.sum_each_micro_batch,
            )  # fmt: skip
        state.attempts += 1
        meter.add(outcome.loss, batch.tokens, waited, outcome.skipped)
        if divergence.note(outcome.skipped, state):
            log.warning("%s: going back to the last checkpoint, past them", divergence.describe())
            session.roll_back(session)
            meter.reset()
            saved = state.step
        if not outcome.skipped:
            if state.step == first:
                unsaved.enter_context(defer_stop())
            try:
                saved = state.step if end_step(session, outcome) else saved
            except StopRequested:  # the evaluation was broken off
                state.unmeasured = True
                break
        if divergence.skips == 0 and session.runtime.any(stop_requested()):
            break  # not within a stretch of skipped steps, which are counted from its beginning
    return saved


def end_step(session: Session, outcome: Outcome) -> bool:
    """Record, evaluate and save after a step that changed the weights, as far as each is due; returns whether it is
    saved.
    """
    plan, state, training = session.plan, session.state, session.training
    state.step += 1
    state.scores, state.unmeasured = None, False
    if state.step == plan.total_steps or state.step % training.log_every == 0:
        record_step(session, outcome)
    return measure_and_save(session)


def measure_and_save(session: Session) -> bool:
    """Evaluate and save where a step has led, as far as each is due; returns whether it is saved.

    Where training continues at a step whose evaluation was broken off, that is made now, and saved in the step's place.
    """
    plan, state, training = session.plan, session.state, session.training
    paused = time.perf_counter()
    at_end, epoch_ends = state.step == plan.total_steps, ended_epoch(state.step, plan) is not None
    saves = state.unmeasured
    evaluates = at_end or epoch_ends or due(state.step, training.evaluate_every)
    asks = session.ask is not None and (at_end or due(state.step, session.ask_every))
    if session.criterion.figure.startswith(PREFIX):  # a task decides: it is asked whenever the model is measured
        evaluates = asks = evaluates or asks
    if evaluates or asks:
        evaluate_now(session, evaluates, asks)
        at_end = at_end or stops_early(session)
    saves = saves or at_end or epoch_ends or due(state.step, training.save_every) or state.best_step == state.step
    if saves:
        save_now(session, ended_epoch(state.step, plan))
    session.meter.pause(time.perf_counter() - paused)
    return saves


def finish_saving(session: Session) -> None:
    """Wait, on every rank, for the checkpoint in flight. Raises `StorageError` if it cannot be saved."""
    saver = session.saver
    if is_sharded(session.model) and saver is not None:  # each rank has one, and the same comes of all of them
        commit = saver.drain()
    else:
        commit = session.runtime.on_first(lambda: saver.drain() if saver else None)
    record_commit(session, commit)


def stops_early(session: Session, scores: dict[str, float] | None = None) -> bool:
    """Whether too many evaluations in a row have found nothing better; `scores` are those of one not yet judged."""
    patience = session.training.early_stopping
    return patience is not None and session.state.worse_with(scores or {}, session.criterion) >= patience


def ended_epoch(step: int, plan: Plan) -> int | None:
    """The epoch that ends with a step, counted from 1, if one does."""
    epoch, rest = divmod(step, plan.steps_per_epoch)
    return epoch if rest == 0 else None


def due(step: int, every: int | None) -> bool:
    """Whether something done every so many steps is done now."""
    return every is not None and step % every == 0


def record_step(session: Session, outcome: Outcome) -> None:
    """Log the mean over the steps since the last record, and how many these are: fewer where training went on between
    two. Waits for the device.
    """
    state, meter, runtime = session.state, session.meter, session.runtime
    loss = float(runtime.sum(meter.loss.cpu())) / meter.steps
    figures = meter.read()
    rate = session.schedule.get_last_lr()[0]
    if session.log is not None:
        session.log.write(
            "train", state.step, loss=loss, learning_rate=rate, grad_norm=float(outcome.grad_norm), **figures,
            steps=meter.steps, attempts=state.attempts,
        )  # fmt: skip
    session.bar.reach(state.step, f"loss {loss:.4f}, {figures['tokens_per_second']:,.0f} tokens/s")
    meter.reset()


def evaluate_now(session: Session, measures: bool = True, asks: bool = False) -> None:
    """Measure the model on held-out data and, if that is due or training ends early, let lm-eval ask it; then judge
    whether it is the best so far, but not before the first step.
    """
    state, figure = session.state, session.criterion.figure
    measured = session.measure() if measures else None
    scores = dict(measured.scores) if measured else {}
    if measured is not None and figure not in scores and not figure.startswith(PREFIX):
        raise ConfigError(f"evaluation.best_by is {figure!r}, but what is measured are {', '.join(measured.scores)}")
    # Before anything is judged or recorded: lm-eval may be broken off, and all of it is made again then.
    asks = asks or (state.step > 0 and stops_early(session, scores))  # the last step after all
    told = session.ask() if asks and session.ask is not None else {}
    state.unmeasured = False
    scores |= {f"{PREFIX}{name}": value for name, value in told.items()}
    if asks and figure.startswith(PREFIX):
        scores.setdefault(figure, math.nan)  # what is no number is never better
    if not scores:
        return
    if state.step > 0:
        state.judge(scores, session.criterion)
    if session.log is not None:
        if measured is not None:
            session.log.write("evaluation", state.step, **measured.scores, **measured.details)
        if told:
            session.log.write(ASKED, state.step, **told)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in list(scores.items())[:SHOWN])
        log.info("step %d: validation %s%s", state.step, shown, ", …" if len(scores) > SHOWN else "")
    if stops_early(session):
        log.info("step %d: nothing better in %d evaluations, training ends early", state.step, state.worse)


def save_now(session: Session, epoch: int | None) -> None:
    """Take a snapshot and hand it to the background writer."""
    if session.saver is None:
        return
    state, runtime = session.state, session.runtime
    if session.log is not None:
        # So that a run that goes on from here can tell whether it has all records up to here.
        session.log.write("save", state.step)
        session.log.publish()  # before the commit: what is continued from there begins with the records up to there
    started = time.perf_counter()
    committed = session.saver.save(partial(
        take_snapshot, state=state, model=session.model, objective=session.objective, optimizer=session.bare_optimizer,
        schedule=session.schedule, scaler=runtime.accelerator.scaler, epoch=epoch,
        computed=describe_threads(runtime.device, runtime.ranks),
        own_part=partial(local_part, runtime=runtime) if is_sharded(session.model) else None,
    ))  # fmt: skip
    stalled = time.perf_counter() - started
    if session.log is None:
        return
    session.log.write("checkpoint", state.step, stall_seconds=stalled, epoch=epoch, scores=state.scores)
    record_commit(session, committed)
    log.info("step %d: checkpoint (loop waited %.2f s)", state.step, stalled)


def record_commit(session: Session, commit: Commit | None) -> None:
    """Log how long a checkpoint took to be safe; it is known only once a later step has been reached."""
    if commit is not None and session.log is not None:
        session.log.write("commit", session.state.step, checkpoint=commit.step, seconds=commit.seconds)
