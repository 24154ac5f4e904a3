"""What a process that a task starts is asked for by name: a step, or a stage that publishes no artifact of its own."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import validate_call

from trainer.config.kinds import load
from trainer.records.named_steps import STEPS, make_named

STAGES: dict[str, tuple[str, str]] = {
    "preflight": ("trainer.pipelines.any_kind", "preflight"),
    "train": ("trainer.pipelines.any_kind", "train"),
    "evaluate": ("trainer.pipelines.any_kind", "evaluate_checkpoint"),
    "evaluate-run": ("trainer.pipelines.any_kind", "evaluate_run"),
    "harness": ("trainer.pipelines.any_kind", "ask_harness"),
    "predict": ("trainer.kinds.labelled.predict", "predict_texts"),
}


MODULES = {name: step.module for name, step in STEPS.items()} | {name: module for name, (module, _) in STAGES.items()}
"""The module that each is in."""


def stage(name: str) -> Callable[..., Any]:
    """A stage's function, taking its arguments as JSON-like values and validating them by its own annotations."""
    if name in STEPS:
        importlib.import_module(MODULES[name])
        return partial(make_named, name)
    plain: Callable[..., Any] = load(".".join(STAGES[name]))
    checked: Callable[..., Any] = validate_call(config={"arbitrary_types_allowed": True})(plain)
    return checked
