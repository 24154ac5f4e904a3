"""A stage in a separate process: its log, its result, and its failures."""

import logging
import os
import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import tasks.stage
from tasks.stage import StageCrashed
from tests.processes import command_line, descendants, meanwhile, stages, wait_until
from tests.support import data_values, digests, records, small_values
from tests.tasks.running import Prepared, prepare, run
from trainer.common.errors import EXIT_PREEMPTED, CorpusError, PipelineError, Preempted, RecordError, StorageError
from trainer.common.progress import Update
from trainer.pipelines.worker import STAGES, launch, stage
from trainer.records.steps import STEPS
from trainer.store.manifest import ArtifactRef


def the_stage() -> int:
    return stages(os.getpid())[0]  # the launcher, before its ranks


def second_of(ranks: list[int]) -> int:
    return next(pid for pid in ranks if "LOCAL_RANK=1" in Path(f"/proc/{pid}/environ").read_text())


def test_the_stages_of_the_pipeline_can_be_named() -> None:
    assert sorted({**STEPS, **STAGES}) == [
        "curate", "encode", "evaluate", "evaluate-run", "harness", "predict", "preflight", "reference",
        "tokenize", "tokenizer", "train",
    ]  # fmt: skip
    assert all(callable(stage(name)) for name in {**STEPS, **STAGES})


def test_stages_return_references_to_what_they_made_and_reuse_it(prepared: Prepared) -> None:
    values, data = prepared
    refs = [ArtifactRef(**ref) for ref in [data["tokenizer"], *data["shards"]]]
    store = Path(values["store"])
    assert all((store / ref.key / "manifest.json").exists() and not ref.reused for ref in refs)
    before = digests(store, "tokenizers", "shards")
    again = prepare(values)
    assert [ArtifactRef(**ref) for ref in [again["tokenizer"], *again["shards"]]] == [
        ref.model_copy(update={"reused": True}) for ref in refs
    ]
    assert digests(store, "tokenizers", "shards") == before


