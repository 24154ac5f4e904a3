"""The whole way to a model: every file with its digest, and whether all of it is still as it was."""

import hashlib
import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.headrace import headrace
from tests.s3 import S3Server
from tests.support import seal_copy
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError, ConfigError, RunError
from trainer.config.corpora import CorpusConfig
from trainer.data.sources import find_pieces
from trainer.evaluation.dialogue import find_named
from trainer.records.basis import by_file, describe_file
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry import lineage
from trainer.registry.lineage import _check_base, check, check_file, find_run, trace
from trainer.registry.print_store import describe_lineage, finding_lines
from trainer.registry.promotion import promote
from trainer.store.manifest import MANIFEST, fingerprint, read_manifest, seal
from trainer.store.names import CHECKPOINT_KIND
from trainer.store.storage import Store


def sha256(path: Path | str, start: int = 0, end: int | None = None) -> str:
    return hashlib.sha256(Path(path).read_bytes()[start:end]).hexdigest()


@pytest.fixture
def store(finished: Finished, tmp_path: Path) -> Store:
    """A copy of the store with the finished run."""
    return Store(str(shutil.copytree(finished.store, tmp_path / "store")))


@pytest.fixture
def moved(store: Store, finished: Finished, raw: Path, tmp_path: Path) -> Path:
    """A copy of the raw files, of which the copied store says that its shards were made."""
    folder = Path(shutil.copytree(raw, tmp_path / "raw"))
    lineage = read_sealed(store, f"{finished.run}/lineage.json")
    for shards in lineage["shards"]:
        sources = store.read_json(shards["sources"])
        for piece in sources:
            piece["path"] = piece["path"].replace(str(raw), str(folder))
        store.write_json(shards["sources"], sources, indent=None)
        place = Path(store.path(shards["sources"]))
        shards["sources_sha256"] = sha256(place)
        manifest = json.loads(store.read_bytes(f"{shards['key']}/{MANIFEST}"))
        del manifest["checksum"]
        for file in manifest["files"]:
            if file["name"] == place.name:
                file |= {"sha256": sha256(place), "size": place.stat().st_size}
        store.write_json(f"{shards['key']}/{MANIFEST}", seal(manifest))
        shards["manifest_sha256"] = sha256(store.path(f"{shards['key']}/{MANIFEST}"))
    write_sealed(store, f"{finished.run}/lineage.json", lineage)
    return folder


def states(store: Store, run: str) -> dict[str, set[str]]:
    """The names of what is in each state but the same."""
    found: dict[str, set[str]] = {}
    for finding in check(store, trace(store, run)):
        if finding.state != "same":
            found.setdefault(finding.state, set()).add(finding.name)
    return found


def test_every_raw_file_is_listed_with_its_digest(finished: Finished, raw: Path) -> None:
    files = trace(Store(str(finished.store)), finished.run)["raw_files"]
    listed = {Path(file["path"]): file for each in files.values() for file in each}
    assert {path.resolve() for path in listed} == {path.resolve() for path in raw.rglob("*") if path.is_file()}
    assert any("pieces" in file for file in listed.values())
    for path, file in listed.items():
        assert file["bytes"] == path.stat().st_size
        for part in file.get("pieces") or [{**file, "start": 0, "end": None}]:
            assert part["sha256"] == sha256(path, part["start"], part["end"])
        if "pieces" in file:
            bounds = [(part["start"], part["end"]) for part in file["pieces"]]
            assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]


