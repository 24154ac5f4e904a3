"""Learning-rate schedules by their names in `transformers.get_scheduler`, with bit-identical values.

They are copied because `transformers.optimization` imports its Trainer, peft and bitsandbytes, which takes 1.5 of the
seven seconds until a process can train.
"""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from math import cos, pi, sqrt
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR

from trainer.common.errors import ConfigError
from trainer.config.training import OptimizationConfig

PLANNED = 100
"""Intervals of the warm-up, and of the rest, at whose ends the planned learning rate is recorded."""

INVERSE_SQRT_STEPS = 10_000
"""The time scale of `inverse_sqrt` without a warm-up."""


class Span(NamedTuple):
    """The steps of the warm-up, those of all training, and the peak learning rate."""

    warmup: int
    total: int
    peak: float

    def passed(self, step: int) -> float:
        """The share of the steps after the warm-up that are before this step."""
        return (step - self.warmup) / max(1, self.total - self.warmup)


Factor = Callable[..., float]
"""Returns the multiplier of the peak learning rate at a step of a span; the schedule's options are keywords."""


def _after_warmup(factor: Factor) -> Factor:
    """The factor after a linear warm-up from 0."""

    @wraps(factor)
    def warmed(step: int, span: Span, **options: Any) -> float:
        return step / span.warmup if step < span.warmup else factor(step, span, **options)

    return warmed


def _constant(step: int, span: Span) -> float:
    return 1.0


def _linear(step: int, span: Span) -> float:
    return max(0.0, (span.total - step) / max(1, span.total - span.warmup))


def _cosine(step: int, span: Span, *, num_cycles: float = 0.5) -> float:
    return _waves(span.passed(step), num_cycles)


def _cosine_with_restarts(step: int, span: Span, *, num_cycles: int = 1) -> float:
    share = span.passed(step)
    return 0.0 if share >= 1 else 0.5 * (1 + cos(pi * (float(num_cycles) * share % 1)))


def _cosine_with_min_lr(
    step: int, span: Span, *, num_cycles: float = 0.5, min_lr: float | None = None, min_lr_rate: float | None = None
) -> float:
    rates = [rate for rate in (min_lr_rate, None if min_lr is None else min_lr / span.peak) if rate is not None]
    if len(rates) != 1:
        raise ConfigError(f"it needs either min_lr or min_lr_rate{', not both' if rates else ''}")
    if not 0 <= rates[0] <= 1:
        raise ConfigError(f"its least rate is {rates[0] * span.peak:g}; expected 0 to the learning rate, {span.peak:g}")
    return max(0.0, _above(rates[0], _waves(span.passed(step), num_cycles)))


def _polynomial(step: int, span: Span, *, lr_end: float = 1e-7, power: float = 1.0) -> float:
    if not 0 <= lr_end < span.peak:
        raise ConfigError(f"lr_end is {lr_end:g}; expected 0 to below the learning rate, {span.peak:g}")
    left = 1 - span.passed(min(step, span.total))
    return float(((span.peak - lr_end) * left**power + lr_end) / span.peak)


def _inverse_sqrt(step: int, span: Span, *, timescale: int | None = None) -> float:
    scale = (span.warmup or INVERSE_SQRT_STEPS) if timescale is None else timescale
    if scale <= 0:
        raise ConfigError(f"timescale is {scale}; expected a number of steps above 0")
    return 1 / sqrt((step + scale - span.warmup) / scale)


