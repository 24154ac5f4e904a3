"""A trained tokenizer that was damaged or lost: the same bytes come back under its key, or nothing does."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.processes import finish
from tests.support import digests, failing_first, only_run, small_job, small_values, write_config, write_corpora
from tests.trainer.data.test_changed_raw import rot
from tests.trainer.made import prepare, prepare_tokenizer
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError, StorageError, TokenizerError
from trainer.common.progress import silent
from trainer.config.corpora import TokenizerConfig
from trainer.config.jobs import PrepareJob
from trainer.data import tokenizer_training
from trainer.kinds.pretraining.kind import find_prepared
from trainer.models.tokenizer import load_tokenizer
from trainer.records.plans import PreparedData
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

DAMAGES = ["tokenizer.json", "tokenizer_config.json", "manifest.json", "all of it"]


@pytest.fixture
def other_text(tmp_path: Path) -> Path:
    """Corpora of the same names, on whose text another tokenizer is trained."""
    folder = write_corpora(tmp_path / "other")
    for path in folder.rglob("*"):
        if path.is_file():
            text = "".join(f"{number * 7919} is a number\n" for number in range(3000))
            path.write_text(json.dumps({"text": text}) if path.suffix == ".jsonl" else text)
    return folder


@pytest.fixture
def trained(finished: Finished, tmp_path: Path) -> Path:
    """A store of the test's own with the finished run."""
    return Path(shutil.copytree(finished.store, tmp_path / "store"))


def tokenizer_of(store: Path) -> Path:
    (folder,) = (store / "tokenizers").iterdir()
    return folder


