"""What is promised of a finished run, of each kind: it is found, measured, told, compared, promoted, mended, kept."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.headrace import headrace
from tests.processes import cores
from tests.support import cpu_runtime, flip_bit, lasting_digests, seal_copy, write_config
from tests.trainer.small_jobs import OF_EACH_KIND, Finished
from tests.trainer.stocked_store import add_encoded, add_superseded, found, keys
from trainer import jobs
from trainer.common.display import number, score
from trainer.common.errors import ConfigError, PipelineError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.config.kinds import KINDS
from trainer.config.runs import RunJob
from trainer.kinds.kind import entry_of, kind_of
from trainer.models.pretrained import find_model
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.pipelines.explain import explain_job
from trainer.pipelines.pipeline import find_finished_job
from trainer.records.evaluations import Result
from trainer.records.lease import LEASE
from trainer.records.sealed import require_sealed, write_sealed
from trainer.records.steps import here
from trainer.registry.compare_runs import compare
from trainer.registry.lineage import check, trace
from trainer.registry.listing import find_runs
from trainer.registry.promotion import find_champion, find_measured, promote, roll_back
from trainer.registry.references import pin
from trainer.registry.report import make_report
from trainer.store.manifest import MANIFEST, ArtifactRef
from trainer.store.names import CARD, CONFIG, ENVIRONMENT, EVALUATION, FINAL, METRICS_FILE, PLAN, REPORT
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, data_keys, is_whole, recorded

TWIN = "runs/twin"
WEIGHTS = "model.safetensors"
ONLY_TOLD = (METRICS_FILE, ENVIRONMENT, MANIFEST)
"""What holds times, and cannot be made again."""


@pytest.fixture(params=OF_EACH_KIND)
def life(request: pytest.FixtureRequest, ran: Callable[[str], Finished], tmp_path: Path) -> Finished:
    """A run of each kind in a store of the test's own."""
    return ran(request.param).copy(tmp_path)


def again(job: RunJob, data: TrainingData) -> ArtifactRef:
    """Go through the stages after the data once more, in this process; returns the run that training ends with."""
    cpu_runtime()
    with cores(1):
        run = train(job, silent(), data)
        evaluate_run(job, run.key, silent(), data_keys(data))
    make_report(Store(job.store), run.key)
    return run


def data_of(job: RunJob) -> TrainingData:
    return kind_of(job).prepare(job, here(silent()))


def measured(run: Finished) -> Result:
    result = find_measured(Store(str(run.store)), run.run)
    assert result is not None
    return result


def with_twin(run: Finished) -> Finished:
    """Put the same run there once more, under another name."""
    store = Store(str(run.store))
    shutil.copytree(run.folder, run.store / TWIN)
    seal_copy(store, run.run, store, TWIN)
    return Finished(run.store, TWIN)


def test_each_kind_has_its_small_job() -> None:
    assert list(OF_EACH_KIND) == [kind.name for kind in KINDS]


def test_a_second_start_reuses_every_stage_and_changes_nothing(life: Finished) -> None:
    before, job = lasting_digests(life.store), life.job()
    stages = explain_job(job)
    assert {stage.verdict for stage in stages} == {"reused"}
    for stage, place in [(each, life.store / str(each.key)) for each in stages]:
        manifest = place / MANIFEST
        assert place.exists()
        assert not manifest.exists() or stage.created == json.loads(manifest.read_text())["created"]
    cpu_runtime()
    with cores(1):
        assert jobs.train(job) == life.run
    assert lasting_digests(life.store) == before


def test_that_all_is_there_is_seen_without_the_libraries_that_compute_and_not_where_anything_is_not(
    life: Finished, tmp_path: Path
) -> None:
    job = life.job()
    config = write_config(tmp_path / "job.yaml", job.model_dump(mode="json"))
    look = (
        "import sys; from trainer.kinds.kind import load_training_job; "
        "from trainer.pipelines.pipeline import find_finished_job; "
        "print(find_finished_job(load_training_job(sys.argv[1], ())), {'torch', 'transformers'} & sys.modules.keys())"
    )
    said = subprocess.run([sys.executable, "-c", look, str(config)], capture_output=True, text=True, check=True).stdout
    if not kind_of(job).is_light:
        assert said == "None set()\n"
        return
    assert said == f"run='{life.run}' ranks=1 set()\n"
    assert find_finished_job(life.job(run="another")) is None
    shards = data_of(job).shards[0]
    run = [life.folder / name for name in (EVALUATION, PLAN, f"{FINAL}/{WEIGHTS}")]
    for path in [*run, life.store / shards.key / MANIFEST]:
        before = path.read_bytes()
        for damage in (flip_bit, Path.unlink):
            damage(path)
            assert find_finished_job(job) is None, path
        path.write_bytes(before)
    assert find_finished_job(job) is not None


