"""What a run's folder holds besides its artifacts: any damage is repaired to the same bits, or refused with one
message.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.headrace import headrace
from tests.support import cpu_runtime, records, small_job
from tests.trainer.small_jobs import LONG, Finished
from trainer.common.errors import ArtifactError, PipelineError, RunError
from trainer.common.progress import silent
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.pipelines.any_kind import evaluate_checkpoint, train
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed, require_sealed, sealed_bytes, write_sealed
from trainer.registry.listing import find_runs
from trainer.registry.promotion import find_measured, promote
from trainer.registry.report import make_report
from trainer.store.names import CHECKPOINTS, CONFIG, EVALUATION, FINAL, METRICS_FILE, PLAN
from trainer.store.storage import Store
from trainer.training.identity import recorded
from trainer.training.job_progress import Standing, find_standing, is_alive
from trainer.training.metrics_reader import read_records

OTHER = "runs/other"


def flip(path: Path) -> None:
    """Change one bit of a digit, so that another number stands there."""
    text = path.read_bytes()
    place = re.search(rb'(?<=": )[0-8]', text)
    assert place is not None
    path.write_bytes(text[: place.start()] + bytes([text[place.start()] ^ 1]) + text[place.end() :])


def lose_checksum(path: Path) -> None:
    values = json.loads(path.read_bytes())
    del values["checksum"]
    path.write_text(json.dumps(values))


def swap(path: Path) -> None:
    """Put a file of the same contents there that another run's process wrote."""
    values = {key: value for key, value in json.loads(path.read_bytes()).items() if key != "checksum"}
    path.write_bytes(sealed_bytes(f"{OTHER}/{path.name}", values))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = [flip, lose_checksum, swap, cut]


@pytest.fixture
def store(finished: Finished, tmp_path: Path) -> Store:
    """A store with the long run, to be changed."""
    return Store(str(shutil.copytree(finished.store, tmp_path / "own")))


def sealed_files(store: Store, run: str) -> list[str]:
    epochs = [f"epochs/{name}" for name in store.names(f"{run}/epochs")]
    named = [
        "config.json",
        "plan.json",
        "environment.json",
        "eval.json",
        "lineage.json",
        "checkpoint-last",
        "checkpoint-best",
    ]
    return [f"{run}/{name}" for name in (*named, *epochs)]


