"""Preparation killed at an instant: nothing half-made is used, nothing finished is done again, the bytes are the
same.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.depth import once
from tests.trainer.preparing import SHARDS, Stamp, content, job_of, leftovers, run, set_folder, stamps
from trainer.config.jobs import PrepareJob
from trainer.store.manifest import MANIFEST

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.trainer.made import prepare
from trainer.common.progress import Progress
from trainer.config.jobs import PrepareJob

def show(update):
    finished = len(list(Path(job.store).glob("shards/*/shard-*.json")))
    if update.title == sys.argv[2] and update.done > 0 and finished >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

job = PrepareJob.model_validate_json(sys.argv[1])
prepare(job, Progress(show, interval=0.0))
"""


@pytest.fixture
def expected(code: Path, clean: Path) -> dict[str, object]:
    """The shard set as a preparation without interruption makes it."""
    job = job_of(code, clean)
    return content(set_folder(job, run(job)))


def prepare_and_be_killed(job: PrepareJob, title: str, shards: int) -> None:
    """Run a preparation that kills itself when some work shows progress and a number of shards is finished."""
    command = [sys.executable, "-c", KILLED, job.model_dump_json(), title, str(shards)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == -9, ended.stderr


def stamps_of_finished_shards(store: Path) -> dict[str, Stamp]:
    """Stamps of the five files of each shard whose record was written."""
    numbers = [path.stem.removeprefix("shard-") for path in store.glob("shards/*/shard-*.json")]
    return {name: stamp for name, stamp in stamps(store / "shards").items() if name.rpartition("-")[2][:5] in numbers}


@pytest.mark.deep
@pytest.mark.parametrize(
    "kills",
    once(
        [("tokenize code", 2)],
        [("tokenizer", 0)],
        [("tokenize code", 0)],
        [("tokenize code", SHARDS)],
        [("tokenize code", 1), ("tokenize code", 3)],
    ),
)
def test_a_killed_preparation_is_completed_to_the_same_bytes(
    kills: list[tuple[str, int]], code: Path, expected: dict[str, object], tmp_path: Path
) -> None:
    job = job_of(code, tmp_path, workers=2)
    for title, shards in kills:
        prepare_and_be_killed(job, title, shards)
    assert not list(tmp_path.glob(f"shards/*/{MANIFEST}"))
    finished = stamps_of_finished_shards(tmp_path)
    assert len(finished) >= 5 * kills[-1][1]
    folder = set_folder(job, run(job))
    assert content(folder) == expected
    assert finished.items() <= stamps(tmp_path / "shards").items()
    assert leftovers(tmp_path) == []