def test_the_lease_of_a_process_that_was_killed_after_it_had_published_is_removed_by_the_next_start(
    life: Finished,
) -> None:
    store, job = Store(str(life.store)), life.job()
    hold = (
        "import os, sys; from trainer.records.lease import Lease; from trainer.store.storage import Store; "
        "Lease(Store(sys.argv[1]), sys.argv[2]).__enter__(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", hold, str(life.store), life.run], check=True)
    assert store.exists(f"{life.run}/{LEASE}")
    data = data_of(job)
    run = kind_of(job).identify(job, data)
    assert find_finished_job(job) is None and not is_whole(store, run, job, data)
    cpu_runtime()
    with cores(1):
        assert train(job, silent(), data).reused
    assert is_whole(store, run, job, data) and not store.exists(f"{life.run}/{LEASE}")


def test_its_final_model_is_measured_again_to_the_same_bytes(life: Finished) -> None:
    before = lasting_digests(life.store)
    (life.folder / EVALUATION).unlink()
    shutil.rmtree(life.folder / "predictions", ignore_errors=True)
    cpu_runtime()
    with cores(1):
        assert not evaluate_run(life.job(), life.run, silent()).reused
        assert evaluate_run(life.job(), life.run, silent()).reused
    assert lasting_digests(life.store) == before


def test_it_may_be_measured_otherwise_than_was_said_when_it_was_trained(life: Finished) -> None:
    gate = {"name": "lm", "threshold": 1e9}
    before, other = measured(life), life.job(evaluation__batch=life.job().evaluation.batch + 1, promotion=gate)
    trained = lasting_digests(life.folder / "checkpoints")
    (life.folder / EVALUATION).unlink()
    again(other, data_of(other))
    assert measured(life).figures() == pytest.approx(before.figures(), abs=1e-6)
    assert any(each(measured(life).figures()["loss"]) in (life.folder / REPORT).read_text() for each in (number, score))
    assert {stage.verdict for stage in explain_job(other)} == {"reused"}
    said = require_sealed(Store(str(life.store)), f"{life.run}/{CONFIG}")["job"]
    assert said == {**recorded(other), "store": said["store"]}, "a run may be read under another address"
    assert lasting_digests(life.folder / "checkpoints") == trained


def test_its_last_checkpoint_has_the_figures_of_the_final_model_or_it_is_said_where_those_stand(life: Finished) -> None:
    cpu_runtime()
    try:
        with cores(1):
            result = evaluate_checkpoint(
                EvaluateJob(store=str(life.store), checkpoint=f"{life.run}/checkpoint-last"), silent()
            )
    except ConfigError as refusal:
        assert "are in that run's eval.json" in str(refusal)
    else:
        assert result.figures() == pytest.approx(measured(life).figures(), abs=1e-6)


def test_its_page_and_its_card_name_its_figures_and_a_missing_page_is_written_again(life: Finished) -> None:
    path, store, figures = life.folder / REPORT, Store(str(life.store)), measured(life).figures()
    before, card = path.read_bytes(), (life.folder / FINAL / CARD).read_text()
    assert any(each(figures["loss"]) in before.decode() for each in (number, score))
    assert [name for name, figure in figures.items() if not {str(figure), score(figure)} & set(card.split())] == []
    path.unlink()
    *others, report = explain_job(life.job())
    assert {stage.verdict for stage in others} == {"reused"}
    assert report.reasons == ("its page or model card is missing or changed",)
    assert not make_report(store, life.run).reused
    assert path.read_bytes() == before
    assert make_report(store, life.run).reused


def test_it_is_listed_and_compared_with_another_of_its_kind(life: Finished) -> None:
    twin, store = with_twin(life), Store(str(life.store))
    text, kind, figures = compare(store, [life.name, twin.name]), entry_of(life.job()), measured(life).figures()
    assert "A, B are identical in configuration, data, tokenizer, model and environment." in text
    for name, figure in figures.items():
        assert any(line.strip().startswith(name) and line.count(score(figure)) == 2 for line in text.splitlines()), name
    for line in find_runs(store):
        assert (line.kind, line.state, line.final) == (kind.name, "finished", figures[line.figure])
    assert {line.name for line in find_runs(store)} == {life.name, twin.name}


