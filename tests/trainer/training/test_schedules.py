"""Learning-rate schedules, compared with those of transformers."""

from typing import Any

import pytest
import torch
from transformers import get_scheduler

from tests.trainer.training.test_step import settings
from trainer.common.errors import ConfigError
from trainer.training.schedules import SCHEDULES, make_schedule, planned_rates

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SCHEDULES if name not in ("cosine_with_min_lr", "warmup_stable_decay")),
    ("cosine", {"num_cycles": 1.75}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("cosine_with_min_lr", {"min_lr": 3e-4}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 0.8}),
    ("cosine_with_min_lr", {"min_lr_rate": 0}),
    ("polynomial", {"lr_end": 1e-4, "power": 2.5}),
    ("inverse_sqrt", {"timescale": 700}),
    *(
        ("warmup_stable_decay", {"num_decay_steps": 30, "warmup_type": up, "decay_type": down, "min_lr_ratio": 0.05})
        for up in ("linear", "cosine", "1-sqrt")
        for down in ("linear", "cosine", "1-sqrt")
    ),
    ("warmup_stable_decay", {"num_decay_steps": 20, "num_stable_steps": 11, "num_cycles": 1.5}),
]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=settings().learning_rate)


@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("name", "options", "warmup"),
    [(*each, warmup) for each in OPTIONS for warmup in (0, 1, 17) if each[0] != "constant" or not warmup],
)
def test_each_rate_is_that_of_transformers(name: str, options: dict[str, Any], warmup: int) -> None:
    total = 100
    training = settings(schedule=name, schedule_options=options, warmup_steps=warmup, max_steps=total)
    ours = make_schedule(optimizer(), training, total)
    theirs = get_scheduler(name, optimizer(), warmup, total, options)
    for _ in range(total + 3):
        assert ours.get_last_lr() == theirs.get_last_lr()
        ours.step()
        theirs.step()
    assert {step: rate for step, rate in planned_rates(ours, total, warmup)} == {
        step: training.learning_rate * theirs.lr_lambdas[0](step) for step in range(total + 1)
    }
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cosine_with_min_lr", {"min_lr": 1e-4, "min_lr_rate": 0.1}, "it needs either min_lr or min_lr_rate, not both"),
        ("cosine_with_min_lr", {"min_lr": 0.02}, "its least rate is 0.02; expected 0 to the learning rate, 0.01"),
        ("polynomial", {"lr_end": 1}, "lr_end is 1; expected 0 to below the learning rate, 0.01"),
        ("polynomial", {"lr_end": -1}, "lr_end is -1; expected 0 to below the learning rate, 0.01"),
        ("warmup_stable_decay", {"num_decay_steps": -3}, "num_decay_steps is -3; expected a whole number of steps"),
        ("warmup_stable_decay", {"num_decay_steps": 0.2}, "num_decay_steps is 0.2; expected a whole number of steps"),
        ("polynomial", {"power": "half"}, "a value in {'power': 'half'} is invalid"),
        ("polynomial", {"power": -1.0}, "a value in {'power': -1.0} is invalid"),
        ("inverse_sqrt", {"timescale": 0}, "timescale is 0; expected a number of steps above 0"),
        ("inverse_sqrt", {"timescale": -300}, "timescale is -300; expected a number of steps above 0"),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 3, "decay_type": "sudden"},
            "decay_type is 'sudden'; expected linear, cosine, 1-sqrt",
        ),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 3, "num_cycles": "some"},
            "a value in {'num_decay_steps': 3, 'num_cycles': 'some'} is invalid",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(name: str, options: dict[str, Any], said: str) -> None:
    training = settings(schedule=name, schedule_options=options)
    with pytest.raises(ConfigError) as caught:
        make_schedule(optimizer(), training, 100)
    assert str(caught.value) == f"training.schedule_options do not fit the schedule {name!r}: {said}"