@pytest.mark.parametrize("kind", ["csv", "parquet", "text"])
def test_files_of_every_kind_are_compared_whole(kind: str, empty_store: Store, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    rows = [f"row {number}, and what it says" for number in range(200)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": rows}), path, row_group_size=50)
    else:
        path.write_text("text\n" + "".join(f'"{row}"\n' for row in rows), encoding="utf-8")
    corpus = CorpusConfig.model_validate({"name": "rows", "paths": [str(path)], "format": kind})
    pieces = find_pieces(empty_store, corpus, 2**20 if kind == "text" else 1024)
    ((name, found),) = by_file(map(vars, pieces), "path").items()
    file = describe_file(name, found, pieces[0].file_bytes)
    assert file["bytes"] == path.stat().st_size
    assert len(file.get("pieces", [])) == (len(pieces) if kind == "csv" else 0) and (kind == "text") == (
        len(pieces) == 1
    )
    assert file.get("sha256", sha256(path)) == sha256(path)
    assert check_file(file).state == "same"
    path.write_bytes(path.read_bytes() + b"x")
    assert check_file(file).state == "changed"
    path.unlink()
    assert check_file(file).state == "gone"


def test_artifacts_steps_versions_and_moves_are_told(store: Store, finished: Finished) -> None:
    promote(store, "small", finished.run, {"loss": 1.0}, "the first")
    traced = trace(store, finished.run)
    record = traced["lineage"]
    for artifact in [record["tokenizer"], *record["shards"]]:
        assert artifact["manifest_sha256"] == sha256(store.path(f"{artifact['key']}/{MANIFEST}"))
    assert {"headrace", "torch", "transformers"} <= set(record["environment"]["packages"])
    training = traced["training"]
    assert (training["steps"], training["planned_steps"], training["attempts"]) == (64, 64, 64)
    assert (training["continuations"], training["rollbacks"]) == (0, 0)
    assert set(traced["scores"]) == {"loss", "perplexity", "bits_per_byte"}
    assert [move["reason"] for move in traced["promotions"]["small"]] == ["the first"]
    assert traced["ancestors"] == [] and traced["base"] is None


def test_steps_of_a_run_that_stopped_early_are_known_without_its_records(store: Store, finished: Finished) -> None:
    plan = f"{finished.run}/plan.json"
    write_sealed(store, plan, {**(read_sealed(store, plan) or {}), "total_steps": 4000})
    store.delete(f"{finished.run}/metrics.jsonl")
    assert trace(store, finished.run)["training"]["steps"] == 64


def test_a_reader_that_stops_early_is_no_error(store: Store, finished: Finished) -> None:
    command = [sys.executable, "-m", "flows.command", "lineage", store.url, finished.run, "--files"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0 and said == ""


def test_control_characters_of_names_and_reasons_do_not_reach_the_terminal(store: Store, finished: Finished) -> None:
    promote(store, "small", finished.run, {"loss": 1.0}, "red \x1b[31m\nline")
    traced = trace(store, finished.run)
    for files in traced["raw_files"].values():
        files[0]["path"] += "\x1b[2J\nname"
    lines = [*describe_lineage(traced, every_file=True), *finding_lines(check(store, traced))]
    assert all(line.isprintable() for line in lines)
    assert sum("\\u001b[2J\\nname" in line for line in lines) == 4, "as files, and as missing ones"


def test_a_model_is_found_by_each_of_its_names(store: Store, finished: Finished) -> None:
    name = finished.run.removeprefix("runs/")
    promote(store, "small", finished.run, {}, "why")
    for model in (
        finished.run,
        name,
        f"{finished.run}/final/",
        "tiny",
        "models/small",
        "models/small/champion",
        "small",
    ):
        assert find_run(store, model) == finished.run
    for model in ("nothing", "models/nothing", "runs/nothing", f"models/{name}"):
        with pytest.raises(ArtifactError, match=f"holds no model '{model}'"):
            find_run(store, model)
    shutil.copytree(store.path(finished.run), store.path("runs/tiny-01234567"))
    with pytest.raises(ConfigError, match="has several runs"):
        find_run(store, "tiny")
    shutil.copytree(store.path(finished.run), store.path("runs/other"))
    promote(store, "other", finished.run, {}, "why")
    promote(store, name, finished.run, {}, "a run's name, but of the same run")
    assert find_run(store, "runs/other") == "runs/other"
    assert find_run(store, "models/other/champion") == find_run(store, name) == finished.run
    with pytest.raises(ConfigError, match="write runs/other or models/other"):
        find_run(store, "other")
    with pytest.raises(ConfigError, match="write runs/other or models/other"):
        find_named(store, "other")


@pytest.mark.parametrize("reported", [True, False])
def test_a_run_that_holds_another_model_than_the_champion_is_refused_under_that_name(
    store: Store, finished: Finished, reported: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    champion = promote(store, "small", finished.run, {}, "why")
    write_sealed(
        store, "models/small/champion", {"moves": [{**champion.model_dump(), "fingerprint": "0123456789abcdef"}]}
    )
    if not reported:
        store.delete(f"{finished.run}/lineage.json")
    for model in ("models/small", "models/small/champion", "small"):
        assert headrace("lineage", store.url, model, "--check") == 2
        said = capsys.readouterr()
        assert (
            not said.out
            and f"holds a different model ({champion.fingerprint}) than the one promoted as models/small" in said.err
        )
        with pytest.raises(ArtifactError, match="holds a different model"):
            find_named(store, model)
    assert headrace("lineage", store.url, finished.run, "--check") == 0


def test_raw_files_that_changed_or_are_gone_are_named(
    store: Store, finished: Finished, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, longer, gone = sorted((moved / "code").iterdir())[:3]
    gone.unlink()
    assert states(store, finished.run) == {"gone": {str(gone)}}
    assert headrace("lineage", store.url, "tiny", "--check") == 0, "raw files need not be kept"
    changed.write_bytes(changed.read_bytes().swapcase())
    longer.write_bytes(longer.read_bytes() + b"x")
    assert states(store, finished.run) == {"gone": {str(gone)}, "changed": {str(changed), str(longer)}}
    capsys.readouterr()
    assert headrace("lineage", store.url, "tiny", "--check") == 1
    said = capsys.readouterr().out
    total = sum(path.is_file() for path in moved.rglob("*")) + 1
    assert f"  raw files       {total - 3} same, 2 changed, 1 gone, 0 not here\n" in said
    assert f"  changed         {changed}\n" in said and f"  gone            {gone}\n" in said


def test_artifacts_that_changed_or_are_gone_are_named(store: Store, finished: Finished) -> None:
    code, docs = sorted(f"shards/{name}" for name in store.names("shards"))
    manifest = json.loads(store.read_bytes(f"{code}/{MANIFEST}"))
    del manifest["checksum"]
    store.write_json(f"{code}/{MANIFEST}", seal({**manifest, "created": "2031-01-01T00:00:00+00:00"}))
    store.delete(docs)
    found = {finding.name: finding for finding in check(store, trace(store, finished.run)) if finding.state != "same"}
    assert found[f"{code}/{MANIFEST}"].note == "rebuilt at 2031-01-01T00:00:00+00:00, from the same inputs"
    assert {name: found[name].state for name in found} == {
        f"{code}/{MANIFEST}": "changed", f"{docs}/{MANIFEST}": "gone", f"{docs}/sources.json": "gone",
    }  # fmt: skip
    assert headrace("lineage", store.url, finished.run, "--check") == 1


def test_a_file_of_an_artifact_that_changed_or_is_gone_is_named(store: Store, finished: Finished) -> None:
    code, docs = sorted(f"shards/{name}" for name in store.names("shards"))
    (tokenizer,) = (f"tokenizers/{name}" for name in store.names("tokenizers"))
    for place in (f"{finished.run}/final/model.safetensors", f"{docs}/shard-00000.bin", f"{tokenizer}/tokenizer.json"):
        raw = bytearray(store.read_bytes(place))
        raw[len(raw) // 2] ^= 1
        Path(store.path(place)).write_bytes(raw)
    Path(store.path(f"{code}/shard-00000.bin")).unlink()
    Path(store.path(f"{finished.run}/final/README.md")).write_text("a model card that a person edited")
    found = {finding.name: finding for finding in check(store, trace(store, finished.run)) if finding.state != "same"}
    assert {name: finding.state for name, finding in found.items()} == {
        f"{finished.run}/final": "changed", f"{code}/{MANIFEST}": "changed", f"{docs}/{MANIFEST}": "changed",
        f"{tokenizer}/{MANIFEST}": "changed",
    }  # fmt: skip
    assert "model.safetensors does not match its checksum" in found[f"{finished.run}/final"].note
    assert found[f"{code}/{MANIFEST}"].note.endswith("shard-00000.bin is missing")


def test_a_raw_file_that_is_a_folder_now_has_changed(store: Store, moved: Path, finished: Finished) -> None:
    path = next(each for each in sorted(moved.rglob("*")) if each.is_file() and each.name.endswith(".py"))
    path.unlink()
    path.mkdir()
    assert states(store, finished.run) == {"changed": {str(path)}}


def test_figures_of_a_later_evaluation_are_not_shown_as_those_of_the_recorded_one(
    store: Store, finished: Finished
) -> None:
    key = f"{finished.run}/eval.json"
    found = read_sealed(store, key) or {}
    recipe = {**found["recipe"], "other": 1}
    write_sealed(store, key, {**found, "recipe": recipe, "fingerprint": fingerprint(recipe)})
    traced = trace(store, finished.run)
    assert traced["scores"] is None
    recorded = traced["lineage"]["evaluation"]["fingerprint"]
    said = f"fingerprint {recorded}: replaced or removed since, so its figures are not known"
    assert said in "\n".join(describe_lineage(traced, every_file=False))


def test_a_run_without_a_report_is_told_from_what_the_store_holds(store: Store, finished: Finished) -> None:
    before = trace(store, finished.run)
    store.delete(f"{finished.run}/lineage.json")
    now = trace(store, finished.run)
    assert {**before["lineage"], "report": None} == {**now["lineage"], "report": None}
    store.delete(f"{finished.run}/final")
    with pytest.raises(RunError, match="has no final yet"):
        trace(store, finished.run)


def test_a_fine_tuned_model_is_told_with_the_run_that_it_was_made_from(
    store: Store, finished: Finished, tuned: Finished, pairs: Path
) -> None:
    run = tuned.run.replace("runs/", "runs/own-")
    for folder, target in ((tuned.store / tuned.run, run), (tuned.store / "encoded", "encoded")):
        shutil.copytree(folder, store.path(target))
    seal_copy(Store(str(tuned.store)), tuned.run, store, run)
    record = read_sealed(store, f"{run}/lineage.json")
    record["pretrained"] |= {"origin": "store", "key": f"{finished.run}/final"}
    write_sealed(store, f"{run}/lineage.json", record)
    traced = trace(store, run)
    assert [ancestor["run"] for ancestor in traced["ancestors"]] == [finished.run]
    assert traced["ancestors"][0]["raw_files"].keys() == {"code", "docs"}
    listed = {file["path"]: file["sha256"] for file in traced["raw_files"]["pairs"]}
    assert listed == {str(path): sha256(path) for path in pairs.iterdir()}
    base = {name: sha256(store.path(f"{finished.run}/final/{name}")) for name in traced["base"]["files"]}
    assert traced["base"]["files"] == base and "model.safetensors" in base
    store.delete(f"{finished.run}/config.json")
    (ancestor,) = trace(store, run)["ancestors"]
    assert "holds no run" in ancestor["untold"]
    assert finished.run in states(store, run)["gone"]


@pytest.mark.deep
def test_a_long_chain_of_runs_is_told_and_the_text_that_they_share_is_read_once(
    store: Store, finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, record = (read_sealed(store, f"{finished.run}/{name}.json") for name in ("config", "lineage"))
    files = {file["name"]: file["sha256"] for file in record["model"]["files"]}
    runs = [finished.run, *(f"runs/{number:03}" for number in range(350))]
    for before, run in pairwise(runs):
        base = {"name": before, "origin": "store", "key": f"{before}/final", "files": files}
        fork = {"run": finished.run, "checkpoint": "checkpoints/step-00000064"}  # each depends on two runs
        write_sealed(store, f"{run}/config.json", {**config, "fork": fork})
        write_sealed(store, f"{run}/lineage.json", {**record, "pretrained": base})
    traced, read = trace(store, runs[-1]), list[str]()
    assert [each["run"] for each in [*traced["ancestors"], traced]] == runs
    monkeypatch.setattr(lineage, "check_file", lambda file: read.append(file["path"]) or check_file(file))
    check(store, {**traced, "ancestors": traced["ancestors"][:3]})
    assert len(read) == len(set(read)) > 0
    capsys.readouterr()
    assert headrace("lineage", store.url, runs[-1], "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["ancestors"]) == 350


def test_the_command_tells_it_in_lines_and_as_json(
    finished: Finished, raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*options: str) -> str:
        assert headrace("lineage", str(finished.store), finished.run, *options) == 0
        return capsys.readouterr().out

    files = [path for path in (raw / "code").iterdir()]
    short, full = said(), said("--files")
    assert short.startswith(f"{finished.run}\n  raw code        {len(files)} files, ")
    assert f"and {len(files) - 3} more" in short and not all(path.name in short for path in files)
    assert all(path.name in full for path in files)
    for part in (
        "  tokenizer       tokenizers/bpe-",
        "  shards of docs  shards/docs-",
        "64 of 64 steps, 64 batches taken",
    ):
        assert part in short
    record: dict[str, Any] = json.loads(said("--json", "--check"))
    assert record["run"] == finished.run and {each["state"] for each in record["check"]} == {"same"}
    assert headrace("lineage", str(finished.store), "nothing") == 2
    assert "holds no model 'nothing'" in capsys.readouterr().err


@pytest.mark.deep
def test_the_command_says_the_same_of_a_run_in_a_bucket(
    store: Store, finished: Finished, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = Store(s3.new_store())
    promote(store, "small", finished.run, {"loss": 1.0}, "the first")
    for file in store.walk():
        if "/checkpoints/" not in file.key:
            remote.write_bytes(file.key, store.read_bytes(file.key))
    for options in (["--files"], ["--json"], ["--files", "--check"], ["--json", "--check"]):
        said = [
            (headrace("lineage", place.url, "models/small", *options), capsys.readouterr().out)
            for place in (store, remote)
        ]
        assert said[0] == said[1] and said[0][0] == 0 and finished.run in said[0][1]


def test_a_base_of_the_hub_is_not_looked_for_on_this_disk(empty_store: Store) -> None:
    files = {"model.safetensors": "0" * 64}
    base = {"name": "someone/words", "origin": "hub", "key": None, "files": files}
    assert _check_base(empty_store, base).state == "not here"


def test_a_base_that_is_a_checkpoint_is_compared_by_its_files(store: Store, finished: Finished) -> None:
    last = read_sealed(store, f"{finished.run}/checkpoint-last")
    assert last is not None
    key = f"{finished.run}/{last['checkpoint']}"
    manifest = read_manifest(store, key, CHECKPOINT_KIND)
    assert manifest is not None
    base = {"name": key, "origin": "store", "key": key, "files": manifest.digests()}
    assert _check_base(store, base).state == "same"
    assert _check_base(store, {**base, "files": {**base["files"], "model.safetensors": "0" * 64}}).state == "changed"
