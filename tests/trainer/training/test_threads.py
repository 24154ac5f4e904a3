"""The number of threads: heeded where it is asked for, kept when a run is continued, told where it cannot be."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from tests import ROOT
from tests.depth import once
from tests.processes import Ended, Running, start_warm
from tests.support import cpu_runtime, final_bytes, only_run, small_values, steps_recorded, write_config
from trainer.common.errors import EXIT_PREEMPTED, ConfigError
from trainer.common.process import threads_asked_for
from trainer.records.plans import PreparedData
from trainer.training.checkpoint import Computed
from trainer.training.runtime import keep_threads

UNSAID, ONE, TWO = {"OMP_NUM_THREADS": ""}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}


class Place:
    """A store with the data, and a small job there that is trained by processes on other numbers of threads and
    cores.
    """

    def __init__(self, raw: Path, prepared: Path, folder: Path) -> None:
        self.store, self._said = Path(shutil.copytree(prepared, folder / "store")), folder / "said"
        changes = {"max_steps": 16, "save_every": 1, "context": 32, "global_batch": 32}
        values = small_values(raw, self.store, **{f"training__{name}": value for name, value in changes.items()})
        self._config = write_config(folder / "job.yaml", values)

    def start(self, env: Mapping[str, str], count: int) -> Running:
        return start_warm(self._said, "trainer.__main__", self._config, env=env, count=count)

    def train(self, env: Mapping[str, str], count: int = 2) -> Ended:
        """Train to the end."""
        ended = self.start(env, count).wait()
        assert ended.status == 0, ended.stderr
        return ended

    def begin(self, env: Mapping[str, str], count: int = 2) -> None:
        """Train some steps, and stop."""
        ended = self.start(env, count).send_when(signal.SIGTERM, lambda: steps_recorded(self.store) >= 4)
        assert ended.status == EXIT_PREEMPTED, ended.stderr

    def threads(self) -> int:
        """What the run's last process has recorded."""
        return int(json.loads((self.store / only_run(self.store) / "environment.json").read_text())["threads"])


@pytest.fixture
def place(raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path) -> Place:
    return Place(raw, prepared[0], tmp_path)


@pytest.fixture(scope="module")
def with_one(raw: Path, prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights that an uninterrupted run on one thread ends with."""
    place = Place(raw, prepared[0], tmp_path_factory.mktemp("one"))
    place.train(ONE)
    assert place.threads() == 1
    return final_bytes(place.store)


@pytest.mark.deep
@pytest.mark.slow
def test_another_number_of_threads_gives_other_bits(place: Place, with_one: bytes) -> None:
    place.train(TWO)
    assert place.threads() == 2
    assert final_bytes(place.store) != with_one, "else the tests below would show nothing"


@pytest.mark.deep
@pytest.mark.slow
def test_a_run_keeps_its_number_of_threads_where_another_is_usual(place: Place, with_one: bytes) -> None:
    place.begin(UNSAID, count=1)
    ended = place.train(UNSAID, count=2)
    assert place.threads() == 1
    assert final_bytes(place.store) == with_one
    assert "threads" not in ended.stderr


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "reason"),
    [(UNSAID, "a rank has no more cores; OMP_NUM_THREADS=2 keeps them, slowly"), (ONE, "OMP_NUM_THREADS is set")],
)
def test_where_the_threads_cannot_be_kept_a_warning_names_both_numbers(
    env: Mapping[str, str], reason: str, place: Place
) -> None:
    place.begin(TWO)
    ended = place.train(env, count=1)
    assert place.threads() == 1
    assert f"was computed with 2 threads, from now on with 1 ({reason})" in ended.stderr
    assert "only up to rounding" in ended.stderr


def test_a_containers_limit_lets_a_run_keep_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.common.process.cpu_quota", lambda: 1.0)
    monkeypatch.setattr("trainer.training.runtime.usable_cores", lambda: 2)
    monkeypatch.setattr("trainer.training.runtime.threads_asked_for", lambda: None)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    runtime = cpu_runtime()
    try:
        keep_threads(Computed(threads=2, ranks=1), runtime)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("said", "expected"), [("", None), ("3", 3), ("4,2", 4)])
def test_the_threads_are_those_that_are_asked_for(
    said: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert threads_asked_for() == expected


@pytest.mark.parametrize("said", ["many", "0", "-1", "1.5"])
def test_what_is_no_number_of_threads_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    with pytest.raises(
        ConfigError, match=f"the environment variable OMP_NUM_THREADS is '{said}', expected a number of threads"
    ):
        threads_asked_for()


@pytest.mark.parametrize(
    ("given", "expected"), once(({}, None), ({"OMP_NUM_THREADS": "1"}, 1)), ids=["by torchrun", "by somebody"]
)
def test_what_a_launcher_sets_by_itself_nobody_asked_for(given: dict[str, str], expected: int | None) -> None:
    look = "import os; from trainer.common.process import threads_asked_for as f; os.write(1, f'{f()} '.encode())"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | given
    said = subprocess.run([*command, sys.executable, "-c", look], env=env, cwd=ROOT, capture_output=True, check=True)
    assert said.stdout.decode().split() == [str(expected)] * 2
