"""Checkpoints: what goes in comes out, what is damaged is passed over, and what is kept is what should be."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.support import SMALL_MODEL, digests, flip_bit
from tests.tiny_models import new_model
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError
from trainer.config.training import TrainingConfig
from trainer.data.dataset import Batch
from trainer.models.causal import load_model
from trainer.models.losses import CausalLMLoss
from trainer.records.sealed import write_sealed
from trainer.store.artifact_files import fetch_artifact
from trainer.store.names import CHECKPOINT_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState, find_checkpoint
from trainer.training.restoring import restore
from trainer.training.runtime import Runtime
from trainer.training.saver import HostCopies, Saver, SaverOptions, Snapshot, take_snapshot
from trainer.training.schedules import make_schedule
from trainer.training.step import make_optimizer, train_step

RUN = "runs/tiny"
FILES = [
    "config.json", "generation_config.json", "manifest.json", "model.safetensors", "optimizer.safetensors",
    "state.json",
    "tokenizer.json", "tokenizer_config.json",
]  # fmt: skip
"""Every file of a checkpoint; a test below says so."""

TRAINING = TrainingConfig(max_steps=50, context=32, learning_rate=1e-2, warmup_steps=3)


class Learner:
    """A model with its optimizer and schedule, which learns."""

    def __init__(self, model: PreTrainedModel, runtime: Runtime, training: TrainingConfig = TRAINING) -> None:
        self.model, self.objective, self.runtime = model, CausalLMLoss(model), runtime
        self.optimizer = make_optimizer(self.objective, training)
        self.prepared = runtime.accelerator.prepare_optimizer(self.optimizer)
        self.schedule = make_schedule(self.optimizer, training, training.max_steps or 0)

    def learn(self, steps: int) -> None:
        for number in range(steps):
            windows = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(number))
            torch.manual_seed(number)
            train_step(
                self.objective, self.prepared, self.schedule, Batch([{"input_ids": windows}], 62, 64), 1.0, self.runtime
            )

    def snapshot(self, copies: HostCopies, state: TrainState, epoch: int | None = None) -> Snapshot:
        return take_snapshot(copies, state, self.model, self.objective, self.optimizer, self.schedule, None, epoch)


@pytest.fixture
def learner(runtime: Runtime) -> Learner:
    return Learner(new_model(dict(SMALL_MODEL)), runtime)


def save(store: Store, learner: Learner, *states: TrainState) -> None:
    with Saver(store, RUN, learner.model, SaverOptions([], "0123456789abcdef", keep_last=2)) as writer:
        for state in states:
            writer.save(partial(learner.snapshot, state=state))


def saved_and_loaded(store: Store, learner: Learner, state: TrainState, runtime: Runtime) -> tuple[Path, Learner]:
    """Save a learner; returns the newest checkpoint's files, and a new learner with its weights."""
    save(store, learner, state)
    name = find_checkpoint(store, RUN)
    assert name == f"checkpoints/step-{state.step:08d}"
    folder = fetch_artifact(store, f"{RUN}/{name}", CHECKPOINT_KIND)
    return folder, Learner(load_model(folder), runtime)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES: dict[str, Callable[[Path], None]] = {"flipped bit": flip_bit, "truncated": truncate, "missing": Path.unlink}


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> tuple[Store, str, Path, Path]:
    """The finished run in a store of the test's own, and the folders of its last checkpoint but one and of its last."""
    own = finished.copy(tmp_path)
    return Store(str(own.store)), own.run, *sorted((own.folder / "checkpoints").iterdir())[-2:]


def test_everything_that_a_checkpoint_holds_comes_back_exactly(
    learner: Learner, empty_store: Store, runtime: Runtime
) -> None:
    learner.learn(5)
    state = TrainState(step=5, attempts=6, scores={"loss": 3.25}, best_score=3.0, best_step=4, worse=1)
    folder, again = saved_and_loaded(empty_store, learner, state, runtime)
    assert restore(folder, again.objective, again.optimizer, again.schedule, None) == state
    before, after = learner.optimizer.state_dict(), again.optimizer.state_dict()
    groups, saved = ([{**g, "betas": tuple(g["betas"])} for g in o["param_groups"]] for o in (after, before))
    assert groups == saved
    assert after["state"].keys() == before["state"].keys()
    for number, moments in before["state"].items():
        assert moments.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(after["state"][number][key], value) for key, value in moments.items())
    assert again.schedule.state_dict() == learner.schedule.state_dict()
    assert all(torch.equal(again.model.state_dict()[key], value) for key, value in learner.model.state_dict().items())


def test_a_checkpoint_with_other_groups_of_parameters_is_refused_not_mixed_up(
    learner: Learner, empty_store: Store, runtime: Runtime
) -> None:
    learner.learn(1)
    folder, again = saved_and_loaded(empty_store, learner, TrainState(step=1, attempts=1), runtime)
    decayed, spared = again.optimizer.param_groups
    spared["params"].append(decayed["params"].pop(0))
    with pytest.raises(ArtifactError, match=r"parameter groups differ from this version's, .*wte.*another `run`"):
        restore(folder, again.objective, again.optimizer, again.schedule, None)


