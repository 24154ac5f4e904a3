"""Snapshots: the same as torch's own, in memory that is used again."""

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from tests.support import SMALL_MODEL, cpu_runtime
from tests.tiny_models import new_model
from tests.trainer.training.test_checkpoint import Learner
from trainer.config.training import TrainingConfig
from trainer.training.checkpoint import TrainState
from trainer.training.saver import HostCopies

STATE = TrainState(step=1)


def learned(**settings: object) -> Learner:
    """A small model that has made a step."""
    training = TrainingConfig.model_validate({"max_steps": 9, **settings})
    learner = Learner(new_model(dict(SMALL_MODEL)), cpu_runtime(), training)
    learner.learn(1)
    return learner


@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "adamw"}, {"optimizer": "adafactor"}, {"optimizer": "sgd"}, {"optimizer": "sgd", "beta1": 0.0}],
    ids=str,
)
def test_optimizer_state_is_that_of_torchs_distributed_checkpoints(settings: dict[str, object]) -> None:
    learner = learned(**settings)
    snapshot = learner.snapshot(HostCopies(), STATE)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    reference = get_optimizer_state_dict(learner.objective, learner.optimizer, options=options)
    moments = {
        f"{parameter}/{name}": value
        for parameter, values in reference["state"].items()
        for name, value in values.items()
        if value is not None
    }
    assert snapshot.optimizer.keys() == moments.keys()
    assert all(torch.equal(snapshot.optimizer[name], value) for name, value in moments.items())
    assert snapshot.settings["optimizer"] == reference["param_groups"]


def test_copies_take_the_memory_of_those_before_and_tied_weights_are_copied_once() -> None:
    learner, copies = learned(), HostCopies()
    first = learner.snapshot(copies, STATE)
    places = {name: tensor.data_ptr() for name, tensor in {**first.weights, **first.optimizer}.items()}
    learner.learn(1)
    second = learner.snapshot(copies, STATE)
    assert places == {name: tensor.data_ptr() for name, tensor in {**second.weights, **second.optimizer}.items()}
    assert all(torch.equal(second.weights[name], tensor) for name, tensor in learner.model.state_dict().items())
    assert second.weights["lm_head.weight"] is second.weights["transformer.wte.weight"]
    assert second.size() == 4 * sum(p.numel() * 3 + 1 for p in learner.model.parameters())


def test_a_tensor_of_another_shape_or_type_gets_memory_of_its_own() -> None:
    copies = HostCopies()
    for tensor in (torch.ones(3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bfloat16)):
        (copy,) = copies.take("weights", {"w": tensor}).values()
        assert copy.dtype == tensor.dtype and torch.equal(copy, tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_that_was_locked_for_copies_is_unlocked_before_other_memory_takes_its_place() -> None:
    """Else what a GPU copies there later is not what arrives."""
    tensors = {str(number): torch.randn(2**20, device="cuda") for number in range(64)}
    for _ in range(3):
        copies = HostCopies()
        taken = copies.take("weights", tensors)
        assert all(torch.equal(taken[name], tensor.cpu()) for name, tensor in tensors.items())
        del copies, taken
    assert all(torch.equal(tensor.cpu().cuda(), tensor) for tensor in tensors.values())


def test_copies_take_the_bytes_of_what_they_are_of_and_have_storages_of_their_own() -> None:
    copies = HostCopies()
    tensors = {"a": torch.randn(2**20 + 1), "b": torch.randn(3), "none": torch.zeros(0, 4), "scalar": torch.tensor(2.0)}
    taken = copies.take("weights", tensors)
    assert all(torch.equal(taken[name], tensor) for name, tensor in tensors.items())
    first, last = taken["a"].data_ptr(), taken["scalar"].data_ptr()
    assert last - first == 4 * (2**20 + 16) + 64, "one after the other, each on a boundary of 64 bytes"
    assert len({taken[name].untyped_storage().data_ptr() for name in ("a", "b", "scalar")}) == 3
    assert all(taken[name].untyped_storage().nbytes() == tensors[name].nbytes for name in ("a", "b", "scalar"))
