"""The training loop: steps, evaluations and saves, each when it is due, and a rollback when training diverges."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from trainer.common.display import plain_score, some
from trainer.common.errors import ConfigError, Preempted, RunError
from trainer.common.progress import Bar
from trainer.common.stopping import StopRequested, defer_stop, stop_requested
from trainer.config.evaluation import PREFIX
from trainer.config.training import OptimizationConfig
from trainer.data.dataset import Batch
from trainer.records.evaluations import Criterion
from trainer.records.plans import Plan
from trainer.training.checkpoint import TrainState, ended_epoch
from trainer.training.metrics_reader import ASKED, ENDED, SCHEDULE
from trainer.training.metrics_writer import RunLog
from trainer.training.runtime import Runtime, describe_threads, seed_everything
from trainer.training.saver import Commit, Saver, take_snapshot
from trainer.training.schedules import planned_rates
from trainer.training.sharding import is_sharded, local_part
from trainer.training.step import Outcome, train_step
from trainer.training.throughput import Meter
from trainer.training.workload import Measured

log = logging.getLogger(__name__)


SHOWN = 12
"""Most figures of an evaluation that its log line shows."""


@dataclass(frozen=True)
class Session:
    """Everything that one process needs to train; `log` is on rank 0 only, and so is `saver` unless the model is
    sharded.
    """

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
    """The context in which steps run."""

    @property
    def bare_optimizer(self) -> Any:
        """The optimizer inside accelerate's wrapper, whose state is saved and restored."""
        return getattr(self.optimizer, "optimizer", self.optimizer)


MAX_SKIPS = 25
"""Most consecutive steps that may be skipped. In fp16 each halves the loss scale, from 2**16: a sound run needs far
fewer.
"""

MAX_ROLLBACKS = 3


class BatchRange(NamedTuple):
    """Global batches `[first, last]` after a step, whose gradients were not finite."""

    step: int
    first: int
    last: int


@dataclass
class Divergence:
    """Counts consecutive skipped steps."""

    global_batch: int
    skips: int = 0
    batches: list[BatchRange] = field(default_factory=list)

    def note(self, skipped: bool, state: TrainState) -> bool:
        """Record an attempted step; returns whether to roll back to the last commit.

        Raises `RunError` if rollbacks have not helped.
        """
        if not skipped:
            self.skips = 0
            return False
        self.skips += 1
        if self.skips < MAX_SKIPS:
            return False
        self.batches.append(BatchRange(state.step, state.attempts - self.skips, state.attempts - 1))
        self.skips = 0
        if len(self.batches) > MAX_ROLLBACKS:
            raise RunError(
                f"training has diverged: {self.describe()}. Lower training.learning_rate, or check those samples"
            )
        return True

    def describe(self) -> str:
        """The batches whose gradients were not finite, as text."""
        return "; ".join(
            f"after step {s.step} the gradients of {s.last - s.first + 1} batches in a row were not finite "
            f"(samples {s.first * self.global_batch} to {(s.last + 1) * self.global_batch - 1})"
            for s in self.batches
        )


