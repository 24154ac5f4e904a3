"""Keys that are put in order, slice after slice: what is found in them is all that there is, and damage is seen."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.curating import curated_job, decide, prose, write_documents
from trainer.common.errors import StorageError
from trainer.config.jobs import PrepareJob
from trainer.curation.shared_keys import Group, Slice, read_slice
from trainer.store.storage import Store


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrepareJob:
    """A job whose keys are looked through in several slices, of several groups of units."""
    monkeypatch.setattr("trainer.curation.units.UNIT_BYTES", 2000)
    monkeypatch.setattr("trainer.curation.shared_keys.SLICE_KEYS", 90)
    texts = [" ".join(prose(seed, 60)) for seed in range(20)]
    for number in range(8):
        write_documents(
            tmp_path / "raw" / f"{number}.jsonl", [*texts[2 * number : 2 * number + 4], "shared words " * 9]
        )
    return curated_job(tmp_path / "store", {"one": f"{tmp_path}/raw/*.jsonl"}, {"near": {}})


def decided(store: Path) -> bytes:
    (found,) = store.glob("decisions/*/one.npz")
    return found.read_bytes()


def test_nothing_of_the_order_is_left(job: PrepareJob) -> None:
    decide(job)
    store = Path(job.store)
    assert len(list(store.rglob("sharing-*.npz"))) > 4
    assert not list(store.rglob("*.rows")) and not list(store.rglob("keys/*.npz"))


@pytest.mark.parametrize(("change", "problem"), [("flip", "damaged"), ("cut", "damaged"), ("lose", "gone")])
def test_rows_that_are_damaged_or_gone_are_told_and_made_anew(
    job: PrepareJob, monkeypatch: pytest.MonkeyPatch, change: str, problem: str
) -> None:
    store = Path(job.store)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.curation.deciding.forget_order", lambda *where: None)
        decide(job)
    expected = decided(store)
    shutil.rmtree(store / "decisions")
    count = max(len(list(folder.glob("sharing-*.npz"))) for folder in (store / "measures" / "pairs").iterdir())
    for sharing in store.rglob("sharing-*.npz"):
        sharing.unlink()
    rows = max(store.rglob("*.rows"), key=lambda path: path.stat().st_size)
    intact = rows.read_bytes()
    if change == "lose":
        rows.unlink()
    else:
        rows.write_bytes(intact[:-1] if change == "cut" else bytes([intact[0] ^ 1]) + intact[1:])
    folder, group = str(rows.parents[1].relative_to(store)), Group(*map(int, rows.stem.split("-")))
    with pytest.raises(StorageError, match=rf"{rows.name} is {problem}; start the command again"):
        for number in range(count):
            read_slice(Store(job.store), folder, [group], Slice(number, count))
    decide(job)
    assert decided(store) == expected
