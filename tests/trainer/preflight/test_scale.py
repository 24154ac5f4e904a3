"""What a sharded model is said to take, against runs of one on two ranks."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from benchmarks.sharded_memory import FAMILY, TRAINING, plan_scale, table
from tests.docs.pages import DOCS
from tests.processes import rank_envs, start_module, wait_until
from tests.support import only_run, small_job, small_values, write_config
from tests.trainer.training.sharded_runs import copied
from trainer.models.causal import count_units, sketch_model
from trainer.preflight.memory import divide, estimate_memory, guess_activations
from trainer.records.plans import PreparedData
from trainer.training.step import state_bytes

MODEL: dict[str, Any] = {"model_type": "llama", "hidden_size": 768, "num_attention_heads": 6, "intermediate_size": 2048}
"""With 8 layers 57 million parameters, with 2 a quarter of them."""

SHORT: dict[str, Any] = {
    "training__max_steps": 2, "training__save_every": 1, "training__micro_batch": 2, "training__sharding": "fsdp",
    "data__validation_fraction": 0.0,
}  # fmt: skip


def most_memory(pid: int) -> int:
    """The most bytes of memory that a process has taken."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measure(raw: Path, store: Path, folder: Path, layers: int, vocabulary: int) -> int:
    """The most memory that a rank of two has taken by the time that its run publishes; freed buffers are no part of
    it.
    """
    model = {"config": {**MODEL, "num_hidden_layers": layers}, "pad_vocab_to": vocabulary}
    values = small_values(raw, store, **SHORT, model=model)
    config = write_config(folder / "job.yaml", values)
    freed = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}
    running = [
        start_module(folder / str(rank), "trainer", config, env={**env, **freed})
        for rank, env in enumerate(rank_envs(2))
    ]
    ended = "runs/*/final/manifest.json"
    wait_until(lambda: any(store.glob(ended)) or any(rank.status() is not None for rank in running))
    found = max(most_memory(rank.pid) for rank in running)
    for rank in running:
        assert rank.wait().status == 0, rank.output()
    return found


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("larger", [(8, 384), (2, 16384)], ids=["layers", "embeddings"])
def test_a_run_takes_the_memory_and_the_disk_that_it_is_said_to_take(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path, larger: tuple[int, int]
) -> None:
    """Of two models' difference, as what libraries take is not known as well."""
    taken, said, training = [], [], small_job(raw, tmp_path, **SHORT).training
    for layers, vocabulary in ((2, 384), larger):
        folder = tmp_path / f"{layers}-{vocabulary}"
        store = copied(prepared[0], folder / "store")
        taken.append(measure(raw, store, folder, layers, vocabulary))
        config = AutoConfig.for_model(**MODEL, num_hidden_layers=layers, vocab_size=vocabulary)
        model, kept = sketch_model(config), guess_activations(config, training)
        units, state = count_units(model), state_bytes(model, training)
        said.append(
            estimate_memory(training, training.context, config, 2, units.parameters, kept, 0, state, units).host
        )
        checkpoint = store / only_run(store) / "checkpoints" / "step-00000002"
        for rank in range(2):
            size = sum(path.stat().st_size for path in checkpoint.glob(f"*-part-{rank:05d}-of-00002-*.safetensors"))
            assert size == pytest.approx(divide(training, units, 2, state).copies, rel=1e-3)
    print("measured", taken, "said", said)
    assert taken[1] - taken[0] == pytest.approx(said[1] - said[0], rel=0.1)


def test_gradients_of_the_whole_model_are_held_only_where_they_wait_for_the_last_micro_batch() -> None:
    units = count_units(sketch_model(FAMILY["7B"]))
    for changes, factor in (({"sum_each_micro_batch": False}, 4), ({}, 0), ({"micro_batch": 8, "global_batch": 64}, 0)):
        assert divide(TRAINING.model_copy(update=changes), units, 8, 0).accumulated == factor * units.parameters


def test_a_rank_of_many_holds_a_small_share_of_a_large_model() -> None:
    few, many = (plan_scale(FAMILY["70B"], TRAINING, ranks) for ranks in (8, 64))
    assert many.part == pytest.approx(few.part / 8, rel=1e-6) and many.checkpoint == few.checkpoint
    assert many.device < 80 * 2**30 < few.device


def test_the_documentation_tells_the_plan() -> None:
    page = (DOCS / "how-to" / "shard-a-model.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page