def test_it_becomes_champion_through_its_gate_and_holds_its_place_or_comes_back_to_it(life: Finished) -> None:
    def try_gate(run: Finished, **gate: float) -> None:
        job = run.job(promotion={"name": "lm", **gate})
        with cores(1):
            jobs.InRanks(cpu_runtime()).consider(job, data, plan, run.run, measured(life))

    store, twin, data = Store(str(life.store)), with_twin(life), data_of(life.job())
    plan = kind_of(life.job()).plan(life.job(), data, 1).plan
    try_gate(life, threshold=1e-9)
    assert find_champion(store, "lm") is None
    try_gate(life, threshold=1e9)
    first = find_champion(store, "lm")
    assert first is not None and (first.run, first.scores) == (life.run, measured(life).figures())
    assert first.measured_on == measured(life).measured_on is not None
    try_gate(twin, better_by=0.1)
    assert find_champion(store, "lm") == first, "it holds its place"
    promote(store, "lm", TWIN, {}, "by hand")
    assert find_model(store, "models/lm/champion").key == f"{TWIN}/{FINAL}"
    roll_back(store, "lm", "it broke")
    assert find_model(store, "models/lm/champion").key == f"{life.run}/{FINAL}"


def without_times(content: bytes) -> bytes:
    """A card tells when its model was published."""
    return re.sub(rb"[\d-]{10} [\d:]{8} UTC", b"", content)


@pytest.mark.deep
def test_each_of_its_files_that_is_damaged_is_made_again_or_told(
    life: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    store, job = Store(str(life.store)), life.job()
    data, config = data_of(job), require_sealed(store, f"{life.run}/{CONFIG}")
    write_sealed(store, f"{life.run}/{CONFIG}", {**config, "job": recorded(job)})
    again(job, data)  # whatever tells of its place tells of this one
    final = [life.folder / FINAL / name for name in ("config.json", WEIGHTS, CARD, MANIFEST)]
    small = [*life.folder.glob("*.json*"), *life.folder.glob("checkpoint-*"), *(life.folder / "epochs").iterdir()]
    damages = [(path, flip_bit) for path in [life.folder / REPORT, *small, *final]]
    for path, damage in [*damages, (life.folder / FINAL / WEIGHTS, Path.unlink)]:
        before = path.read_bytes()
        damage(path)
        caplog.clear()
        try:
            again(job, data)
            told = caplog.text
        except PipelineError as error:
            told = str(error)
        if path.name in ONLY_TOLD:
            assert str(path) in told
            path.write_bytes(before)
        assert without_times(path.read_bytes()) == without_times(before), path
    assert again(job, data).reused


def test_what_it_needs_is_kept_and_it_trains_on_from_that(life: Finished) -> None:
    store, twin, job = Store(str(life.store)), with_twin(life), life.job()
    weights, figures = (life.folder / FINAL / WEIGHTS).read_bytes(), measured(life)
    lost = [add_superseded(store, "lost"), add_encoded(store, "lost")]
    pin(store, life.name)
    gone = keys(found(store, runs_older_than_days=0, remove=True))
    assert {*lost, twin.run} <= set(gone) and not any((life.store / key).exists() for key in gone)
    assert {stage.verdict for stage in explain_job(job)} == {"reused"}
    store.delete(f"{life.run}/{FINAL}")
    store.delete(f"{life.run}/checkpoint-last")
    run = again(job, data_of(job))
    assert (run.key, run.reused) == (life.run, False)
    assert (life.folder / FINAL / WEIGHTS).read_bytes() == weights
    assert measured(life) == figures


def test_each_stage_is_named_in_its_lineage_and_each_artifact_is_as_it_was(
    life: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "job.yaml", life.job().model_dump(mode="json"))
    assert headrace("explain", str(config), "--json") == 0
    *data, training, evaluation, report = json.loads(capsys.readouterr().out)
    assert [each["stage"] for each in (training, evaluation, report)] == ["training", "evaluation", "report"]
    assert headrace("lineage", str(life.store), life.name) == 0
    told = capsys.readouterr().out
    assert data and all(f" {each['key']}," in told for each in (*data, evaluation)) and told.startswith(life.run)
    store = Store(str(life.store))
    findings = check(store, trace(store, life.run))
    assert {finding.state for finding in findings} == {"same"}
    manifests = {f"{each['key']}/{MANIFEST}" for each in data}
    assert manifests | {f"{life.run}/{each}" for each in (FINAL, CONFIG, EVALUATION)} <= {
        each.name for each in findings
    }
