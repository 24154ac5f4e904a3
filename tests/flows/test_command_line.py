"""The flows' command lines: help, dry runs, results, and refusals."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flows import FLOW_COMMANDS
from tests.depth import once
from tests.flows.conftest import Done, copy_data
from tests.processes import Ended, alive, descendants, finish, stages, start_module, wait_until
from tests.support import digests, final_bytes, only_run, steps_recorded, write_config
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED


def message_of(ended: Ended) -> str:
    """The single message at the end of the output of a command that refused its input."""
    assert ended.status == EXIT_BAD_INPUT, ended
    assert "Traceback" not in ended.stderr + ended.stdout
    messages = [line for line in ended.stderr.splitlines() if re.match(r"\w+Error: ", line)]
    assert len(messages) == 1, ended.stderr
    return messages[0]


@pytest.mark.parametrize("name", FLOW_COMMANDS)
def test_the_module_of_a_flow_is_its_command(name: str, command: Callable[..., Ended]) -> None:
    module = FLOW_COMMANDS[name].flow.rpartition(".")[0]
    assert command(module, "--help") == command(name, "--help")


def test_a_dry_run_prints_the_plan_and_publishes_nothing(
    config: Path, command: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = command("flows.data_to_model", config, "--dry-run", "training.max_steps=123")
    assert ended.status == 0, ended.stderr
    for row in (r"code +\d+ ", r"docs +1 ", r"model +[\d,]+ parameters", r"steps +about 123 on 1 rank", r"disk +about"):
        assert re.search(row, ended.stdout), ended.stdout
    assert "Windows and steps are estimates until the text is tokenized" in ended.stdout
    assert digests(tmp_path / "store") == {}
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".staging"]


@pytest.mark.parametrize("flow", once("evaluate_model", "promote", "rollback"))
def test_a_dry_run_on_a_store_that_is_not_there_says_so(
    flow: str, command: Callable[..., Ended], tmp_path: Path
) -> None:
    values: dict[str, Any] = {"store": str(tmp_path / "none")}
    values |= {
        "evaluate_model": {"checkpoint": "tiny"}, "promote": {"name": "words", "run": "tiny"},
        "rollback": {"name": "words"},
    }[flow]  # fmt: skip
    ended = command(f"flows.{flow}", write_config(tmp_path / "job.yaml", values), "--dry-run")
    assert message_of(ended) == f"StorageError: there is no store at {tmp_path / 'none'}; check the path"


def test_a_dry_run_of_a_preparation_says_how_much_text_there_is_and_starts_no_server(
    config: Path, command: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.work.start_loading", lambda: pytest.fail("it has begun"))
    ended = command("flows.prepare_data", config, "--dry-run")
    assert ended.status == 0, ended.stderr
    assert re.search(r"code: \d+ files, [\d.]+ KiB\n", ended.stdout)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("flow", "word", "says"),
    once(
        (
            "data_to_model",
            "training.lerning_rate=1",
            "training.lerning_rate: unknown key; did you mean 'learning_rate'?",
        ),
        ("data_to_model", "data.corpora.1.paths=[nowhere/*]", "corpus 'docs': no file matches 'nowhere/*'; check"),
        ("prepare_data", "data.corpora.0.paths=[/proc/self]", "'/proc/self' is a folder; list its files with"),
    ),
)
def test_a_bad_word_is_refused_before_a_server_is_asked(
    flow: str, word: str, says: str, config: Path, command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.work.start_loading", lambda: pytest.fail("it has begun"))
    assert says in message_of(command(f"flows.{flow}", config, word))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("module", ["flows.prepare_data", "trainer"])
def test_a_finished_job_whose_reader_has_left_ends_with_0(module: str, done: Done, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", done.job.model_dump(mode="json", exclude_unset=True))
    command = [sys.executable, "-m", module, config]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0, said


@pytest.mark.slow
def test_a_missing_checkpoint_is_refused(done: Done, command: Callable[..., Ended], tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", {"store": str(done.store), "checkpoint": "nobody"})
    assert "ArtifactError: no checkpoint 'nobody'" in message_of(command("flows.evaluate_model", config))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "times", "group"), once((signal.SIGTERM, 1, True), (signal.SIGTERM, 2, False), (signal.SIGINT, 2, True))
)
def test_a_pipeline_that_is_asked_to_stop_saves_leaves_no_process_and_continues_exactly(
    done: Done, config: Path, server: dict[str, str], tmp_path: Path, signum: signal.Signals, times: int, group: bool
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    running = start_module(tmp_path / "cancelled", "flows.train_model", config, "training.save_every=null", env=server)
    wait_until(lambda: steps_recorded(store) >= 3 or running.status() is not None)
    found = descendants(running.pid)
    assert len(stages(running.pid)) == 1, "the trainer"
    for _ in range(times):
        for pid in [running.pid, *found] if group else [running.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
        time.sleep(0.3)
    ended = running.wait()
    assert ended.status == EXIT_PREEMPTED, ended
    assert "Traceback" not in ended.stderr, ended
    wait_until(lambda: not any(alive(pid) for pid in found))
    (checkpoint,) = (store / only_run(store) / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{steps_recorded(store):08d}"
    (ended,) = finish(tmp_path / "continued", config)
    assert "continuing from" in ended.stderr
    assert final_bytes(store) == final_bytes(done.store)
