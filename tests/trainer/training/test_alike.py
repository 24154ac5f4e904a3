"""Whether each machine has the same copy of a pretrained model."""

from pathlib import Path

import pytest

from tests.depth import once
from tests.processes import Ended, free_port, start_warm

pytestmark = pytest.mark.slow


def compare(said: Path, folders: list[Path], local_ranks: list[int]) -> list[Ended]:
    """Compare folders, each as one rank has it."""
    common = {"WORLD_SIZE": str(len(folders)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1"}
    running = []
    for rank, (folder, local_rank) in enumerate(zip(folders, local_ranks, strict=True)):
        env = {**common, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        running.append(start_warm(said / str(rank), "tests.trainer.training.comparing", folder, env=env))
    return [rank.wait() for rank in running]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """The same model in two folders."""
    made = [tmp_path / name for name in ("one", "other")]
    for folder in made:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")
    return made


@pytest.mark.parametrize("file", once("model.safetensors", "config.json"))
def test_a_machine_with_another_model_under_the_same_name_is_refused(
    folders: list[Path], tmp_path: Path, file: str
) -> None:
    (folders[1] / file).write_bytes(b"another")
    ended = compare(tmp_path / "said", folders, [0, 0])
    assert [rank.status for rank in ended] == [2, 2], ended
    assert (
        f"model.pretrained.{file}: " in ended[0].stderr and "copy the same folder to every machine" in ended[0].stderr
    )
    assert ended[0].stderr.count("model.pretrained.") == 1 and "(rank 1) differs from" in ended[0].stderr


def test_the_same_model_is_read_once_a_machine(folders: list[Path], tmp_path: Path) -> None:
    assert [rank.status for rank in compare(tmp_path / "said", [folders[0]] * 2, [0, 0])] == [0, 0]
    assert [rank.status for rank in compare(tmp_path / "again", folders, [0, 1])] == [0, 0], (
        "rank 1 is on the same machine"
    )