def _warmup_stable_decay(
    step: int,
    span: Span,
    *,
    num_decay_steps: int,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    rising: dict[str, Callable[[float], float]] = {
        "linear": lambda share: share,
        "cosine": lambda share: 0.5 * (1 - cos(pi * share)),
        "1-sqrt": lambda share: 1 - sqrt(1 - share),
    }
    falling: dict[str, Callable[[float], float]] = {
        "linear": lambda share: 1 - share,
        "cosine": lambda share: _waves(share, num_cycles),
        "1-sqrt": lambda share: 1 - sqrt(share),
    }
    for name, kind in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if kind not in rising:
            raise ConfigError(f"{name} is {kind!r}; expected {', '.join(rising)}")
    for option, steps in (("num_decay_steps", num_decay_steps), ("num_stable_steps", num_stable_steps)):
        if isinstance(steps, bool | float) or (isinstance(steps, int) and steps < 0):
            raise ConfigError(f"{option} is {steps}; expected a whole number of steps")
    if not 0 <= min_lr_ratio <= 1:
        raise ConfigError(f"min_lr_ratio is {min_lr_ratio:g}; expected 0 to 1")
    stable = span.total - span.warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    decays = span.warmup + stable
    if step < span.warmup:
        return max(0.0, _above(min_lr_ratio, rising[warmup_type](step / span.warmup)))
    if step < decays:
        return 1.0
    if step < decays + num_decay_steps:
        return max(0.0, _above(min_lr_ratio, falling[decay_type]((step - decays) / num_decay_steps)))
    return min_lr_ratio


def _waves(share: float, number: float) -> float:
    """A cosine that starts at 1 and completes `number` waves while `share` goes from 0 to 1."""
    return 0.5 * (1 + cos(pi * float(number) * 2 * share))


def _above(least: float, factor: float) -> float:
    """Map a factor from the range 0 to 1 to the range `least` to 1."""
    return factor * (1 - least) + least


SCHEDULES: dict[str, Factor] = {
    "constant": _constant,
    "constant_with_warmup": _after_warmup(_constant),
    "linear": _after_warmup(_linear),
    "cosine": _after_warmup(_cosine),
    "cosine_with_restarts": _after_warmup(_cosine_with_restarts),
    "cosine_with_min_lr": _after_warmup(_cosine_with_min_lr),
    "polynomial": _after_warmup(_polynomial),
    "inverse_sqrt": _after_warmup(_inverse_sqrt),
    "warmup_stable_decay": _warmup_stable_decay,
}


def make_schedule(optimizer: torch.optim.Optimizer, training: OptimizationConfig, total_steps: int) -> LambdaLR:
    """The job's learning-rate schedule; it advances with each successful optimizer step.

    Raises `ConfigError` if the schedule does not accept its `schedule_options`, or requires others.
    """
    function, options = SCHEDULES[training.schedule], training.schedule_options
    where = f"training.schedule_options do not fit the schedule {training.schedule!r}"
    taken = {
        each.name: each for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY
    }
    if unknown := [name for name in options if name not in taken]:
        raise ConfigError(f"{where}: it does not take {unknown[0]!r}; it takes {', '.join(taken) or 'none'}")
    if missing := [name for name, each in taken.items() if each.default is each.empty and name not in options]:
        raise ConfigError(f"{where}: it needs {missing[0]!r}")
    span = Span(training.warmup_steps, total_steps, training.learning_rate)
    factor = partial(function, span=span, **options)
    try:
        for step in (0, span.warmup, total_steps - 1, total_steps):  # every option affects one of these steps
            factor(step)
    except ConfigError as error:  # options that contradict each other
        raise ConfigError(f"{where}: {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where}: a value in {options} is invalid") from error
    return LambdaLR(optimizer, factor)


def planned_rates(schedule: Any, total_steps: int, warmup_steps: int) -> list[tuple[int, float]]:
    """The planned learning rate after each of some steps: dense in the warm-up, then evenly spread."""

    def spread(first: int, last: int) -> set[int]:
        number = min(PLANNED, last - first) or 1
        return {first + (last - first) * place // number for place in range(number + 1)}

    (peak, *_), (factor, *_) = schedule.base_lrs, schedule.lr_lambdas
    steps = spread(0, min(warmup_steps, total_steps)) | spread(min(warmup_steps, total_steps), total_steps)
    return [(step, peak * factor(step)) for step in sorted(steps)]
