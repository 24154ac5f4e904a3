"""Published shards that were damaged: found, said, and repaired to the same bytes with no more work than needed."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from tests.support import flip_bit
from tests.trainer.preparing import content, job_of, leftovers, run, set_folder, stamps, write_old
from trainer.data.shards import KIND
from trainer.records.sealed import sealed_bytes
from trainer.store.artifact_files import find_damage
from trainer.store.manifest import MANIFEST, read_manifest
from trainer.store.storage import Store


def test_damage_of_every_kind_is_found_and_repaired_to_the_same_bytes(
    code: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(code, own)
    folder = set_folder(job, run(job))
    before, whole = content(folder), stamps(folder)
    damaged = ["shard-00000.bin", "validation-00001.idx", "shard-00001.sums", "shard-00002.json", "sources.json"]
    for name in damaged:
        flip_bit(folder / name)
    (folder / "shard-00003.bin").unlink()
    with caplog.at_level(logging.WARNING):
        prepared = run(job.model_copy(update={"verify": True}))
    assert content(folder) == before
    assert not prepared.shards[0].reused
    for name in [*damaged, "shard-00003.bin"]:
        assert f"{folder}/{name} " in caplog.text
    kept = [name for name in whole if "00004" in name]
    assert [stamps(folder)[name] for name in kept] == [whole[name] for name in kept]
    assert leftovers(own) == []


def test_a_flipped_count_in_a_record_does_not_become_the_truth(code: Path, own: Path) -> None:
    job = job_of(code, own)
    folder = set_folder(job, run(job))
    before = content(folder)
    record = folder / "shard-00001.json"
    tokens = before[MANIFEST]["details"]["shard_tokens"][1]
    changed = record.read_text().replace(f'"tokens": {tokens}', f'"tokens": {tokens + 1}')
    assert changed != record.read_text()
    record.write_text(changed)
    run(job.model_copy(update={"verify": True}))
    assert content(folder) == before


@pytest.mark.parametrize("damage", ["missing", "cut short", "one bit"])
def test_a_manifest_that_is_missing_or_damaged_is_made_anew_without_tokenizing(
    damage: str, code: Path, own: Path
) -> None:
    job = job_of(code, own)
    folder = set_folder(job, run(job))
    before, whole = content(folder), stamps(folder)
    if damage == "missing":
        (folder / MANIFEST).unlink()
    elif damage == "cut short":
        (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-5])
    else:
        flip_bit(folder / MANIFEST)
    run(job)
    assert content(folder) == before
    shards = [name for name in whole if name not in (MANIFEST, "sources.json")]
    assert [stamps(folder)[name] for name in shards] == [whole[name] for name in shards]


def test_published_shards_stay_intact_when_a_set_that_shares_files_with_them_is_damaged(
    code: Path, own: Path, tmp_path: Path
) -> None:
    raw = Path(shutil.copytree(code, tmp_path / "code"))
    job = job_of(raw, own)
    first = run(job)
    write_old(raw / "new.py", "print('something new')\n")
    second = run(job)
    (set_folder(job, first) / "shard-00001.bin").unlink()
    store = Store(str(own))
    for shards in second.shards:
        manifest = read_manifest(store, shards.key, KIND)
        assert manifest is not None
        assert find_damage(store, shards.key, manifest) == {}


@pytest.mark.parametrize("damage", ["one bit", "another's", "no checksum"])
def test_what_is_remembered_of_raw_files_loses_no_document_when_it_is_damaged(
    damage: str, code: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(code, own)
    folder = set_folder(job, run(job))
    before = content(folder)
    (memory,) = (own / "cache").glob("seen-*.json")
    remembered = memory.read_bytes()
    values = json.loads(remembered)
    path, entry = next((path, entry) for path, entry in values["files"].items() if entry[0] > 256)
    start, end, size, sha256 = entry[2][-1]
    entry[2][-1] = [start, end ^ 128, size, sha256]
    assert 0 < end ^ 128 != entry[0]
    if damage == "no checksum":
        del values["checksum"]
    elif damage == "another's":
        values = json.loads(sealed_bytes("cache/seen-other-0123456789abcdef.json", values))
    memory.write_text(json.dumps(values))
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING):
        run(job)
    assert content(folder) == before
    assert f"{memory} is damaged" in caplog.text and "reading all raw files again" in caplog.text
    assert memory.read_bytes() == remembered
    assert path in values["files"]