def test_a_snapshot_keeps_what_training_goes_on_to_change(learner: Learner, empty_store: Store) -> None:
    learner.learn(1)
    expected = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    moments = [m["exp_avg"].clone() for m in learner.optimizer.state_dict()["state"].values()]
    state = TrainState(step=1, attempts=1)
    snapshot = learner.snapshot(HostCopies(), state)
    learner.learn(2)
    state.step = 3
    assert snapshot.state.step == 1
    assert all(torch.equal(snapshot.weights[name], tensor) for name, tensor in expected.items())
    kept = [tensor for name, tensor in snapshot.optimizer.items() if name.endswith("/exp_avg")]
    assert len(kept) == len(moments)
    assert all(any(torch.equal(one, other) for other in kept) for one in moments)


def test_a_checkpoint_loads_in_transformers_with_its_tokenizer(finished: Finished) -> None:
    folder = max((finished.store / finished.run / "checkpoints").iterdir())
    final = finished.store / finished.run / "final"
    ids = torch.arange(20)[None]
    with torch.no_grad():
        logits = [AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in (folder, final)]
        ours = load_model(final).eval()(ids).logits
    assert torch.equal(logits[0], logits[1]), "the last checkpoint holds the final weights"
    torch.testing.assert_close(logits[1], ours, rtol=1e-5, atol=1e-6)
    for path in (folder, final):
        tokenizer = AutoTokenizer.from_pretrained(path)
        assert tokenizer.decode(tokenizer("def spam(): ü")["input_ids"]) == "def spam(): ü"
        assert tokenizer.eos_token_id == AutoModelForCausalLM.from_pretrained(path).config.eos_token_id


def test_every_file_of_a_checkpoint_is_damaged_in_the_tests_below(finished: Finished) -> None:
    for folder in (finished.store / finished.run / "checkpoints").iterdir():
        assert sorted(path.name for path in folder.iterdir()) == FILES


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning_that_names_the_file(
    copied: tuple[Store, str, Path, Path], file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, run, before, newest = copied
    assert find_checkpoint(store, run) == f"checkpoints/{newest.name}"
    DAMAGES[damage](newest / file)
    with caplog.at_level(logging.WARNING, logger="trainer.training.checkpoint"):
        assert find_checkpoint(store, run) == f"checkpoints/{before.name}"
    assert any(
        str(newest / file) in record.getMessage() and str(before) in record.getMessage() for record in caplog.records
    )


def test_a_damaged_checkpoint_is_set_aside_and_kept_and_warned_of_once(
    copied: tuple[Store, str, Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    store, run, before, newest = copied
    flip_bit(newest / "optimizer.safetensors")
    content = digests(newest)
    for _ in range(2):
        assert find_checkpoint(store, run) == f"checkpoints/{before.name}"
        (warned,) = [record for record in caplog.records if "set aside" in record.getMessage()]
    assert "does not match its checksum" in warned.getMessage()
    assert digests(newest.with_name(f"damaged-{newest.name}-0")) == content


def test_the_next_one_is_set_aside_beside_those_that_are_left(copied: tuple[Store, str, Path, Path]) -> None:
    store, run, before, newest = copied
    (newest.with_name(f"damaged-{newest.name}-1")).mkdir()  # someone has deleted the one with number 0
    (newest.with_name(f"damaged-{newest.name}-1") / "kept").touch()
    flip_bit(newest / "optimizer.safetensors")
    assert find_checkpoint(store, run) == f"checkpoints/{before.name}"
    assert newest.with_name(f"damaged-{newest.name}-2").is_dir()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_checkpoints_are_all_damaged_is_refused_by_their_files(
    copied: tuple[Store, str, Path, Path], damage: str
) -> None:
    store, run, _, newest = copied
    folders = list(newest.parent.iterdir())
    for folder in folders:
        DAMAGES[damage](folder / "optimizer.safetensors")
    with pytest.raises(ArtifactError) as caught:
        find_checkpoint(store, run)
    assert all(f"{folder}/optimizer.safetensors" in str(caught.value) for folder in folders)


def test_a_checkpoint_that_was_never_committed_does_not_exist(learner: Learner, empty_store: Store) -> None:
    save(empty_store, learner, TrainState(step=1, attempts=1))
    empty_store.write_bytes(f"{RUN}/checkpoints/step-00000002/model.safetensors", b"half")
    assert find_checkpoint(empty_store, RUN) == "checkpoints/step-00000001"


def test_the_newest_checkpoint_is_used_whatever_the_pointer_says(learner: Learner, empty_store: Store) -> None:
    save(empty_store, learner, TrainState(step=1, attempts=1), TrainState(step=2, attempts=2))
    write_sealed(
        empty_store, f"{RUN}/checkpoint-last", {"checkpoint": "checkpoints/step-00000001", "step": 1, "scores": None}
    )
    assert find_checkpoint(empty_store, RUN) == "checkpoints/step-00000002"
    empty_store.write_bytes(f"{RUN}/checkpoint-last", b"{")
    assert find_checkpoint(empty_store, RUN) == "checkpoints/step-00000002"
