"""Models that are divided among ranks: trained as whole ones are, with checkpoints that any number of ranks
continues.
"""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.depth import once
from tests.s3 import S3Server
from tests.support import (
    NO_DROPOUT,
    SMALL_MODEL,
    curve,
    digests,
    flip_bit,
    held_out_losses,
    only_run,
    small_values,
    write_config,
)
from tests.tiny_models import tiny_config
from tests.trainer.training.sharded_runs import (
    FSDP,
    LAST_STEP,
    LLAMA,
    SHORT,
    STEP_BEFORE,
    WHOLE,
    apart,
    copied,
    cut_back,
    final_weights,
    finish,
    forget_measure,
    joined,
    require_whole,
    start,
    unlisted,
)
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.models.tensor_files import read_file_header
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.records.evaluations import Scores
from trainer.records.plans import PreparedData
from trainer.store.names import EVALUATION, FINAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ORDER = 2e-6
"""Of weights, absolute, after 4 steps on as many ranks: DDP divides a gradient by the ranks before it sums, FSDP after.
"""

RANKS = 1e-5
"""The same on another number of ranks: float32 sums of other shares of each batch, carried through AdamW."""


@pytest.fixture(scope="module")
def config(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("sharding") / "job.yaml", small_values(raw, Path("unset"), **SHORT))


