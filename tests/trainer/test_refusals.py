"""Bad input on the command line: exit status 2, one message that says what is wrong and where, and nothing changed."""

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.processes import Ended, start_module, start_warm
from tests.support import SMALL_MODEL, digests, only_run, small_values, write_config
from tests.trainer.small_jobs import Finished
from trainer.common.errors import EXIT_BAD_INPUT

PUBLISHED = ("tokenizers", "shards", "runs")


class Refusal(NamedTuple):
    """Changes that spoil the job or its raw files, and the kind and the parts of the message about them."""

    changes: dict[str, Any]
    files: dict[str, bytes]
    kind: str
    says: tuple[str, ...]


PREFLIGHT = {
    "missing corpus": Refusal(
        {"data__corpora": [{"name": "code", "paths": ["/nowhere/text.txt"]}]}, {}, "CorpusError",
        ("'code'", "/nowhere/text.txt", "check the path"),
    ),
    "misspelt model key": Refusal(
        {"model__config": {**SMALL_MODEL, "n_heads": 2}}, {}, "ConfigError",
        ("model.config", "'n_heads'", "mean 'n_head'"),
    ),
    "a negative learning rate": Refusal(
        {"training__learning_rate": -1e-3}, {}, "ConfigError", ("training.learning_rate", "expected more than 0"),
    ),
    "fp16 without a GPU": Refusal(
        {"training__precision": "fp16"}, {}, "DeviceError",
        ("the job's precision is fp16", "no GPU", "use fp32 or bf16"),
    ),
}  # fmt: skip
"""One of each that is looked at before anything is made; tests of each have the others."""

BEFORE_TRAINING = {
    "invalid UTF-8": Refusal(
        {}, {"code/zz.py": b"x = 1\ny = '\xff'\n"}, "RecordError",
        ("zz.py: byte 11 (0xff)", "not valid UTF-8", "convert it"),
    ),
    "a corpus smaller than one window": Refusal(
        {}, {"docs.jsonl": b'{"text": "a b"}\n'}, "CorpusError",
        ("'docs' is smaller than one window", "training.context is 32", "use more text"),
    ),
}  # fmt: skip


@pytest.fixture
def published(stocked: Path, finished: Finished) -> Path:
    """A store that holds a finished run as well."""
    shutil.copytree(finished.store / finished.run, stocked / finished.run)
    return stocked


def message_of(ended: Ended, status: int = EXIT_BAD_INPUT) -> str:
    """The one message with which a command refused its input, or met what did not pass in time."""
    assert ended.status == status, ended
    assert "Traceback" not in ended.stderr
    messages = [line for line in ended.stderr.splitlines() if re.match(r"\w+Error: ", line)]
    assert len(messages) == 1, ended.stderr
    assert ended.stdout == ""
    return messages[0]


@pytest.mark.parametrize("name", [*PREFLIGHT, *BEFORE_TRAINING])
def test_a_job_that_cannot_work_is_refused_before_any_training_and_leaves_what_is_published(
    name: str, raw: Path, published: Path, tmp_path: Path
) -> None:
    refusal = (PREFLIGHT | BEFORE_TRAINING)[name]
    own = Path(shutil.copytree(raw, tmp_path / "raw"))
    values = small_values(own, published, training__seed=5, **refusal.changes)
    for file, content in refusal.files.items():
        (own / file).write_bytes(content)
    before = digests(published, *PUBLISHED)
    ended = start_warm(tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values)).wait()
    message = message_of(ended)
    assert message.startswith(f"{refusal.kind}: ")
    assert [part for part in refusal.says if part not in message] == [], message
    after = digests(published, *PUBLISHED)
    assert name in BEFORE_TRAINING or after == before, "a preflight makes nothing"
    assert {path: after.get(path) for path in before} == before
    assert digests(published, "runs") == {path: digest for path, digest in before.items() if path.startswith("runs/")}


def test_a_folder_of_another_run_is_refused_with_the_difference(published: Path, raw: Path, tmp_path: Path) -> None:
    run = only_run(published).removeprefix("runs/")
    values = small_values(raw, published, training__learning_rate=0.25, run=run)
    before = digests(published, *PUBLISHED)
    ended = start_warm(tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values)).wait()
    message = message_of(ended)
    assert message.startswith("RunError: ")
    assert "training.learning_rate: 0.001 -> 0.25" in message
    assert "training.max_steps: 64 -> 6" in message
    assert "Set another `run`" in message
    assert digests(published, *PUBLISHED) == before


def test_a_misspelt_key_is_refused_on_the_real_command_line(raw: Path, published: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, published, training__warmup_step=2))
    ended = start_module(tmp_path / "said", "trainer", config).wait()
    assert message_of(ended) == (
        f"ConfigError: configuration {config}: training.warmup_step: unknown key; did you mean 'warmup_steps'?"
    )
