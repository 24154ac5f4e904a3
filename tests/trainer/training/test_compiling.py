"""A compiled model is compared with the plain one before it is trained."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import PretrainedConfig, PreTrainedModel

from tests.depth import once
from tests.disks import fill, small_disk
from tests.support import cpu_runtime
from tests.trainer.small_jobs import OF_EACH_KIND, Job, chatting, labels_of_words, lay_out
from trainer.common.errors import ConfigError, StorageError
from trainer.common.progress import silent
from trainer.data.dataset import Batch
from trainer.kinds.kind import kind_of, load_training_job
from trainer.records.steps import here
from trainer.store.storage import Store
from trainer.training.compiling import compile_objective
from trainer.training.parallelize import place_model

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own compiler


BATCH = Batch([{"values": torch.ones(2, 4)}], targets=2, tokens=2)


class Loss(nn.Module):
    """A sum of two products; compiled, it takes them times these factors, and keeps their gradients if told so."""

    def __init__(self, compiled: tuple[float, float]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 1), nn.Linear(4, 1)
        self.compiled = compiled

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        one, two = self.compiled if torch.compiler.is_compiling() else (1.0, 1.0)
        return (one * self.first(values) + two * self.second(values)).sum()


def compile_with(*compiled: float) -> Loss:
    objective = Loss((compiled[0], compiled[1]))
    compile_objective(objective, PreTrainedModel(PretrainedConfig()), cpu_runtime(), BATCH)
    return objective


def test_a_compiled_model_that_learns_the_same_is_taken_and_no_gradient_is_left() -> None:
    assert all(parameter.grad is None for parameter in compile_with(1.0, 1.0).parameters())


@pytest.mark.parametrize(
    ("compiled", "said"),
    once(((0.0, 0.0), "norm is 0, and 3.16"), ((0.001, 0.001), "norm is 0.00316"), ((1.0, 0.0), "second.weight gets")),
)
def test_one_that_learns_nothing_or_something_else_is_refused(compiled: tuple[float, float], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"the model compiled by torch .*{said}.*training.compile to false"):
        compile_with(*compiled)


@pytest.mark.deep
def test_a_full_disk_of_compiled_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(disk))
        fill(disk)
        with pytest.raises(StorageError, match=rf"compiled code to {disk}: No space left .*TORCHINDUCTOR") as raised:
            compile_with(1.0, 1.0)
    assert raised.value.transient


class Wide(nn.Module):
    """Not compiled, it finds no memory when half of its gradients are there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.first(values)
        if not torch.compiler.is_compiling():
            hidden.register_hook(_no_memory)
        return self.second(hidden).sum()


def _no_memory(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("none left")


@pytest.mark.deep
def test_without_memory_for_the_plain_gradient_none_is_left_and_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    objective = Wide().eval()
    compile_objective(objective, PreTrainedModel(PretrainedConfig()), cpu_runtime(), BATCH)
    assert all(parameter.grad is None for parameter in objective.parameters())
    assert not objective.training
    assert "is not compared: there is not enough memory to compute the uncompiled one" in caplog.text


PADDED: dict[str, Job] = {
    "words": labels_of_words(),
    "conversations": OF_EACH_KIND["instruction tuning"],
    "preferences": OF_EACH_KIND["preference tuning"],
    "packed": chatting(data__packing=True, training__micro_batch=2, training__global_batch=8),
}


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own compiler
@pytest.mark.parametrize("kind", PADDED)
def test_one_is_compiled_once_for_rows_of_all_lengths(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    job = load_training_job(str(lay_out(PADDED[kind], request.getfixturevalue, tmp_path)))
    store, runtime = Store(job.store), cpu_runtime()
    workload = kind_of(job).open(job, store, kind_of(job).prepare(job, here(silent())), 1)
    model, objective, _ = place_model(job.training, workload, runtime, None)
    assert workload.pads
    batches = [workload.read_batch(number, 0) for number in range(workload.plan.steps_per_epoch - 1)]
    micro_batches = [inputs for batch in batches for inputs in batch.micro_batches]
    assert len({inputs["input_ids"].shape[1] for inputs in micro_batches}) > 2
    counters.clear()
    compile_objective(objective, model, runtime, batches[0], workload.pads)
    for inputs in micro_batches[:6]:
        objective(**inputs).backward()
    assert counters["stats"]["unique_graphs"] == 1
