"""Several ranks, and several ways to divide a batch: the same samples, and the same training to rounding."""

import json
import math
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.depth import once
from tests.processes import alive, descendants, finish, rank_envs, start_module, start_ranks, start_warm, wait_until
from tests.support import (
    NO_DROPOUT,
    SMALL_MODEL,
    cpu_runtime,
    curve,
    held_out_losses,
    only_run,
    records,
    small_job,
    small_values,
    steps_recorded,
    write_config,
)
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.data.dataset import open_dataset, read_batch
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.records.plans import PreparedData
from trainer.store.names import EVALUATION
from trainer.store.storage import Store
from trainer.training.rank_watchdog import SILENT_SECONDS

TOLERANCE = 2e-4
"""Of losses in nats, absolute, after 12 steps: float32 sums taken in another order, carried through AdamW."""

SHORT: dict[str, Any] = {
    "training__max_steps": 12, "training__evaluate_every": 4, "model__config": {**SMALL_MODEL, **NO_DROPOUT},
}  # fmt: skip


@pytest.fixture(scope="module")
def config(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("ranks") / "job.yaml", small_values(raw, Path("unset"), **SHORT))


@pytest.fixture(scope="module")
def alone(config: Path, prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run on one rank that takes each batch whole; not to be written to."""
    folder = tmp_path_factory.mktemp("alone")
    store = Path(shutil.copytree(prepared[0], folder / "store"))
    finish(folder / "said", config, 1, f"store={store}")
    return store


def assert_close_curves(found: Path, expected: Path) -> None:
    """Losses, gradient norms and held-out losses of two runs, within the tolerance; learning rates exactly."""
    assert only_run(found) == only_run(expected), "how a batch is divided is not part of a run's identity"
    for one, other in zip(curve(found), curve(expected), strict=True):
        assert one[0] == other[0]
        assert one[1] == pytest.approx(other[1], abs=TOLERANCE)
        assert one[2] == other[2]
        assert one[3] == pytest.approx(other[3], rel=1e-2)
    for (step, loss), (same, expected_loss) in zip(held_out_losses(found), held_out_losses(expected), strict=True):
        assert step == same
        assert loss == pytest.approx(expected_loss, abs=TOLERANCE)


def rows(batch: Sequence[Mapping[str, torch.Tensor]]) -> list[list[int]]:
    found: list[list[int]] = torch.cat([inputs["input_ids"] for inputs in batch]).tolist()
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_the_ranks_shares_together_are_the_batch_that_one_rank_takes(
    raw: Path, prepared: tuple[Path, PreparedData], ranks: int, micro_batch: int | None
) -> None:
    store, data = Store(str(prepared[0])), prepared[1]
    training = small_job(raw, prepared[0], training__micro_batch=micro_batch).training
    manifests = shard_manifests(store, data)
    whole, divided = (make_plan(training, manifests, n) for n in (1, ranks))
    dataset = open_dataset(store, data, training, whole, None)
    for number in (0, 1, 65, 1000):
        expected = read_batch(number, whole, dataset.order, dataset.windows, 0)
        shares = [read_batch(number, divided, dataset.order, dataset.windows, rank) for rank in range(ranks)]
        assert [row for share in shares for row in rows(share.micro_batches)] == rows(expected.micro_batches)
        assert {len(share.micro_batches) for share in shares} == {divided.accumulation}
        assert {share.targets for share in shares} == {expected.targets} == {8 * 31}


@pytest.mark.deep
@pytest.mark.slow
def test_two_ranks_under_torchrun_train_as_one_does(stocked: Path, config: Path, alone: Path, tmp_path: Path) -> None:
    launcher = ["--standalone", "--nproc-per-node", 2, "-m", "trainer", config, f"store={stocked}"]
    ended = start_module(tmp_path / "said", "torch.distributed.run", *launcher).wait()
    assert ended.status == 0, ended.stderr
    assert ended.stdout.count("model: ") == 1, "rank 0 speaks"
    plan = json.loads((stocked / only_run(stocked) / "plan.json").read_text())
    assert (plan["ranks"], plan["micro_batch"]) == (2, 4)
    assert_close_curves(stocked, alone)

    again = cpu_runtime()
    assert again.ranks == 1
    two = json.loads((stocked / only_run(stocked) / EVALUATION).read_text())
    settings = small_job(stocked, stocked, **SHORT).evaluation
    job = EvaluateJob(
        store=str(stocked), checkpoint=f"{only_run(stocked)}/checkpoints/step-00000012", evaluation=settings
    )
    one = evaluate_checkpoint(job, silent())
    assert one.total is not None and one.total.counts == two["total"]["counts"]
    for score, other in [(one.total, two["total"]), *((one.groups[name], two["groups"][name]) for name in one.groups)]:
        assert score.figures == pytest.approx(other["figures"], abs=1e-4)
        assert score.figures["loss"] == pytest.approx(other["figures"]["loss"], abs=1e-6)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("batch", once(1, 5))
def test_an_evaluation_on_two_ranks_is_that_on_one(
    stocked: Path, config: Path, alone: Path, batch: int, tmp_path: Path
) -> None:
    shutil.copytree(alone / only_run(alone), stocked / only_run(alone))
    scores = []
    for ranks in (1, 2):
        finish(tmp_path / f"on-{ranks}", config, ranks, f"store={stocked}", f"evaluation.batch={batch}")
        result = stocked / only_run(stocked) / EVALUATION
        found = json.loads(result.read_text())
        scores.append((found["groups"], found["total"]))
        result.unlink()
    assert scores[0] == scores[1], "sums are exact and in one order"
    total = scores[0][1]["figures"]
    assert math.exp(total["loss"]) == total["perplexity"]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "micro_batch"), once((1, 1), (1, 2), (1, 4), (2, 2)))
def test_accumulation_trains_as_the_whole_batch_does(
    stocked: Path, config: Path, alone: Path, ranks: int, micro_batch: int, tmp_path: Path
) -> None:
    finish(tmp_path / "said", config, ranks, f"store={stocked}", f"training.micro_batch={micro_batch}")
    plan = json.loads((stocked / only_run(stocked) / "plan.json").read_text())
    assert plan["accumulation"] == 8 // (ranks * micro_batch)
    assert_close_curves(stocked, alone)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), once((1, 2), (2, 1)))
def test_a_run_goes_on_with_another_number_of_ranks(
    stocked: Path, config: Path, alone: Path, before: int, after: int, tmp_path: Path
) -> None:
    overrides = [f"store={stocked}", "training.save_every=1"]
    if before == 1:
        running = [start_warm(tmp_path / "before", "trainer.__main__", config, *overrides)]
    else:
        running = start_ranks(tmp_path / "before", before, "trainer.__main__", config, *overrides)
    wait_until(lambda: steps_recorded(stocked) >= 4 or any(rank.status() is not None for rank in running))
    for rank in running:
        rank.send(signal.SIGKILL)
    assert [rank.wait().status for rank in running] == [-signal.SIGKILL] * before
    ended = finish(tmp_path / "after", config, after, f"store={stocked}")
    assert "continuing from" in ended[0].stderr
    assert json.loads((stocked / only_run(stocked) / "plan.json").read_text())["ranks"] == after
    assert_close_curves(stocked, alone)


@pytest.mark.slow
def test_ranks_that_are_asked_to_stop_save_once_at_the_same_step(stocked: Path, config: Path, tmp_path: Path) -> None:
    running = start_ranks(
        tmp_path / "said", 2, "trainer.__main__", config, f"store={stocked}", "training.max_steps=400"
    )
    wait_until(lambda: steps_recorded(stocked) >= 2 or any(rank.status() is not None for rank in running))
    running[1].send(signal.SIGTERM)
    ended = [rank.wait() for rank in running]
    assert [rank.status for rank in ended] == [75, 75], ended
    (saved,) = records(stocked, "checkpoint")
    assert all(f"saved at step {saved['step']} of 400" in rank.stderr for rank in ended)


@pytest.mark.deep
@pytest.mark.slow
def test_a_rank_that_is_killed_is_told_by_the_others(stocked: Path, config: Path, tmp_path: Path) -> None:
    running = start_ranks(
        tmp_path / "said", 2, "trainer.__main__", config, f"store={stocked}", "training.max_steps=4000"
    )
    wait_until(lambda: steps_recorded(stocked) >= 2 or any(rank.status() is not None for rank in running))
    running[1].send(signal.SIGKILL)
    ended = [rank.wait() for rank in running]
    assert [rank.status for rank in ended] == [EXIT_PREEMPTED, -signal.SIGKILL], ended
    assert (
        f"[rank 0] RankLost: rank 1 of 2 ({socket.gethostname()}) is lost: the process was killed, or"
        in ended[0].stderr
    )
    assert "Traceback" not in ended[0].stderr


@pytest.mark.slow
@pytest.mark.deep
def test_a_rank_that_is_killed_is_told_although_torchrun_asks_the_others_to_stop(tmp_path: Path) -> None:
    every = ["--monitor-interval", 2]  # seconds: the waiting rank notices before torchrun does
    arguments = ["--standalone", *every, "--nproc-per-node", 2, "-m", "tests.trainer.training.killed_rank"]
    told = start_module(tmp_path, "torch.distributed.run", *arguments).wait().stderr
    assert f"[rank 0] RankLost: rank 1 of 2 ({socket.gethostname()}) is lost: the process was killed, or" in told, told
    assert "asked to stop" not in told, told


@pytest.mark.deep
@pytest.mark.slow
def test_ranks_whose_torchrun_is_killed_save_at_the_same_step(stocked: Path, config: Path, tmp_path: Path) -> None:
    settings = [f"store={stocked}", "training.max_steps=4000", "training.save_every=4000"]
    launcher = start_module(
        tmp_path, "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "trainer", config, *settings
    )
    wait_until(lambda: steps_recorded(stocked) >= 2 or launcher.status() is not None)
    ranks = descendants(launcher.pid)
    launcher.send(signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: not any(map(alive, ranks)), SILENT_SECONDS)
    told = launcher.output()[1]
    assert "torchrun on " in told and "has ended: training stops after this step" in told, told
    saved = records(stocked, "checkpoint")[-1]
    assert told.count(f"saved at step {saved['step']} of 4000") == 2 and "Traceback" not in told, told


@pytest.mark.deep
@pytest.mark.slow
def test_ranks_whose_torchrun_is_killed_while_they_start_end_instead_of_waiting(
    stocked: Path, config: Path, tmp_path: Path
) -> None:
    launcher = start_module(
        tmp_path, "torch.distributed.run", "--standalone", "--nproc-per-node", 3, "-m", "trainer", config,
        f"store={stocked}",
    )  # fmt: skip
    wait_until(lambda: len(descendants(launcher.pid)) == 3 or launcher.status() is not None)
    ranks = descendants(launcher.pid)
    launcher.send(signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: not any(map(alive, ranks)), 60.0)
    told = launcher.output()[1]
    assert told.count("ended before the ranks met") == 3 and "Traceback" not in told, told


@pytest.mark.slow
def test_an_error_of_one_rank_is_told_by_the_others_who_end_as_it_does(
    stocked: Path, config: Path, tmp_path: Path
) -> None:
    environments = zip(rank_envs(2), ["60", "sixty"], strict=True)
    running = [
        start_warm(
            tmp_path / env["RANK"], "trainer.__main__", config, f"store={stocked}",
            env={**env, "HEADRACE_PATIENCE": patience},
        )
        for env, patience in environments
    ]  # fmt: skip
    ended = [rank.wait() for rank in running]
    assert [rank.status for rank in ended] == [EXIT_BAD_INPUT] * 2, ended
    assert "[rank 1] ConfigError: HEADRACE_PATIENCE is 'sixty'" in ended[1].stderr
    assert (
        "rank 1 of 2" in ended[0].stderr and "ended with ConfigError: HEADRACE_PATIENCE is 'sixty'" in ended[0].stderr
    )
    assert "Traceback" not in ended[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"),
    [("by a mistake in a program", 1), ("by bad input", EXIT_BAD_INPUT), ("by what passes", EXIT_PREEMPTED)],
)
def test_where_the_first_rank_fails_the_others_end_as_it_does(how: str, status: int, tmp_path: Path) -> None:
    ended = [rank.wait() for rank in start_ranks(tmp_path, 2, "tests.trainer.training.failing_first", how)]
    assert [rank.status for rank in ended] == [status] * 2, ended
    assert ended[1].stderr == "", "the first tells why"
