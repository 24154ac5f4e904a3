"""Models of a store, by name: the files that whoever loads them needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http_server import Answering, http_server
from tests.hub import serve_model, unreachable
from tests.trainer.labelled_data import gpt2_folder
from tests.trainer.report_runs import publish
from trainer.common.errors import ArtifactError, ConfigError
from trainer.models.pretrained import digest_files, find_model, find_pretrained, load_tokenizer
from trainer.models.tensor_files import MODEL, OPTIMIZER, find_parts, part_name
from trainer.records.sealed import write_sealed
from trainer.registry.promotion import promote
from trainer.store.names import CHECKPOINT_KIND, FINAL_KIND
from trainer.store.storage import Store

KEY = "runs/a/checkpoints/step-00000001"
DETAILS = {"step": 1, "scores": None}
PART, OTHER, MOMENTS = (
    part_name(stem, 0, 1, digit * 64) for stem, digit in ((MODEL, "0"), (MODEL, "1"), (OPTIMIZER, "2"))
)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("files", "needed"),
    [
        (["config.json", "model.safetensors", "optimizer.safetensors"], ["config.json", "model.safetensors"]),
        (["config.json", PART, MOMENTS], ["config.json", PART]),
    ],
    ids=["whole", "in parts"],
)
def test_of_a_remote_checkpoint_its_optimizer_is_not_fetched(
    remote_store: Store, files: list[str], needed: list[str]
) -> None:
    publish(remote_store, KEY, CHECKPOINT_KIND, dict.fromkeys(files, b"{}"), DETAILS)
    remote_store.release(KEY)
    found = find_model(remote_store, KEY)
    assert sorted(path.name for path in Path(found.folder).iterdir()) == needed
    assert sorted(found.files) == sorted(files), "which name the model all the same"


def test_parts_that_a_manifest_does_not_list_are_none_of_its_checkpoint(any_store: Store) -> None:
    any_store.write_bytes(f"{KEY}/{OTHER}", b"of a save that was broken off")
    any_store.write_bytes(f"{KEY}/model.safetensors", b"what the parts have replaced")
    publish(any_store, KEY, CHECKPOINT_KIND, {"config.json": b"{}", PART: b""}, DETAILS)
    folder = Path(find_model(any_store, KEY).folder)
    assert [path.name for path in find_parts(folder, MODEL)] == [PART]


def test_files_that_a_library_would_load_are_refused_beside_a_whole_model(empty_store: Store) -> None:
    publish(empty_store, KEY, CHECKPOINT_KIND, {"config.json": b"{}", "model.safetensors": b""}, DETAILS)
    empty_store.write_bytes(f"{KEY}/{OTHER}", b"which is named by what it holds")
    find_model(empty_store, KEY)
    empty_store.write_bytes(f"{KEY}/model.safetensors.index.json", b"{}")
    with pytest.raises(ArtifactError, match=r"model.safetensors.index.json is not listed in the folder's manifest"):
        find_model(empty_store, KEY)


@pytest.mark.parametrize("hub", [False, True])
def test_a_champion_that_is_named_without_its_folder_is_told_how_it_is_named(
    empty_store: Store, hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    publish(empty_store, "runs/a-12345678/final", FINAL_KIND, {"config.json": b"{}", "model.safetensors": b""}, {})
    promote(empty_store, "lm", "runs/a-12345678", {}, "good")
    meant = "; if models/lm of the store is meant, write models/lm$"
    with pytest.raises(ArtifactError, match=meant):
        find_model(empty_store, "lm", hub)


@pytest.mark.parametrize("name", ["a", "a-12345678"])
def test_a_run_that_is_asked_of_the_hub_is_told_with_its_key(
    name: str, empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    publish(empty_store, "runs/a-12345678/final", FINAL_KIND, {"config.json": b"{}", "model.safetensors": b""}, {})
    with pytest.raises(ArtifactError, match="hub does not provide it: no network") as caught:
        find_pretrained(empty_store, name)
    assert str(caught.value).endswith("; if runs/a-12345678 of the store is meant, write runs/a-12345678")
    with pytest.raises(ArtifactError, match=r"no network$"):
        find_pretrained(empty_store, "b")


def test_a_name_of_several_runs_does_not_hide_why_the_hub_failed(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    for run in ("a-12345678", "a-87654321"):
        publish(empty_store, f"runs/{run}/final", FINAL_KIND, {"config.json": b"{}", "model.safetensors": b""}, {})
    with pytest.raises(ArtifactError, match=r"no network$"):
        find_pretrained(empty_store, "a")


def test_a_model_to_train_further_is_a_run_only_by_its_key_or_path(
    empty_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "config.json").write_text("{}")
    assert find_pretrained(empty_store, "words").origin == "folder"
    publish(empty_store, "runs/words-12345678/final", FINAL_KIND, {"config.json": b"{}", "model.safetensors": b""}, {})
    promote(empty_store, "words", "runs/words-12345678", {}, "good")
    found = find_pretrained(empty_store, "words")
    assert (found.origin, found.folder) == ("folder", "words"), "the job of that name may have trained it"
    run = "runs/words-12345678"
    champion, path = "models/words", empty_store.local
    for name in (
        run,
        "runs/words",
        f"{run}/final",
        "runs/words/final",
        champion,
        f"{path}/{run}",
        f"{path}/{champion}",
    ):
        assert find_pretrained(empty_store, name).key == f"{run}/final", name
    shutil.copytree(tmp_path / "words", tmp_path / champion)
    for name in (champion, "words"):
        with pytest.raises(ConfigError, match=f"'{name}' is both {run}/final in the store .*, or for the .* ./{name}$"):
            find_model(empty_store, name)
    for name in (f"./{champion}", str(tmp_path / champion), "./words"):
        assert find_pretrained(empty_store, name).origin == find_model(empty_store, name).origin == "folder", name
    write_sealed(empty_store, "runs/young-12345678/config.json", {})
    for name in ("runs/young", "runs/young-12345678", f"{path}/runs/young-12345678"):
        with pytest.raises(ArtifactError, match="runs/young-12345678 is not finished: give one of its checkpoints"):
            find_pretrained(empty_store, name)
    monkeypatch.chdir(path / "runs")
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ArtifactError, match=r"no checkpoint 'runs/others': neither a run in .*/runs, nor"):
        find_pretrained(empty_store, "runs/others")


def test_a_key_means_its_run_though_it_is_also_a_jobs_name_or_a_folder_here(
    empty_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"config.json": b"{}", "model.safetensors": b""}
    for run in ("a", "a-12345678", "a-87654321"):
        publish(empty_store, f"runs/{run}/final", FINAL_KIND, files, {})
    publish(empty_store, KEY, CHECKPOINT_KIND, files, DETAILS)
    shutil.copytree(str(empty_store.local), tmp_path / "mirror")
    for place in (tmp_path, tmp_path / "mirror"):
        monkeypatch.chdir(place)
        assert find_model(empty_store, "runs/a/final").key == find_pretrained(empty_store, "runs/a").key
        for key in ("runs/a/final", "runs/a-12345678/final", KEY):
            assert find_pretrained(empty_store, key).key == find_model(empty_store, key).key == key


def test_files_of_a_model_that_were_replaced_are_read_again_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    before, status = digest_files(tmp_path), weights.stat()
    weights.write_bytes(b"two")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest_files(tmp_path) != before


def test_a_run_is_found_by_its_name_its_key_and_the_path_of_its_folder(empty_store: Store) -> None:
    publish(empty_store, "runs/books-12345678/final", FINAL_KIND, {"config.json": b"{}", "model.safetensors": b""}, {})
    for name in ("books", "books-12345678", "runs/books-12345678", f"{empty_store.local}/runs/books-12345678/"):
        for hub in (False, True):
            assert find_model(empty_store, name, hub).key == "runs/books-12345678/final", name


FETCHES = """
import logging
from trainer.common.errors import ArtifactError
from trainer.models.hub import fetch_from_hub
from trainer.training.logs import start_logging
start_logging(logging.INFO, logging.StreamHandler())
try:
    fetch_from_hub("someone/model", ["*"])