@pytest.fixture(scope="module")
def whole(config: Path, prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run on two ranks that hold the model each; not to be written to."""
    folder = tmp_path_factory.mktemp("whole")
    store = copied(prepared[0], folder / "store")
    finish(folder / "said", config, store, 2)
    return store


@pytest.fixture(scope="module")
def sharded(config: Path, prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the same run with the model divided between them; not to be written to."""
    folder = tmp_path_factory.mktemp("sharded")
    store = copied(prepared[0], folder / "store")
    finish(folder / "said", config, store, 2, FSDP)
    return store


def assert_close(found: Path, expected: Path, tolerance: float) -> None:
    """Runs of the same identity with the same course and the same weights, within a tolerance."""
    assert only_run(found) == only_run(expected), "how a model is divided is not part of a run's identity"
    assert len(curve(found)) == len(curve(expected))
    for one, other in zip(curve(found), curve(expected), strict=True):
        assert (one[0], one[2]) == (other[0], other[2])
        assert one[1] == pytest.approx(other[1], abs=1e-5)
        assert one[3] == pytest.approx(other[3], rel=1e-4)
    assert [loss for _, loss in held_out_losses(found)] == pytest.approx(
        [loss for _, loss in held_out_losses(expected)], abs=1e-5
    )
    assert apart(final_weights(found), final_weights(expected)) < tolerance


def test_a_model_divided_between_two_ranks_is_trained_as_one_that_both_hold(whole: Path, sharded: Path) -> None:
    assert_close(sharded, whole, ORDER)
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        places = [store / only_run(store) / FINAL / name for store in (sharded, whole)]
        assert places[0].read_bytes() == places[1].read_bytes()


def test_the_final_model_is_exactly_what_the_parts_hold_and_loads_as_any(sharded: Path) -> None:
    run = sharded / only_run(sharded)
    parts, final = joined(run / "checkpoints" / LAST_STEP, "model"), final_weights(sharded)
    assert parts.keys() == final.keys()
    assert all(torch.equal(parts[name], final[name]) for name in final)
    loaded = AutoModelForCausalLM.from_pretrained(run / FINAL)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight, "tied"
    assert all(torch.equal(loaded.state_dict()[name], final[name]) for name in final)


def test_no_rank_writes_the_whole_model(sharded: Path) -> None:
    folder = sharded / only_run(sharded) / "checkpoints" / LAST_STEP
    sizes = [path.stat().st_size for path in sorted(folder.glob("model-part-*"))]
    assert len(sizes) == 2
    assert max(sizes) < 0.6 * sum(sizes)
    assert not (folder / "model.safetensors").exists()


def held_out(store: Path, place: str) -> dict[str, Scores]:
    """The figures of a checkpoint, or of the final model, of the one run of a store."""
    checkpoint = f"{only_run(store)}/{place if place == FINAL else f'checkpoints/{place}'}"
    return evaluate_checkpoint(EvaluateJob(store=str(store), checkpoint=checkpoint), silent()).groups


def test_a_sharded_checkpoint_is_measured_as_a_whole_one(sharded: Path, tmp_path: Path) -> None:
    store = copied(sharded, tmp_path / "store")
    assert held_out(store, LAST_STEP) == held_out(store, FINAL)


@pytest.mark.deep
@pytest.mark.parametrize("precision", once("fp32", "bf16"))
def test_what_ranks_measure_of_the_final_model_that_they_divide_is_what_one_finds_that_holds_it(
    config: Path, stocked: Path, tmp_path: Path, precision: str
) -> None:
    words = [f"training.precision={precision}"]
    finish(tmp_path / "divided", config, stocked, 2, FSDP, *words)
    record = stocked / only_run(stocked) / EVALUATION
    divided = json.loads(record.read_text())
    record.unlink()
    finish(tmp_path / "whole", config, stocked, 1, *words)
    assert divided["samples"]
    assert json.loads(record.read_text()) == divided


def test_resumed_on_as_many_ranks_it_ends_with_the_same_bits(config: Path, sharded: Path, tmp_path: Path) -> None:
    store = copied(sharded, tmp_path / "store")
    run = cut_back(store)
    ended = finish(tmp_path / "said", config, store, 2, FSDP)
    assert f"checkpoints/{STEP_BEFORE} at step 2 of 4" in ended[0].stderr
    expected = digests(sharded / only_run(sharded), "checkpoints", FINAL)
    found = digests(run, "checkpoints", FINAL)
    timed = ("manifest.json", "README.md")
    assert {name: found[name] for name in found if not name.endswith(timed)} == {
        name: expected[name] for name in expected if not name.endswith(timed)
    }


@pytest.mark.deep
@pytest.mark.parametrize(
    ("before", "after", "words"),
    once((2, 3, [FSDP]), (3, 1, [FSDP]), (3, 1, []), (2, 2, [])),
    ids=["2 to 3", "3 to 1", "3 to a whole model on 1", "2 to whole models on 2"],
)
def test_another_number_of_ranks_reads_the_parts_and_goes_on(
    config: Path, sharded: Path, stocked: Path, tmp_path: Path, before: int, after: int, words: list[str]
) -> None:
    finish(tmp_path / "before", config, stocked, before, FSDP)
    cut_back(stocked)
    ended = finish(tmp_path / "after", config, stocked, after, *words)
    assert "at step 2 of 4" in ended[0].stderr
    assert_close(stocked, sharded, RANKS)


@pytest.mark.deep
def test_a_run_of_whole_models_goes_on_divided(config: Path, sharded: Path, whole: Path, tmp_path: Path) -> None:
    store = copied(whole, tmp_path / "store")
    cut_back(store)
    finish(tmp_path / "said", config, store, 3, FSDP)
    assert_close(store, sharded, RANKS)


@pytest.mark.parametrize(
    ("ranks", "words"),
    once(
        (1, []),
        (2, ["training.micro_batch=2", "training.sum_each_micro_batch=true"]),
        (2, ["training.compile=true"]),
    ),
    ids=["by one rank alone", "with gradients summed after each micro-batch", "with compiled blocks"],
)
def test_a_sharded_model_is_trained_in_other_ways_to_the_same_weights(
    config: Path, sharded: Path, stocked: Path, tmp_path: Path, ranks: int, words: list[str]
) -> None:
    finish(tmp_path / "said", config, stocked, ranks, FSDP, *words)
    assert_close(stocked, sharded, RANKS)


def test_a_flipped_bit_in_one_ranks_part_makes_the_checkpoint_before_the_one_to_continue_from(
    config: Path, sharded: Path, tmp_path: Path
) -> None:
    store = copied(sharded, tmp_path / "store")
    run = store / only_run(store)
    shutil.rmtree(run / FINAL)
    (part,) = (run / "checkpoints" / LAST_STEP).glob("optimizer-part-00001-of-00002-*.safetensors")
    flip_bit(part, -9)
    ended = finish(tmp_path / "said", config, store, 2, FSDP)
    assert f"{part.name} does not match its checksum" in ended[0].stderr
    assert "at step 2 of 4" in ended[0].stderr
    assert (run / "checkpoints" / f"damaged-{LAST_STEP}-0").is_dir()
    assert apart(final_weights(store), final_weights(sharded)) == 0.0


@pytest.mark.deep
@pytest.mark.parametrize("rank", once(1, 0))
@pytest.mark.parametrize("part", once("model", "optimizer"))
def test_a_rank_killed_in_a_save_leaves_the_commit_before(
    config: Path, sharded: Path, tmp_path: Path, rank: int, part: str
) -> None:
    store = copied(sharded, tmp_path / "store")
    run = cut_back(store)
    point = f"replace {only_run(store)[:-8]}#/checkpoints/step-#/{part}-part-#-of-#-#.safetensors"
    armed = ["tests.killing", store, tmp_path / "points", "after" if part == "model" else "before", point]
    running = start(tmp_path / "killed", 2, config, f"store={store}", FSDP, through=armed, only=rank)
    ended = [each.wait() for each in running]
    assert ended[rank].status == -signal.SIGKILL, (tmp_path / "points").read_text()
    assert ended[1 - rank].status not in (0, -signal.SIGKILL), "it cannot go on alone, and does not wait for ever"
    assert not (run / "checkpoints" / LAST_STEP / "manifest.json").exists()
    ended = finish(tmp_path / "after", config, store, 2, FSDP)
    assert "at step 2 of 4" in ended[0].stderr
    assert apart(final_weights(store), final_weights(sharded)) == 0.0


@pytest.mark.deep
def test_a_rank_that_waits_for_its_disk_in_a_save_says_so(config: Path, sharded: Path, tmp_path: Path) -> None:
    store = copied(sharded, tmp_path / "store")
    cut_back(store)
    refused = ["tests.trainer.training.refusing", "-part-", 2]
    running = start(tmp_path / "said", 2, config, f"store={store}", FSDP, through=refused, only=1)
    ended = [rank.wait() for rank in running]
    assert [rank.status for rank in ended] == [0, 0], ended
    assert ended[1].stderr.count("rank 1: step 4 is not saved yet: cannot write") == 2, ended
    assert apart(final_weights(store), final_weights(sharded)) == 0.0


@pytest.mark.deep
@pytest.mark.parametrize(
    ("origin", "ranks", "killed", "when", "point"),
    once(
        ("sharded", 3, 1, "after", "model-part-#-of-#-#.safetensors"),
        ("sharded", 2, 0, "after", "state-#.json"),
        ("sharded", 2, 0, "before", "manifest.json"),
        ("whole", 2, 0, "after", "manifest.json"),
    ),
)
def test_a_rank_killed_while_a_step_is_saved_anew_leaves_a_whole_checkpoint_of_that_step(
    config: Path,
    sharded: Path,
    whole: Path,
    tmp_path: Path,
    origin: str,
    ranks: int,
    killed: int,
    when: str,
    point: str,
) -> None:
    store = copied({"sharded": sharded, "whole": whole}[origin], tmp_path / "store")
    run = cut_back(store)
    forget_measure(run, STEP_BEFORE)
    place = f"replace {only_run(store)[:-8]}#/checkpoints/step-#/{point}"
    armed = ["tests.killing", store, tmp_path / "points", when, place]
    running = start(tmp_path / "killed", ranks, config, f"store={store}", FSDP, through=armed, only=killed)
    ended = [rank.wait() for rank in running]
    assert ended[killed].status == -signal.SIGKILL, (tmp_path / "points").read_text()
    require_whole(run, STEP_BEFORE)
    assert unlisted(run, STEP_BEFORE)
    ended = finish(tmp_path / "after", config, store, ranks, FSDP)
    assert "at step 2 of 4" in ended[0].stderr
    assert not unlisted(run, STEP_BEFORE)
    assert apart(final_weights(store), final_weights(sharded)) < (ORDER if ranks == 2 else RANKS)


@pytest.mark.deep
def test_a_part_that_arrives_late_beside_a_commit_is_none_of_it(config: Path, sharded: Path, tmp_path: Path) -> None:
    store = copied(sharded, tmp_path / "store")
    run = store / only_run(store)
    for part in (run / "checkpoints" / LAST_STEP).glob("*-part-00001-*"):  # as of an attempt that took other steps
        shutil.copy(part, run / "checkpoints" / STEP_BEFORE)
    cut_back(store)
    assert len(unlisted(run, STEP_BEFORE)) == 2
    assert held_out(store, STEP_BEFORE) == held_out(copied(sharded, tmp_path / "alone"), STEP_BEFORE)
    finish(tmp_path / "said", config, store, 2, FSDP)
    assert not unlisted(run, STEP_BEFORE)
    assert apart(final_weights(store), final_weights(sharded)) == 0.0


@pytest.mark.deep
@pytest.mark.parametrize(
    "words",
    once(
        ["training.micro_batch=2", "training.max_grad_norm=0.05"],
        ["training.gradient_checkpointing=true", "training.optimizer=sgd"],
    ),
    ids=["accumulated and clipped", "checkpointed, by another optimizer"],
)
def test_what_else_a_step_does_is_done_to_a_sharded_model_as_to_a_whole_one(
    config: Path, prepared: tuple[Path, PreparedData], tmp_path: Path, words: list[str]
) -> None:
    stores = [copied(prepared[0], tmp_path / name) for name in ("whole", "sharded")]
    finish(tmp_path / "said-whole", config, stores[0], 2, *words)
    finish(tmp_path / "said-sharded", config, stores[1], 2, FSDP, *words)
    assert_close(stores[1], stores[0], ORDER)


@pytest.mark.deep
def test_weights_in_the_hosts_memory_are_trained_to_the_same_bits(
    config: Path, sharded: Path, stocked: Path, tmp_path: Path
) -> None:
    finish(tmp_path / "said", config, stocked, 2, FSDP, "training.cpu_offload=true")
    assert apart(final_weights(stocked), final_weights(sharded)) == 0.0


@pytest.mark.deep
def test_parts_are_written_to_a_bucket_and_read_from_it_by_another_number_of_ranks(
    config: Path, sharded: Path, s3: S3Server, tmp_path: Path
) -> None:
    url = s3.new_store()
    files, root = fsspec.url_to_fs(url)
    for number, ranks in enumerate((2, 3)):
        env = {**s3.env, "HEADRACE_CACHE": str(tmp_path / f"cache-{number}")}
        ended = [rank.wait() for rank in start(tmp_path / str(number), ranks, config, f"store={url}", FSDP, env=env)]
        assert [rank.status for rank in ended] == [0] * ranks, ended
        files.invalidate_cache()
        (final,) = files.glob(f"{root}/runs/*/final/model.safetensors")
        files.get(final, str(tmp_path / "model.safetensors"))
        assert apart(load_file(tmp_path / "model.safetensors"), final_weights(sharded)) <= (0.0, RANKS)[number]
        run = final.rsplit("/", 2)[0]
        assert len(files.glob(f"{run}/checkpoints/{LAST_STEP}/*-part-*")) == 2 * ranks
        for name in ("final", f"checkpoints/{LAST_STEP}"):
            files.rm(f"{run}/{name}", recursive=True)
        for name in ("checkpoint-last", "checkpoint-best"):
            files.rm(f"{run}/{name}")
    assert "at step 2 of 4" in ended[0].stderr


MIXED = {
    "mamba": tiny_config("mamba"),
    "mamba2": tiny_config("mamba2"),
    "minimax": {**tiny_config("minimax"), "block_size": 8},
}
"""Models that keep some of what they compute in float32."""

JAMBA = tiny_config("jamba")
"""Layers of two classes."""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("model", "precision"),
    once((LLAMA, "fp32"), (JAMBA, "fp32"), (LLAMA, "bf16"), *((model, "bf16") for model in MIXED.values())),
    ids=["llama", "jamba", "llama in bf16", *MIXED],
)
def test_a_model_with_a_head_of_its_own_is_trained_as_a_whole_one(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path, model: dict[str, Any], precision: str
) -> None:
    values = small_values(raw, Path("unset"), **{**SHORT, "model__config": model, "training__precision": precision})
    config = write_config(tmp_path / "job.yaml", values)
    stores = [copied(prepared[0], tmp_path / name) for name in ("whole", "sharded")]
    finish(tmp_path / "said-whole", config, stores[0], 2)
    ended = finish(tmp_path / "said-sharded", config, stores[1], 2, FSDP)
    assert WHOLE not in ended[0].stderr, "nor where it is measured"
    models = [store / only_run(store) / FINAL / "model.safetensors" for store in stores]
    headers = [read_file_header(model) for model in models]
    assert headers[1] == headers[0], "under the names that `save_pretrained` gives"
    if precision == "fp32":
        assert_close(stores[1], stores[0], ORDER)
    else:  # what is between the layers is bf16 too, which has 8 bits
        losses = [[loss for _, loss, _, _ in curve(store)] for store in stores]
        assert losses[1] == pytest.approx(losses[0], rel=2**-8)
        (_, before), *_, (_, after) = held_out_losses(stores[1])
        assert after < before, "of the same text; of a few batches in turn, the last may be the hardest"


def test_a_model_without_repeated_blocks_is_refused(raw: Path, stocked: Path, tmp_path: Path) -> None:
    model = {**SMALL_MODEL, **NO_DROPOUT, "n_layer": 0}
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked, **{**SHORT, "model__config": model}))
    ended = [rank.wait() for rank in start(tmp_path / "said", 2, config, FSDP)]
    assert [rank.status for rank in ended] == [2, 2], ended
    assert "no repeated blocks to shard; set training.sharding to none" in ended[0].stderr