def test_every_file_of_a_run_is_sealed_under_its_own_place(store: Store, finished: Finished) -> None:
    keys = sealed_files(store, finished.run)
    assert len(keys) > 7
    for key in keys:
        path = store.fetch(key)
        intact = path.read_bytes()
        assert read_sealed(store, key)
        for damage in DAMAGE:
            damage(path)
            assert path.read_bytes() != intact
            with pytest.raises(ArtifactError, match=rf"{re.escape(key)} is damaged: .*; "):
                read_sealed(store, key)
            path.write_bytes(intact)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_finished_runs_plan_and_pointers_are_found_again_to_the_same_bits(
    damage: Callable[[Path], None], raw: Path, store: Store, finished: Finished, data: PreparedData,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = store.fetch(finished.run)
    paths = [folder / PLAN, folder / "checkpoint-last", folder / "checkpoint-best", *(folder / "epochs").iterdir()]
    assert len(paths) > 3
    before = {path: path.read_bytes() for path in paths}
    for path in paths:
        damage(path)
    cpu_runtime()
    assert train(small_job(raw, store.url, **LONG), silent(), data).reused
    assert {path: path.read_bytes() for path in paths} == before
    for path in paths[1:]:
        assert f"{path}" in caplog.text and "rewritten" in caplog.text


def test_a_loss_with_one_bit_changed_passes_no_gate_and_is_measured_again(
    raw: Path, store: Store, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.fetch(f"{finished.run}/{EVALUATION}")
    before = path.read_bytes()
    loss = json.loads(before)["total"]["figures"]["loss"]
    lower = str(loss).replace(str(loss)[0], chr(ord(str(loss)[0]) ^ 1), 1)
    path.write_bytes(before.replace(str(loss).encode(), lower.encode()))
    assert json.loads(path.read_bytes())["total"]["figures"]["loss"] == float(lower) != loss
    with pytest.raises(ArtifactError, match=r"eval\.json is damaged: .* run the evaluation again, which rewrites"):
        find_measured(store, finished.run)
    with pytest.raises(ArtifactError, match=r"eval\.json is damaged"):
        make_report(store, finished.run)
    cpu_runtime()
    result = evaluate_checkpoint(evaluation_of(small_job(raw, store.url, **LONG), finished.run), silent())
    assert not result.reused and result.total.figures["loss"] == loss
    assert path.read_bytes() == before
    assert f"{path} is damaged" in caplog.text and "measuring again" in caplog.text


def test_a_damaged_configuration_is_written_anew_by_its_runs_own_command(
    raw: Path, store: Store, finished: Finished, data: PreparedData, tmp_path: Path,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path, job = store.fetch(f"{finished.run}/{CONFIG}"), small_job(raw, store.url, **LONG)
    whole = {**require_sealed(store, f"{finished.run}/{CONFIG}"), "job": recorded(job)}
    flip(path)
    spoilt = path.read_bytes()
    (tmp_path / "job.yaml").write_text(json.dumps(job.model_dump(mode="json")))
    assert headrace("explain", str(tmp_path / "job.yaml")) == 0
    assert re.search(r"continued +training[\s\S]+rewritten: .*config\.json is damaged", capsys.readouterr().out)
    assert path.read_bytes() == spoilt
    cpu_runtime()
    assert train(job, silent(), data).reused
    assert require_sealed(store, f"{finished.run}/{CONFIG}") == whole
    assert (
        f"{path} is damaged" in caplog.text
        and "rewritten; the damaged file is kept as damaged-config.json" in caplog.text
    )
    assert (path.parent / "damaged-config.json").read_bytes() == spoilt
    weights = store.read_bytes(f"{finished.run}/{FINAL}/model.safetensors")
    shutil.rmtree(path.parent / FINAL)
    flip(path)
    assert not train(job, silent(), data).reused
    assert require_sealed(store, f"{finished.run}/{CONFIG}") == whole
    assert store.read_bytes(f"{finished.run}/{FINAL}/model.safetensors") == weights


def test_a_damaged_configuration_is_refused_to_another_command_and_of_a_fork_and_stays_as_it_is(
    raw: Path, store: Store, finished: Finished, data: PreparedData
) -> None:
    fork = f"{finished.run}-fork-01234567"
    shutil.copytree(store.fetch(finished.run), store.path(fork))
    for run, changes in ((finished.run, {"training__seed": 7}), (fork, {})):
        path = Path(store.path(f"{run}/{CONFIG}"))
        flip(path)
        spoilt = path.read_bytes()
        named = {"run": run.removeprefix("runs/"), "training__seed": 0, **changes}
        cpu_runtime()
        with pytest.raises(
            ArtifactError, match=r"config\.json is damaged: .*; start the run's command .*; or restore a copy"
        ):
            train(small_job(raw, store.url, **LONG, **named), silent(), data)
        assert path.read_bytes() == spoilt


def test_a_checkpoint_of_another_run_or_step_is_not_continued_from(
    raw: Path, store: Store, finished: Finished, data: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    other = small_job(raw, store.url, **{**LONG, "training__seed": 7, "training__max_steps": 3})
    cpu_runtime()
    run = train(other, silent(), data)
    shutil.rmtree(store.fetch(f"{run.key}/{FINAL}"))
    weights = store.read_bytes(f"{run.key}/{CHECKPOINTS}/step-00000003/model.safetensors")
    theirs, own = (store.fetch(f"{key}/{CHECKPOINTS}") for key in (finished.run, run.key))
    newest = sorted(path.name for path in theirs.iterdir())[-1]
    shutil.copytree(theirs / newest, own / newest)
    shutil.copytree(own / "step-00000003", own / "step-00000009")
    assert train(other, silent(), data).key == run.key
    assert store.read_bytes(f"{run.key}/{FINAL}/model.safetensors") == weights
    assert f"{newest} holds step" in caplog.text and "step-00000009 holds step 3 of the run" in caplog.text


def test_damaged_records_are_left_out_and_told_by_their_lines(
    store: Store, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    path, all_of_them = store.fetch(f"{finished.run}/{METRICS_FILE}"), read_records(store, finished.run)
    assert caplog.text == ""
    lines = path.read_bytes().splitlines(keepends=True)
    spoilt = lines[2].replace(b'"step": ', b'"step": 1', 1)
    assert spoilt != lines[2]
    path.write_bytes(b"".join([*lines[:2], spoilt, *lines[3:7], b"\0" * 9 + b"\n", *lines[7:], lines[0][:-9]]))
    assert read_records(store, finished.run) == [*all_of_them[:2], *all_of_them[3:]]
    assert f"{path}: 2 records ignored because of a wrong checksum: lines 3, 8" in caplog.text
    store.write_bytes(f"{OTHER}/{METRICS_FILE}", b"".join(lines))
    assert read_records(store, OTHER) == []
    assert "lines 1, 2, 3, 4, 5 and 263 more" in caplog.text


@pytest.mark.parametrize("left", [b"", b"\0" * 5000, b"{}\n"])
def test_records_that_an_unfinished_run_has_lost_are_told_by_the_step_that_is_saved(
    left: bytes, store: Store, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(store.fetch(f"{finished.run}/{FINAL}"))
    path = store.fetch(f"{finished.run}/{METRICS_FILE}")
    lines = path.read_bytes().splitlines(keepends=True)
    saved = [number for number, line in enumerate(lines) if b'"kind": "save", "step": 64' in line]
    path.write_bytes(b"".join(lines[: saved[0] + 1]) + lines[-1][:-9])
    read_records(store, finished.run)
    assert caplog.text == "", "a torn tail is normal"
    path.write_bytes(left)
    assert read_records(store, finished.run) == []
    assert f"{path} ends with step 0, before step 64, which is saved: records are missing" in caplog.text


@pytest.mark.parametrize(("name", "state"), [("config.json", "unreadable"), ("plan.json", "finished")])
def test_the_list_of_runs_tells_what_a_run_has_lost(
    name: str, state: str, store: Store, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    store.delete(f"{finished.run}/{name}")
    lines = {f"runs/{line.name}": line for line in find_runs(store)}
    assert lines[finished.run].state == state
    assert f"{store.path(f'{finished.run}/{name}')} is missing; " in caplog.text


@pytest.mark.parametrize("name", ["config.json", "plan.json", "eval.json", "checkpoint-last"])
def test_the_list_of_runs_says_which_one_cannot_be_told_of_and_shows_the_others(
    name: str, store: Store, finished: Finished, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    config = read_sealed(store, f"{finished.run}/{CONFIG}")
    assert config is not None
    write_sealed(store, f"{OTHER}/{CONFIG}", config)
    promote(store, "lm", finished.run, {}, "why")
    store.write_bytes("models/broken/champion", store.read_bytes("models/lm/champion"))
    flip_in(store, f"{OTHER}/{name}", store.read_bytes(f"{finished.run}/{name}"))
    assert headrace("list", store.url) == 0
    said = capsys.readouterr().out
    assert re.search(r"\n *other +unreadable", said)
    assert re.search(rf"\n *{finished.run.removeprefix('runs/')} +pretraining +finished.* lm *\n", said)
    assert f"{OTHER}/{name} is damaged" in caplog.text and "models/broken/champion is damaged" in caplog.text


def test_the_list_of_runs_tells_of_one_whose_lease_is_damaged(
    store: Store, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    store.delete(f"{finished.run}/tensorboard")
    (before,) = find_runs(store)
    store.write_bytes(f"{finished.run}/lease.json", b"[]")
    assert find_runs(store) == [before] and before.state == "finished"
    assert f"{finished.run}/lease.json is damaged" in caplog.text


def flip_in(store: Store, key: str, content: bytes) -> None:
    """Put a file there that was written elsewhere, or damage the one that is there."""
    if store.exists(key):
        flip(store.fetch(key))
    else:
        store.write_bytes(key, content)


def test_the_watchdogs_look_passes_over_what_is_not_of_its_job(
    raw: Path, store: Store, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    job = small_job(raw, store.url, **LONG)
    config = require_sealed(store, f"{finished.run}/{CONFIG}")
    write_sealed(store, f"{finished.run}/{CONFIG}", {**config, "job": recorded(job)})
    store.write_bytes(f"{OTHER}/{CONFIG}", b"{half")
    assert find_standing(job) == Standing(find_standing(job).files, 64)
    assert not is_alive(job)
    assert f"{OTHER}/{CONFIG} is damaged" in caplog.text
    store.write_bytes(f"runs/{job.name}-01234567/{CONFIG}", b"{half")
    with pytest.raises(PipelineError, match=r"config\.json is damaged"):
        find_standing(job)


def test_a_run_without_its_plan_or_its_configuration_says_what_to_do(
    raw: Path, store: Store, finished: Finished
) -> None:
    store.delete(f"{finished.run}/{PLAN}")
    with pytest.raises(RunError, match=r"has no plan\.json yet: finish the training"):
        make_report(store, finished.run)
    store.delete(f"{finished.run}/{CONFIG}")
    with pytest.raises(PipelineError, match=r"config\.json is missing; start the run|does not belong to a run in this"):
        evaluate_checkpoint(evaluation_of(small_job(raw, store.url, **LONG), finished.run), silent())
    assert records(Path(store.url), "train", finished.run)
