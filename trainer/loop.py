"""The training loop."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from trainer.checkpoint import Saver, TrainState, take_snapshot
from trainer.config import TrainingConfig
from trainer.errors import Preempted, RunError
from trainer.evaluation import HeldOut, evaluate
from trainer.plan import StepPlan
from trainer.progress import Bar
from trainer.runlog import RunLog
from trainer.runtime import Runtime, seed_everything
from trainer.step import Batch, Outcome, train_step
from trainer.stopping import StopSignal
from trainer.throughput import Meter

log = logging.getLogger(__name__)

MAX_SKIPS = 100
"""Steps in a row whose gradients may overflow in fp16; the loss scale halves at each, so a sound run needs far fewer."""


@dataclass(frozen=True)
class Session:
    """All that one process needs to train; `log` and `saver` are rank 0's alone."""

    training: TrainingConfig
    plan: StepPlan
    runtime: Runtime
    model: PreTrainedModel
    objective: nn.Module
    optimizer: Any
    schedule: Any
    state: TrainState
    held_out: list[HeldOut]
    evaluation_batch: int
    log: RunLog | None
    saver: Saver | None
    meter: Meter
    bar: Bar
    stop: StopSignal


def run_loop(session: Session, batches: Iterator[Batch]) -> None:
    """Train to the plan's last step, evaluating and saving on the way."""
    plan, state, training, meter = session.plan, session.state, session.training, session.meter
    session.objective.train()
    if state.step == 0:
        evaluate_now(session)
    meter.reset()
    skips = 0
    while state.step < plan.total_steps:
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked
        seed_everything(training.seed, state.attempts, session.runtime.rank)
        outcome = train_step(
            session.objective, session.optimizer, session.schedule, batch, training.max_grad_norm, session.runtime
        )
        state.attempts += 1
        meter.add(outcome.loss, waited)
        if outcome.skipped:
            skips += 1
            if skips >= MAX_SKIPS:
                raise RunError(
                    f"the gradients overflowed in {skips} steps in a row after step {state.step}: training has diverged; "
                    "lower training.learning_rate, or use bf16 or fp32"
                )
            continue
        skips = 0
        state.step += 1
        state.validation_loss = None
        at_end = state.step == plan.total_steps
        if at_end or state.step % training.log_every == 0:
            record_step(session, outcome)
        paused = time.perf_counter()
        epoch_ends = state.step % plan.steps_per_epoch == 0
        if at_end or epoch_ends or due(state.step, training.evaluate_every):
            evaluate_now(session)
        saves = at_end or epoch_ends or due(state.step, training.save_every) or state.best_step == state.step
        if saves:
            save_now(session, state.step // plan.steps_per_epoch if epoch_ends else None)
        meter.pause(time.perf_counter() - paused)
        if not at_end and session.runtime.any(session.stop.requested):
            raise stopped(session, saves)


def stopped(session: Session, saved: bool) -> Preempted:
    """Save on being asked to stop, all ranks at the same step, unless this step is saved already."""
    state = session.state
    if not saved:
        save_now(session, None)
    if session.saver is not None:
        session.saver.drain()
    return Preempted(f"asked to stop: saved at step {state.step} of {session.plan.total_steps}; run it again to continue")


def due(step: int, every: int | None) -> bool:
    """Whether something done every so many steps is done now."""
    return every is not None and step % every == 0


def record_step(session: Session, outcome: Outcome) -> None:
    """Log the mean over the steps since the last record. Waits for the device."""
    state, meter, runtime = session.state, session.meter, session.runtime
    loss = float(runtime.sum(meter.loss.cpu())) / meter.attempts
    figures = meter.read()
    rate = session.schedule.get_last_lr()[0]
    if session.log is not None:
        session.log.write(
            "train", state.step, loss=loss, learning_rate=rate, grad_norm=float(outcome.grad_norm), **figures,
            attempts=state.attempts,
        )  # fmt: skip
    session.bar.reach(state.step, f"loss {loss:.4f}, {figures['tokens_per_second']:,.0f} tokens/s")
    meter.reset()


def evaluate_now(session: Session) -> None:
    """Score the model on held-out text and note whether it is the best so far."""
    state = session.state
    if not any(corpus.windows for corpus in session.held_out):
        return
    context = session.training.context
    scores = evaluate(session.model, session.held_out, context, session.evaluation_batch, session.runtime)
    state.validation_loss = scores.total.loss
    if state.best_loss is None or scores.total.loss < state.best_loss:
        state.best_loss, state.best_step = scores.total.loss, state.step
    if session.log is not None:
        by_corpus = {name: score.loss for name, score in scores.corpora.items()}
        session.log.write("evaluation", state.step, loss=scores.total.loss, tokens=scores.total.tokens, corpora=by_corpus)
        log.info("step %d: validation loss %.4f", state.step, scores.total.loss)


def save_now(session: Session, epoch: int | None) -> None:
    """Take a snapshot and hand it to the background writer."""
    state, accelerator = session.state, session.runtime.accelerator
    optimizer = getattr(session.optimizer, "optimizer", session.optimizer)
    started = time.perf_counter()
    snapshot = take_snapshot(state, session.model, session.objective, optimizer, session.schedule, accelerator.scaler, epoch)
    if session.saver is None or session.log is None:
        return
    session.saver.save(snapshot)
    stalled = time.perf_counter() - started
    session.log.write("checkpoint", state.step, stall_seconds=stalled, epoch=epoch, validation_loss=state.validation_loss)
    session.log.publish()
    log.info("step %d: checkpoint (loop waited %.2f s)", state.step, stalled)
