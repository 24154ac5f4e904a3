"""Whether each machine has the same copy of a pretrained model."""

import hashlib
from pathlib import Path

import pytest

from tests.depth import once
from tests.hub import serve_model
from tests.processes import Ended, free_port, start_module, start_warm

pytestmark = pytest.mark.slow


def each_alone(ranks: int) -> dict[str, str]:
    """The environment of ranks that are each on a machine of its own."""
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {**group, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1"}


def compare(said: Path, folders: list[Path], local_ranks: list[int]) -> list[Ended]:
    """Compare folders, each as one rank has it."""
    common, running = each_alone(len(folders)), []
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


@pytest.mark.deep
def test_every_rank_loads_a_model_of_the_hub_as_it_was_when_the_first_one_named_the_run(
    folders: list[Path], tmp_path: Path
) -> None:
    (folders[1] / "model.safetensors").write_bytes(b"another")
    with serve_model(folders[0], "someone/words", "1" * 40, changed=(folders[1], "2" * 40)) as address:
        common, running = {**each_alone(2), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}, []
        for rank in ("0", "1"):
            env = {**common, "RANK": rank, "LOCAL_RANK": "0", "HF_HOME": str(tmp_path / f"hub-{rank}")}
            words = (tmp_path / "store", "someone/words")
            running.append(start_module(tmp_path / "said" / rank, "tests.trainer.training.fetching", *words, env=env))
        ended = [rank.wait() for rank in running]
    assert [rank.stdout for rank in ended] == [f"{hashlib.sha256(b'weights').hexdigest()}\n"] * 2, ended
