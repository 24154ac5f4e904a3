"""Instruction tuning with the fine-tuning flow and its command."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.finetune import finetune
from tests.flows.conftest import flow_run_of
from tests.flows.looking import artifacts, latest_run, task_runs, task_states
from tests.processes import Ended, cores
from tests.support import lasting_digests, write_config
from tests.trainer.chats import chat_job, chat_values

pytestmark = pytest.mark.slow


@pytest.mark.deep
def test_it_is_tuned_shown_and_found_done_the_second_time(
    chats: Path, llama: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    changes = {"run": "chats", "training__epochs": 1, "promotion": {"name": "answers", "threshold": 9.0}}
    with cores(1):
        state = finetune(chat_job(chats, tmp_path / "store", llama, **changes), return_state=True)
    assert state.name == "Completed"
    outcome, flow_run = state.result(), flow_run_of(state)
    assert outcome.promotion.passed and outcome.evaluation.figures().keys() == {"loss", "perplexity", "bits_per_byte"}
    names = list(task_runs(flow_run, "promote"))
    assert names == ["preflight", "encode", "plan-steps", "train", "evaluate", "report", "judge", "promote"]
    keyed = {artifact.key: artifact for artifact in artifacts(flow_run) if artifact.key}
    assert re.search(r"windows of 256 tokens, [\d.]+% full", keyed["labelled-data"].description or "")
    assert "answer tokens" in json.loads(str(keyed["labelled-data"].data))[0]

    before = lasting_digests(tmp_path / "store")
    config = write_config(tmp_path / "job.yaml", chat_values(chats, tmp_path / "store", llama, **changes))
    ended = command("finetune", config)
    assert ended.status == 0, ended.stderr
    assert lasting_digests(tmp_path / "store") == before
    states = task_states(latest_run("finetune"), "judge")
    assert [states[name] for name in ("encode", "train", "evaluate", "report")] == ["Reused"] * 4
    assert "validation loss" in ended.stdout and "### " not in ended.stdout and "Which parameters" in ended.stdout


@pytest.mark.deep
def test_a_dry_run_looks_at_the_conversations_and_says_what_is_wrong_with_one(
    chats: Path, llama: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    values = chat_values(chats, tmp_path / "store", llama)
    config = write_config(tmp_path / "job.yaml", values)
    ended = command("finetune", config, "--dry-run")
    assert ended.status == 0, ended.stderr
    assert "metrics         loss, perplexity, bits_per_byte" in ended.stdout
    assert re.search(r"^checked +all \d+ conversations$", ended.stdout, re.MULTILINE)
    ended = command("finetune", config, "--dry-run", "data.packing=maybe", "data.contxt=9")
    assert ended.status == 2
    assert "data.contxt" in ended.stderr and "data.packing" in ended.stderr and "text_columns" not in ended.stderr
