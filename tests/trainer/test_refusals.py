"""Bad input on the command line: exit status 2, one message that says what is wrong and where, and nothing changed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.processes import Ended, start_module, start_warm
from tests.support import SMALL_MODEL, digests, only_run, records, small_values, write_config
from tests.trainer.small_jobs import Finished
from trainer.common.errors import EXIT_BAD_INPUT

PUBLISHED = ("tokenizers", "shards", "runs")


class Refusal(NamedTuple):
    """A change that spoils the job or its raw files, and the kind and the parts of the message about it."""

    spoil: Callable[[dict[str, Any], Path], None]
    kind: str
    says: tuple[str, ...]


def setting(path: str, value: Any) -> Callable[[dict[str, Any], Path], None]:
    def spoil(values: dict[str, Any], raw: Path) -> None:
        *folders, key = path.split(".")
        place: Any = values
        for name in folders:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[key] = value

    return spoil


def raw_file(name: str, content: bytes, *changes: tuple[str, Any]) -> Callable[[dict[str, Any], Path], None]:
    def spoil(values: dict[str, Any], raw: Path) -> None:
        (raw / name).write_bytes(content)
        for path, value in changes:
            setting(path, value)(values, raw)

    return spoil


def appended(name: str, content: bytes) -> Callable[[dict[str, Any], Path], None]:
    return lambda values, raw: raw_file(name, (raw / name).read_bytes() + content)(values, raw)


def epochs(values: dict[str, Any], raw: Path) -> None:
    del values["training"]["max_steps"]
    values["training"] |= {"epochs": 1, "warmup_steps": 10_000}


PREFLIGHT = {
    "missing corpus": Refusal(
        setting("data.corpora.0.paths", ["/nowhere/text.txt"]), "CorpusError",
        ("'code'", "/nowhere/text.txt", "check the path")
    ),
    "glob without a match": Refusal(
        setting("data.corpora.1.paths", ["/nowhere/**/*.md"]), "CorpusError",
        ("'docs'", "/nowhere/**/*.md", "no file matches")
    ),
    "empty corpus": Refusal(raw_file("docs.jsonl", b""), "CorpusError", ("'docs' is empty", "1 files, 0 bytes")),
    "misspelt model key": Refusal(
        setting("model.config", {**SMALL_MODEL, "n_heads": 2}), "ConfigError",
        ("model.config", "'n_heads'", "mean 'n_head'")
    ),
    "context beyond positions": Refusal(
        setting("training.context", 64), "ConfigError", ("training.context is 64", "the model has 32 positions")
    ),
    "heads that do not divide": Refusal(
        setting("model.config", {**SMALL_MODEL, "n_head": 5}), "ConfigError", ("gpt2", "divisible", "32", "5")
    ),
    "warm-up beyond the epochs": Refusal(epochs, "ConfigError",
    ("training.warmup_steps is 10000", "the whole run has")),
    "a batch that micro-batches do not divide": Refusal(
        setting("training.micro_batch", 3), "ConfigError", ("micro_batch 3 does not divide global_batch 8",)
    ),
    "a negative learning rate": Refusal(
        setting("training.learning_rate", -1e-3), "ConfigError", ("training.learning_rate", "expected more than 0")
    ),
    "a warm-up beyond the steps": Refusal(
        setting("training.warmup_steps", 7), "ConfigError", ("warmup_steps 7 is beyond max_steps 6",)
    ),
    "fp16 without a GPU": Refusal(
        setting("training.precision", "fp16"), "DeviceError",
        ("the job's precision is fp16", "no GPU", "use fp32 or bf16")
    ),
    "more processes than cores": Refusal(
        lambda values, raw: values["training"].update(global_batch=4096, processes=4096), "DeviceError",
        ("the job asks for 4096 processes", "cores"),
    ),
    "a store below a file": Refusal(
        lambda values, raw: values.update(store=f"{raw}/docs.jsonl/store"), "StorageError",
        ("docs.jsonl", "choose a folder")
    ),
}  # fmt: skip

BEFORE_TRAINING = {
    "invalid UTF-8": Refusal(
        raw_file("code/zz.py", b"x = 1\ny = '\xff'\n"), "RecordError",
        ("zz.py: byte 11 (0xff)", "not valid UTF-8", "convert it"),
    ),
    "broken JSON line": Refusal(appended("docs.jsonl", b'{"text": \n'), "RecordError",
    ("docs.jsonl: line", "not valid JSON")),
    "missing field": Refusal(
        appended("docs.jsonl", b'{"txt": "x"}\n'), "RecordError", ("docs.jsonl: line", "no field 'text'", "it has txt")
    ),
    "a corpus smaller than one window": Refusal(
        lambda values, raw: raw_file("docs.jsonl", b'{"text": "a b"}\n')(values, raw), "CorpusError",
        ("'docs' is smaller than one window", "training.context is 32", "use more text"),
    ),
}  # fmt: skip


@pytest.fixture
def own_raw(raw: Path, tmp_path: Path) -> Path:
    """Raw files of the test's own, which it may spoil."""
    return Path(shutil.copytree(raw, tmp_path / "raw"))


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


def check(ended: Ended, refusal: Refusal) -> None:
    message = message_of(ended)
    assert message.startswith(f"{refusal.kind}: ")
    missing = [part for part in refusal.says if part not in message]
    assert not missing, message


@pytest.mark.parametrize("name", [*PREFLIGHT, *BEFORE_TRAINING])
def test_a_job_that_cannot_work_is_refused_before_any_training_and_leaves_what_is_published(
    name: str, own_raw: Path, published: Path, tmp_path: Path
) -> None:
    refusal = (PREFLIGHT | BEFORE_TRAINING)[name]
    values = small_values(own_raw, published, training__seed=5)
    refusal.spoil(values, own_raw)
    before = digests(published, *PUBLISHED)
    ended = start_warm(tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values)).wait()
    check(ended, refusal)
    after = digests(published, *PUBLISHED)
    assert name in BEFORE_TRAINING or after == before, "a preflight makes nothing"
    assert {path: after.get(path) for path in before} == before
    assert digests(published, "runs") == {path: digest for path, digest in before.items() if path.startswith("runs/")}


def test_a_bad_line_is_named_by_its_number(own_raw: Path, published: Path, tmp_path: Path) -> None:
    lines = (own_raw / "docs.jsonl").read_text().count("\n")
    values = small_values(own_raw, published)
    appended("docs.jsonl", b"\n[1]\n")(values, own_raw)
    ended = start_warm(tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values)).wait()
    assert f"docs.jsonl: line {lines + 2}: expected a JSON object" in message_of(ended)


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


def test_a_damaged_list_of_checkpoints_is_refused_by_its_files(published: Path, raw: Path, tmp_path: Path) -> None:
    run = published / only_run(published)
    shutil.rmtree(run / "final")
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.json").unlink()
    job = json.loads((run / "config.json").read_text())["job"]
    values = {**job, "store": str(published)}
    ended = start_warm(tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values)).wait()
    message = message_of(ended)
    assert message.startswith("ArtifactError: ")
    assert "state.json is missing" in message
    assert records(published, "train"), "the record of the run is still there"