def run_loop(session: Session, batches: Iterator[Batch]) -> None:
    """Train to the plan's last step, with evaluations and saves.

    Raises `Preempted` if this process or another rank is asked to stop; all ranks then stop at the same step, which is
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
    """Record the planned learning rates, because records of steps may be too far apart to show the warm-up."""
    if session.log is not None:
        rates = planned_rates(session.schedule, session.plan.total_steps, session.plan.warmup_steps)
        session.log.write(SCHEDULE, 0, rates=rates)


def run_steps(session: Session, batches: Iterator[Batch], unsaved: ExitStack) -> int:
    """Run steps to the last one, or until a rank is asked to stop; returns the last saved step.

    After the first step there is something to save: `unsaved` then defers stops until it is saved.
    """
    plan, state, training, meter = session.plan, session.state, session.training, session.meter
    divergence = Divergence(plan.global_batch)
    saved = first = state.step
    while not (state.step >= plan.total_steps or stops_early(session)):
        started = time.perf_counter()
        batch = next(batches)
        session.runtime.wait_for_all()
        waited = time.perf_counter() - started
        seed_everything(training.seed, state.attempts, session.runtime.rank)
        with session.attention():
            outcome = train_step(
                session.objective, session.optimizer, session.schedule, batch, training.max_grad_norm, session.runtime,
                training.sum_each_micro_batch,
            )  # fmt: skip
        state.attempts += 1
        meter.add(outcome.loss, batch.tokens, waited, outcome.skipped)
        if divergence.note(outcome.skipped, state):
            log.warning("%s: restoring the last checkpoint and continuing after them", divergence.describe())
            session.roll_back(session)
            meter.reset()
            saved = state.step
        if not outcome.skipped:
            if state.step == first:
                unsaved.enter_context(defer_stop())
            try:
                saved = state.step if end_step(session, outcome) else saved
            except StopRequested:  # the evaluation was interrupted
                state.unmeasured = True
                break
        if divergence.skips == 0 and session.runtime.any(stop_requested()):
            break  # not during a row of skipped steps, which is counted from its first step
    return saved


def end_step(session: Session, outcome: Outcome) -> bool:
    """Record, evaluate and save after a step that changed the weights, as far as due; returns whether it is saved.

    `run_loop` saves the last step if this does not.
    """
    plan, state, training = session.plan, session.state, session.training
    state.step += 1
    state.scores, state.unmeasured = None, False
    if state.step == plan.total_steps or state.step % training.log_every == 0:
        record_step(session, outcome)
    return measure_and_save(session, outcome)


def measure_and_save(session: Session, outcome: Outcome | None = None) -> bool:
    """Evaluate and save after a step with this outcome, as far as due; returns whether it is saved.

    Without an outcome, training continues at a step whose evaluation was interrupted: evaluate it now and replace the
    step's checkpoint.
    """
    plan, state, training, meter = session.plan, session.state, session.training, session.meter
    paused = time.perf_counter()
    at_end, epoch_ends = state.step == plan.total_steps, ended_epoch(state.step, plan.steps_per_epoch) is not None
    saves = state.unmeasured
    evaluates = at_end or epoch_ends or due(state.step, training.evaluate_every)
    asks = session.ask is not None and (at_end or due(state.step, session.ask_every))
    if session.criterion.figure.startswith(PREFIX):  # a task's figure decides, so every evaluation includes the tasks
        evaluates = asks = evaluates or asks
    if evaluates or asks:
        evaluate_now(session, evaluates, asks)
        meter.pause(time.perf_counter() - paused)
        if outcome is not None and meter.steps and stops_early(session):
            record_step(session, outcome)  # no later record would include the last steps
        paused = time.perf_counter()
    saves = saves or epoch_ends or due(state.step, training.save_every) or state.best_step == state.step
    if saves:
        save_now(session, ended_epoch(state.step, plan.steps_per_epoch))
    meter.pause(time.perf_counter() - paused)
    return saves


def finish_saving(session: Session) -> None:
    """Wait, on every rank, until the current checkpoint is written. Raises `StorageError` if that fails."""
    saver = session.saver
    if is_sharded(session.model) and saver is not None:  # each rank has a saver, and all have the same result
        commit = saver.drain()
    else:
        commit = session.runtime.on_first(lambda: saver.drain() if saver else None)
    record_commit(session, commit)


def stops_early(session: Session, scores: dict[str, float] | None = None) -> bool:
    """Whether too many evaluations in a row have found no better result; `scores` are those of one not yet judged."""
    patience = session.training.early_stopping
    return patience is not None and session.state.worse_with(scores or {}, session.criterion) >= patience


def due(step: int, every: int | None) -> bool:
    """Whether something that happens every `every` steps is due at this step."""
    return every is not None and step % every == 0


def record_step(session: Session, outcome: Outcome) -> None:
    """Log the mean over the steps since the last record, and their number, which is smaller after a resume between two
    records. Waits for the device.
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
    session.bar.reach(state.step, f"loss {plain_score(loss)}, {figures['tokens_per_second']:,.0f} tokens/s")
    meter.reset()


def evaluate_now(session: Session, measures: bool = True, asks: bool = False) -> None:
    """Measure the model on held-out data, run the lm-eval tasks if they are due or training ends early, and judge
    whether it is the best so far; at step 0 nothing is judged.
    """
    state, figure = session.state, session.criterion.figure
    measured = session.measure() if measures else None
    scores = dict(measured.scores) if measured else {}
    if measured is not None and figure not in scores and not figure.startswith(PREFIX):
        raise ConfigError(
            f"evaluation.best_by is {figure!r}, but the measured figures are {', '.join(measured.scores)}"
        )
    # Before anything is judged or recorded: a stop may interrupt lm-eval, and then all of it runs again.
    asks = asks or (state.step > 0 and stops_early(session, scores))  # this step may become the last one
    task_scores = session.ask() if asks and session.ask is not None else {}
    state.unmeasured = False
    scores |= {f"{PREFIX}{name}": value for name, value in task_scores.items()}
    if asks and figure.startswith(PREFIX):
        scores.setdefault(figure, math.nan)  # NaN is never better
    if not scores:
        return
    if state.step > 0:
        state.judge(scores, session.criterion)
    if session.log is not None:
        if measured is not None:
            session.log.write("evaluation", state.step, **measured.scores, **measured.details)
        if task_scores:
            session.log.write(ASKED, state.step, **task_scores)
        shown = some((f"{name} {plain_score(value)}" for name, value in scores.items()), SHOWN)
        log.info("step %d: validation %s", state.step, shown)
    if stops_early(session):
        log.info("step %d: no better result in %d evaluations, training ends early", state.step, state.worse)


def save_now(session: Session, epoch: int | None) -> None:
    """Take a snapshot and hand it to the background writer."""
    if session.saver is None:
        return
    state, runtime = session.state, session.runtime
    if session.log is not None:
        # A run that continues from here finds this record if none before it is missing.
        session.log.write("save", state.step)
        session.log.publish()  # before the commit: a run that continues from it needs the records up to it
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
    log.info("step %d: checkpoint (training waited %.2f s)", state.step, stalled)


def record_commit(session: Session, commit: Commit | None) -> None:
    """Log how long a checkpoint took to be committed; this is known only at a later step."""
    if commit is not None and session.log is not None:
        session.log.write("commit", session.state.step, checkpoint=commit.step, seconds=commit.seconds)