except ArtifactError as error:
    print(error, error.transient)
"""


def refused_fetch(address: str, home: Path, **given: str) -> str:
    """What is said of a model that a hub does not provide, and whether it is transient."""
    env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    ended = subprocess.run([sys.executable, "-c", FETCHES], env=env | given, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("the Hugging Face hub does not provide it: ")
    assert "HTTP Request" not in ended.stderr  # the library would log each
    return ended.stdout


@pytest.mark.parametrize("fault", ["a broken connection", "a full disk"])
def test_a_download_from_the_hub_that_fails_says_why_and_is_retried(
    fault: str, small_disk: Path, tmp_path: Path
) -> None:
    (given := tmp_path / "given").mkdir()
    (given / "config.json").write_text("{}")
    (given / "model.safetensors").write_bytes(bytes(2**21))
    broken = fault == "a broken connection"
    with serve_model(given, "someone/model", "1" * 40, broken=broken) as address:
        said = refused_fetch(address, tmp_path / "hub" if broken else small_disk)
    reason = "Connection reset by peer" if broken else "No space left on device: free some space in its local cache"
    assert reason in said and said.endswith(" True\n")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_hub_that_cannot_be_reached_is_not_waited_for(offline: str, tmp_path: Path) -> None:
    said = refused_fetch("http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE=offline)
    assert said.endswith("the hub cannot be reached, and the local cache does not hold it False\n")


@pytest.mark.parametrize(("status", "passes"), [(429, True), (503, True), (403, False)])
def test_a_hub_that_is_too_busy_is_waited_for(status: int, passes: bool, tmp_path: Path) -> None:
    class Busy(Answering):
        def do_GET(self) -> None:
            self.answer(status)

        do_HEAD = do_GET

    with http_server(Busy) as address:
        said = refused_fetch(address, tmp_path)
    assert str(status) in said and said.endswith(f" {passes}\n")


def test_named_chat_templates_are_files_of_a_model_because_one_may_be_its_default(tmp_path: Path) -> None:
    model = gpt2_folder(tmp_path / "model")
    (template := model / "additional_chat_templates" / "default.jinja").parent.mkdir()
    found = []
    for text in ("one", "other"):
        template.write_text(text)
        assert load_tokenizer(str(model)).get_chat_template() == text
        found.append(digest_files(model))
    assert found[0] != found[1] and "additional_chat_templates/default.jinja" in found[0]