def test_a_stages_log_lines_and_progress_are_passed_on(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = small_values(raw, tmp_path / "store", data__tokenizer={"vocab_size": 384, "engine": "gigatoken"})
    updates: list[Update] = []
    job = data_values(values)
    tokenizer = run("tokenizer", {"job": job}, show=updates.append)
    assert updates[-1].title == "tokenizer"
    assert updates[-1].finished
    first = run("tokenize", {"job": job, "corpus": "code", "tokenizer": tokenizer}, show=updates.append)
    assert updates[-1].title == "tokenize code"
    assert updates[-1].done == updates[-1].total == sum(path.stat().st_size for path in (raw / "code").iterdir())
    with open(tmp_path / "store" / first["key"] / "shard-00000.bin", "ab") as shard:
        shard.write(b"\0\0")
    with caplog.at_level(logging.INFO, logger="stage"):
        run("tokenize", {"job": job, "corpus": "code", "tokenizer": tokenizer})
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "shard-00000.bin has" in warnings[0]
    assert any("1 of 2 shards are reused" in record.getMessage() for record in caplog.records)


def test_bad_input_is_raised_as_the_stages_own_error(raw: Path, tmp_path: Path) -> None:
    job = data_values(small_values(raw, tmp_path / "store"))
    job["data"]["corpora"][0]["paths"] = ["/nowhere/x"]
    with pytest.raises(CorpusError, match=r"^corpus 'code': no file matches '/nowhere/x'") as caught:
        run("tokenizer", {"job": job})
    assert caught.type is CorpusError


def test_an_error_in_a_worker_of_a_stage_is_raised_as_it_is(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"a = b\n" * 2**18 + b"\xff\n")  # behind what is looked at before work starts
    job = data_values(small_values(raw, tmp_path / "store"))
    tokenizer = run("tokenizer", {"job": job})
    job["data"]["corpora"][0]["paths"].append(str(tmp_path / "bad.py"))
    with pytest.raises(RecordError, match=r"bad.py: byte 1572864 \(0xff\) is not valid UTF-8"):
        run("tokenize", {"job": job, "corpus": "code", "tokenizer": tokenizer})


def test_what_a_library_prints_in_the_line_of_an_event_is_told_apart() -> None:
    event = {"event": "result", "a": 1}
    line = '{"event":"result","a":1}'
    assert tasks.stage._event(f"before {line}after\n") == (event, ["before", "after"])
    assert tasks.stage._event(f"{line}\n") == (event, [])
    assert tasks.stage._event('{"event":"resul\n') == ({}, ['{"event":"resul'])


def test_an_error_that_is_nobodys_fault_is_a_crash_with_its_trace(tmp_path: Path) -> None:
    with pytest.raises(StageCrashed, match="exited with status 1: AttributeError") as caught:
        run("tokenizer", {"job": 5})
    assert "Traceback" in str(caught.value)
    assert not isinstance(caught.value, PipelineError), "worth another try"


def test_a_stage_that_is_killed_is_a_crash(raw: Path, tmp_path: Path) -> None:
    job = data_values(small_values(raw, tmp_path / "store"))

    def kill() -> None:
        wait_until(lambda: bool(stages(os.getpid())))
        os.kill(the_stage(), signal.SIGKILL)

    with (
        meanwhile(kill),
        pytest.raises(StageCrashed, match="stage tokenizer was killed by signal 9: no error was reported"),
    ):
        run("tokenizer", {"job": job})


def test_an_error_counts_for_more_than_that_other_ranks_were_asked_to_stop() -> None:
    with pytest.raises(StorageError, match="disk"):
        tasks.stage._result("train", EXIT_PREEMPTED, {"kind": "StorageError", "message": "disk"})
    with pytest.raises(Preempted):
        tasks.stage._result("train", EXIT_PREEMPTED, {})


@pytest.mark.parametrize(
    ("ranks", "status"),
    [([EXIT_PREEMPTED, 2], 2), ([-15, 1], 1), ([EXIT_PREEMPTED, -9], 137), ([EXIT_PREEMPTED, -15], EXIT_PREEMPTED)],
)
def test_the_status_of_several_ranks_is_that_of_the_one_that_failed_by_itself(
    ranks: list[int], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = {rank: ProcessFailure(rank, 0, status, "") for rank, status in enumerate(ranks)}

    def fail(arguments: list[str]) -> None:
        raise ChildFailedError("stage", failures)

    monkeypatch.setattr("torch.distributed.run.main", fail)
    assert launch({"ranks": len(ranks)}) == status


@pytest.mark.deep
@pytest.mark.slow
def test_ranks_that_are_asked_to_stop_save_and_say_so(prepared: Prepared, caplog: pytest.LogCaptureFixture) -> None:
    values, data = prepared
    job = {**values, "run": "stopped", "training": {**values["training"], "max_steps": 100_000, "save_every": 5}}
    folder = Path(values["store"]) / "runs" / "stopped"

    def stop() -> None:
        wait_until(lambda: (folder / "checkpoint-last").exists())
        stage = the_stage()
        for pid in [stage, *descendants(stage)]:
            os.kill(pid, signal.SIGTERM)

    with (
        meanwhile(stop),
        caplog.at_level(logging.INFO, logger="stage"),
        pytest.raises(Preempted, match="run this again to continue"),
    ):
        run("train", {"job": job, "data": data}, 2)
    newest = max(path.name for path in (folder / "checkpoints").iterdir())
    step = records(Path(values["store"]), "train", "runs/stopped")[-1]["step"]
    assert newest == f"step-{step:08d}", "saved where it stopped"
    said = [record.getMessage() for record in caplog.records if "asked to stop" in record.getMessage()]
    assert said == [f"asked to stop: saved at step {step} of 100000; run it again to continue"]


@pytest.mark.deep
@pytest.mark.slow
def test_a_rank_that_is_killed_takes_the_others_with_it_and_is_a_crash(prepared: Prepared) -> None:
    values, data = prepared
    job = {**values, "run": "killed", "training": {**values["training"], "max_steps": 100_000}}
    found: list[int] = []

    def kill() -> None:
        wait_until(lambda: (Path(values["store"]) / "runs" / "killed" / "metrics.jsonl").exists())
        found.extend(descendants(the_stage()))
        os.kill(second_of(found), signal.SIGKILL)

    with (
        meanwhile(kill),
        pytest.raises(StageCrashed, match=r"stage train (was killed by signal 9|exited with status 1)"),
    ):
        run("train", {"job": job, "data": data}, 2)
    assert len(found) >= 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in found))


@pytest.mark.deep
@pytest.mark.slow
def test_a_rank_that_is_killed_before_the_ranks_have_met_is_named(prepared: Prepared) -> None:
    values, data = prepared
    command = "trainer.pipelines.worker --rank"

    def kill() -> None:
        wait_until(lambda: sum(command in command_line(pid) for pid in descendants(os.getpid())) == 2)
        ranks = [pid for pid in descendants(os.getpid()) if command in command_line(pid)]
        os.kill(second_of(ranks), signal.SIGKILL)

    with (
        meanwhile(kill),
        pytest.raises(StageCrashed, match="killed by signal 9: RankLost: rank 1 of 2 was killed by signal 9"),
    ):
        run("train", {"job": {**values, "run": "early"}, "data": data}, 2)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_suspended_is_told_by_the_others(prepared: Prepared) -> None:
    values, data = prepared
    job = {**values, "run": "suspended", "training": {**values["training"], "max_steps": 100_000}}

    def suspend() -> None:
        wait_until(lambda: (Path(values["store"]) / "runs" / "suspended" / "metrics.jsonl").exists())
        os.kill(second_of(descendants(the_stage())), signal.SIGSTOP)

    with (
        meanwhile(suspend),
        pytest.raises(StageCrashed, match=r"RankLost: rank 1 of 2 \(.*\) is lost: .*, or it is suspended"),
    ):
        run("train", {"job": job, "data": data}, 2)


@pytest.mark.deep
@pytest.mark.slow
def test_bad_input_on_several_ranks_is_raised_once_as_it_is(prepared: Prepared) -> None:
    values, data = prepared
    job = {**values, "run": "refused", "training": {**values["training"], "learning_rate": 1e-3, "global_batch": 9}}
    with pytest.raises(PipelineError, match="global_batch 9 does not divide among 2 ranks"):
        run("train", {"job": job, "data": data}, 2)