def damage(store: Path, what: str) -> dict[str, bytes]:
    """Damage a store's tokenizer; returns its files as they were."""
    folder = tokenizer_of(store)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if what in before:
        rot(folder / what, len(before[what]) // 2)
    else:
        shutil.rmtree(folder)
    return before


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepared_tokenizer(raw: Path, store: Path) -> ArtifactRef:
    return prepare_tokenizer(small_job(raw, store).preparation(), silent())


@pytest.mark.deep
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_tokenizer_is_put_back_from_a_checkpoint_though_the_text_is_another_today(
    what: str, trained: Path, other_text: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = damage(trained, what)
    with caplog.at_level(logging.WARNING):
        prepared_tokenizer(other_text, trained)
    after = content(tokenizer_of(trained))
    told = [json.loads(files.pop("manifest.json")) for files in (before, after)]
    assert after == before
    assert told[0]["files"] == told[1]["files"]
    assert "was restored from" in caplog.text
    caplog.clear()
    assert prepared_tokenizer(other_text, trained).reused
    assert not caplog.records


@pytest.mark.parametrize("what", ["tokenizer.json", "tokenizer_config.json"])
def test_where_the_manifest_is_intact_it_stays_as_it_is(what: str, trained: Path, raw: Path) -> None:
    before = damage(trained, what)
    prepared_tokenizer(raw, trained)
    assert content(tokenizer_of(trained)) == before


@pytest.mark.deep
def test_an_unfinished_run_goes_on_after_the_tokenizer_that_older_text_gave_it_was_damaged(
    raw: Path, other_text: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    prepared_tokenizer(other_text, store)
    config = write_config(tmp_path / "job.yaml", small_values(raw, store))

    def train() -> tuple[str, dict[str, str]]:
        finish(tmp_path / "said", config)
        final = digests(store / only_run(store) / "final")
        return only_run(store), {name: final[name] for name in ("model.safetensors", "tokenizer.json")}

    first = train()
    shutil.rmtree(store / first[0] / "final")
    damage(store, "tokenizer.json")
    assert train() == first


@pytest.mark.parametrize("what", DAMAGES)
def test_without_a_copy_the_same_text_gives_it_back(
    what: str, stocked: Path, raw: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = damage(stocked, what)
    with caplog.at_level(logging.INFO):
        prepared_tokenizer(raw, stocked)
    after = content(tokenizer_of(stocked))
    assert {name: data for name, data in after.items() if name != "manifest.json"} == {
        name: data for name, data in before.items() if name != "manifest.json"
    }
    assert "was rebuilt with the same content" in caplog.text


@pytest.mark.parametrize("what", ["tokenizer.json", "all of it"])
def test_without_a_copy_and_with_other_text_it_is_refused_and_the_store_stays(
    what: str, stocked: Path, other_text: Path
) -> None:
    damage(stocked, what)
    before = digests(stocked / "shards")
    with pytest.raises(ArtifactError, match=r"is damaged or lost.*it is needed by shards/.*Restore a copy") as refused:
        prepared_tokenizer(other_text, stocked)
    assert "choose another data.tokenizer.name" in str(refused.value)
    assert digests(stocked / "shards") == before
    job = small_job(other_text, stocked, data__tokenizer={"vocab_size": 300, "name": "another"})
    assert not prepare_tokenizer(job.preparation(), silent()).reused


def test_a_copy_that_somebody_puts_back_is_taken(stocked: Path, other_text: Path) -> None:
    before = damage(stocked, "all of it")
    job = small_job(other_text, stocked).preparation()
    with pytest.raises(ArtifactError) as refused:
        prepare_tokenizer(job, silent())
    folder = Path(str(refused.value).split(" is damaged")[0])
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(before["tokenizer.json"])
    prepare_tokenizer(job, silent())
    assert content(folder)["tokenizer.json"] == before["tokenizer.json"]


def test_a_damaged_copy_in_a_checkpoint_is_not_taken(trained: Path, other_text: Path) -> None:
    damage(trained, "tokenizer.json")
    for path in trained.glob("runs/**/tokenizer.json"):
        rot(path, path.stat().st_size // 2)
    with pytest.raises(ArtifactError, match="is damaged or lost"):
        prepared_tokenizer(other_text, trained)


def test_a_damaged_tokenizer_with_which_nothing_was_made_is_made_anew(
    stocked: Path, other_text: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(stocked / "shards")
    before = damage(stocked, "tokenizer.json")
    with caplog.at_level(logging.WARNING):
        made = prepared_tokenizer(other_text, stocked)
    assert "nothing depends on it, so it is rebuilt" in caplog.text
    assert content(stocked / made.key)["tokenizer.json"] != before["tokenizer.json"]


def test_a_damaged_tokenizer_is_not_loaded(data: PreparedData, stocked: Path) -> None:
    store, key = Store(str(stocked)), data.tokenizer.key
    load_tokenizer(store, key)
    damage(stocked, "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not match its checksum .*; prepare the data again"):
        load_tokenizer(store, key)
    store.delete(f"{key}/tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing; prepare the data again"):
        load_tokenizer(store, key)


def test_a_tokenizer_that_was_taken_is_taken_again_from_the_same_file(
    prepared: tuple[Path, PreparedData], raw: Path, tmp_path: Path
) -> None:
    given = str(prepared[0] / prepared[1].tokenizer.key / "tokenizer.json")
    job: PrepareJob = small_job(raw, tmp_path / "store", data__tokenizer={"path": given}).preparation()
    first = prepare(job, silent())
    before = damage(tmp_path / "store", "tokenizer.json")
    assert find_prepared(job) is None
    again = prepare(job, silent())
    assert again.tokenizer.key == first.tokenizer.key
    assert again.shards[0].reused
    assert content(tokenizer_of(tmp_path / "store"))["tokenizer.json"] == before["tokenizer.json"]


def test_only_the_tokenizer_itself_is_to_be_the_same(stocked: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands beside it may be written otherwise by another version of a library."""
    before = damage(stocked, "all of it")
    write = tokenizer_training.save_trained

    def otherwise(
        options: TokenizerConfig, tokenizer: Tokenizer, trained_on: list[str] | None, folder: Path
    ) -> dict[str, Any]:
        details = write(options, tokenizer, trained_on, folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "another": 1}))
        return details

    monkeypatch.setattr(tokenizer_training, "save_trained", otherwise)
    prepared_tokenizer(raw, stocked)
    assert content(tokenizer_of(stocked))["tokenizer.json"] == before["tokenizer.json"]
    assert all(ref.reused for ref in prepare(small_job(raw, stocked).preparation(), silent()).shards)


def test_a_copy_that_the_disk_has_no_room_for_is_not_a_reason_to_train(
    trained: Path, other_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = damage(trained, "tokenizer.json")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(tokenizer_training, "save_trained", failing_first([full], tokenizer_training.save_trained))
    with pytest.raises(StorageError, match="No space left on device"):
        prepared_tokenizer(other_text, trained)
    prepared_tokenizer(other_text, trained)
    assert content(tokenizer_of(trained)) == before
