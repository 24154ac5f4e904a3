"""A job with other test files: the same run, of which nothing is trained again, with figures and predictions of its
own.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import trainer.evaluation.measurement
import trainer.jobs
import trainer.kinds.labelled.evaluate
import trainer.pipelines.any_kind
import trainer.training.loop
from tests.depth import once
from tests.processes import start_warm
from tests.support import cpu_runtime, digests, only_run, write_config
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.made import encode
from tests.trainer.stocked_store import found as garbage_of
from tests.trainer.stocked_store import keys
from trainer.common.errors import ArtifactError, Preempted, RunError
from trainer.common.progress import silent
from trainer.config.labelled import FinetuneJob
from trainer.data.encoded import encoded_details
from trainer.kinds.kind import identify_run
from trainer.pipelines.any_kind import evaluate_run, train
from trainer.pipelines.explain import explain_job
from trainer.preflight.step_status import NONE_YET, StepStatus
from trainer.records.basis import why_incomparable
from trainer.records.evaluations import Result
from trainer.records.lease import Lease
from trainer.records.sealed import read_sealed
from trainer.registry.compare_runs import compare
from trainer.registry.lineage import check, trace
from trainer.registry.listing import find_runs
from trainer.registry.promotion import champion_to_measure, find_measured, pass_through
from trainer.registry.report import make_report
from trainer.store.manifest import ArtifactRef
from trainer.store.names import CONFIG, EVALUATION, PLAN
from trainer.store.storage import Store
from trainer.training.identity import data_keys, is_whole

TESTS = ("first", "second", "none")
TRAINED = ("checkpoints", "final/model.safetensors", "final/config.json", "metrics.jsonl", PLAN)
"""What training leaves in a run's folder."""


class Place(NamedTuple):
    """Labelled files, a model to start from, and a store."""

    raw: Path
    model: Path
    store: Path

    @property
    def open(self) -> Store:
        return Store(str(self.store))

    def values(self, test: str, **changes: Any) -> dict[str, Any]:
        files = None if test == "none" else [f"{self.raw}/{test}.jsonl"]
        often = {"training__epochs": 1, "training__save_every": 8, "run": "pairs"}
        return finetune_values(self.raw, self.store, self.model, data__test=files, **often | changes)

    def job(self, test: str, **changes: Any) -> FinetuneJob:
        return FinetuneJob.model_validate(self.values(test, **changes))

    def at(self, store: Path) -> "Place":
        return self._replace(store=store)


def go(job: FinetuneJob) -> tuple[ArtifactRef, Result]:
    """Go through a whole job in this process."""
    data = encode(job, silent())
    run = train(job, silent(), data)
    evaluation = evaluate_run(job, run.key, silent(), data_keys(data))
    make_report(Store(job.store), run.key)
    return run, evaluation


def trained(place: Place, run: str = "runs/pairs") -> dict[str, str]:
    """The digests of what training left."""
    found = digests(place.store / run)
    return {name: digest for name, digest in found.items() if name.startswith(TRAINED)}


def measured(place: Place, run: str = "runs/pairs") -> tuple[Any, dict[str, bytes]]:
    """What was measured: the record, and the predictions by name."""
    folder = place.store / run / "predictions"
    predictions = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}
    return read_sealed(place.open, f"{run}/{EVALUATION}"), predictions


def named(place: Place, run: str = "runs/pairs") -> str:
    """The encoded set that the run's config.json names."""
    key: str = read_sealed(place.open, f"{run}/{CONFIG}")["data"]["key"]
    return key


@pytest.fixture(autouse=True)
def one_rank() -> None:
    cpu_runtime()


@pytest.fixture(scope="module")
def labelled(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The labelled pairs, with two labelled test files."""
    folder = Path(shutil.copytree(pairs, tmp_path_factory.mktemp("raw") / "pairs"))
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("first", lines[:20]), ("second", lines[30:42])):
        (folder / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def fresh(labelled: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """Runs that were never of another test split, each in a store of its own; not to be written to."""
    cpu_runtime()
    places = {test: Place(labelled, pretrained, tmp_path_factory.mktemp(test)) for test in TESTS}
    for test, place in places.items():
        go(place.job(test))
    return places


@pytest.fixture
def place(fresh: dict[str, Place], tmp_path: Path) -> Place:
    """A copy of the run with the first test file."""
    return fresh["first"].at(Path(shutil.copytree(fresh["first"].store, tmp_path / "store")))


@pytest.mark.deep
def test_the_fresh_runs_are_trained_alike_and_fair_judges(fresh: dict[str, Place]) -> None:
    names = {test: digests(place.store / "runs/pairs", "checkpoints", "final") for test, place in fresh.items()}
    weights = [{name: sha for name, sha in each.items() if name.endswith(".safetensors")} for each in names.values()]
    assert weights[0] and weights[0] == weights[1] == weights[2]
    assert len({named(place) for place in fresh.values()}) == 3
    fingerprints = {read_sealed(place.open, f"runs/pairs/{CONFIG}")["fingerprint"] for place in fresh.values()}
    assert len(fingerprints) == 1
    scores = [measured(fresh[test])[0]["groups"]["test"]["figures"] for test in ("first", "second")]
    assert scores[0] != scores[1]
    assert all("test_examples" not in read_sealed(place.open, f"runs/pairs/{PLAN}") for place in fresh.values())


@pytest.mark.deep
@pytest.mark.parametrize("tests", [("first", "second"), ("first", "none"), ("none", "second")], ids="-".join)
def test_a_finished_run_is_only_measured_anew(fresh: dict[str, Place], tests: tuple[str, str], tmp_path: Path) -> None:
    before, after = tests
    place = fresh[before].at(Path(shutil.copytree(fresh[before].store, tmp_path / "store")))
    earlier = trained(place)
    run, evaluation = go(place.job(after))
    assert (run.reused, evaluation.reused) == (True, False)
    assert only_run(place.store) == "runs/pairs" and trained(place) == earlier
    assert measured(place) == measured(fresh[after])
    assert named(place) == named(fresh[after]) == evaluation.data[0]
    assert read_sealed(place.open, f"runs/pairs/{CONFIG}")["job"]["data"]["test"] == place.job(after).data.test
    assert all(each.reused for each in go(place.job(after)))
    go(place.job(before))
    assert (trained(place), measured(place)) == (earlier, measured(fresh[before]))


@pytest.mark.deep
def test_a_run_without_a_name_is_the_same_run_too(labelled: Path, pretrained: Path, tmp_path: Path) -> None:
    place = Place(labelled, pretrained, tmp_path / "store")
    jobs = [place.job(test, run=None) for test in TESTS]
    assert len({identify_run(job, encode(job, silent())).key for job in jobs}) == 1
    other = place.job("first", run=None, data__validation=[f"{labelled}/second.jsonl"])
    assert identify_run(other, encode(other, silent())).key != identify_run(jobs[0], encode(jobs[0], silent())).key


@pytest.fixture
def stopped(fresh: dict[str, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A run that was asked to stop between its checkpoints."""
    place, steps, step = fresh["first"].at(tmp_path / "store"), list[int](), trainer.training.loop.train_step

    def counted(*arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == 13:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.training.loop, "train_step", counted)
        with pytest.raises(Preempted):
            train(place.job("first"), silent())
    yield place


@pytest.mark.deep
@pytest.mark.parametrize("test", once("second", "none"))
def test_an_unfinished_run_goes_on_to_the_same_bits(
    stopped: Place, fresh: dict[str, Place], test: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        run, _ = go(stopped.job(test))
    assert not run.reused and "continuing from" in caplog.text and "at step 13 of" in caplog.text
    final = "runs/pairs/final/model.safetensors"
    assert (stopped.store / final).read_bytes() == (fresh["first"].store / final).read_bytes()
    assert measured(stopped) == measured(fresh[test])
    assert named(stopped) == named(fresh[test])


def told(place: Place) -> dict[str, bool]:
    """Who tells of an evaluation of the run."""
    (line,) = find_runs(place.open)
    return {
        "find_measured": find_measured(place.open, "runs/pairs") is not None,
        "list": line.final is not None,
        "compare": "A, B: not evaluated" not in compare(place.open, ["pairs", "pairs"]),
        "report": "has not been evaluated" not in make_report(place.open, "runs/pairs").markdown,
        "explain": explain_job(place.job("none"))[2].reasons != (NONE_YET,),
    }


@pytest.mark.deep
def test_between_the_noting_and_the_measuring_nobody_tells_of_the_old_file(
    place: Place, fresh: dict[str, Place], caplog: pytest.LogCaptureFixture
) -> None:
    job = place.job("none")
    data = encode(job, silent())
    assert not is_whole(place.open, identify_run(job, data), job, data)
    assert all(told(place).values())
    train(job, silent(), data)
    assert is_whole(place.open, identify_run(job, data), job, data)
    assert not any(told(place).values())
    caplog.clear()
    go(job)
    assert measured(place) == measured(fresh["none"]) and all(told(place).values())
    (warning,) = [each for each in caplog.messages if "another test split" in each]
    files = (EVALUATION, "predictions/test.jsonl", "predictions/validation.jsonl")
    replaced = ", ".join(f"runs/pairs/{name}" for name in files)
    assert f"{replaced}, measured on {named(fresh['first'])}, are replaced by those measured on {data.key};" in warning


@pytest.mark.deep
def test_what_was_measured_counts_again_if_its_test_file_is_asked_for_again(
    place: Place, fresh: dict[str, Place]
) -> None:
    train(place.job("none"), silent())
    assert verdicts(explain_job(place.job("first")))[:3] == ["reused"] * 3
    run, evaluation = go(place.job("first"))
    assert run.reused and evaluation.reused
    assert measured(place) == measured(fresh["first"])


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "point",
    [
        "replace runs/pairs/config.json", "unlink runs/pairs/predictions/test.jsonl",
        "replace runs/pairs/predictions/validation.jsonl", "replace runs/pairs/eval.json",
    ],
)  # fmt: skip
def test_killed_at_any_point_of_the_noting_the_next_start_makes_it_right(
    place: Place, fresh: dict[str, Place], when: str, point: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "job.yaml", place.values("none"))
    points = tmp_path / "points"
    arguments = [place.store, points, when, point, "--", "trainer.__main__", config]
    ended = start_warm(tmp_path / "said", "tests.killing", *arguments).wait()
    assert ended.status == -signal.SIGKILL and f"killed {when} {point}" in points.read_text(), ended
    found = find_measured(place.open, "runs/pairs")
    assert found is None or (isinstance(found, Result) and found.data == [named(place)])
    other = place.at(Path(shutil.copytree(place.store, tmp_path / "other")))
    for each, then in ((place, "first"), (other, "none")):
        go(each.job(then))
        assert (measured(each), named(each)) == (measured(fresh[then]), named(fresh[then]))
        assert trained(each) == trained(fresh["first"])


def test_what_was_measured_while_another_test_split_was_noted_is_not_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other, before = place.job("second"), place.job("none"), measured(place)
    train(job, silent(), encode(job, silent()))
    predict = trainer.kinds.labelled.evaluate.predict

    def meanwhile(*arguments: Any) -> Any:
        train(other, silent(), encode(other, silent()))
        return predict(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("trainer.kinds.labelled.evaluate.predict", meanwhile)
        with pytest.raises(
            RunError, match=r"runs/pairs was requested with another test split .*; start the command again"
        ):
            evaluate_run(job, "runs/pairs", silent())
    assert measured(place) == before and not any(told(place).values())


@pytest.mark.parametrize("late", once("_write", "write_sealed"))
def test_what_is_written_late_is_not_taken_for_the_new_split(
    place: Place, fresh: dict[str, Place], late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job comes in after the last look at config.json: before the predictions of the old split, or its
    figures.
    """
    old, new = place.job("second"), place.job("none")
    train(old, silent())
    module = trainer.kinds.labelled.evaluate if late == "_write" else trainer.evaluation.measurement
    write, others = getattr(module, late), [new]

    def after_the_other(*arguments: Any) -> Any:
        while others:
            go(others.pop())
        return write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, late, after_the_other)
        evaluate_run(old, "runs/pairs", silent())
    record = read_sealed(place.open, f"runs/pairs/{EVALUATION}")
    assert record is not None and named(place) == named(fresh["none"])
    assert record["data"] != [named(place)], "the old one's figures came last"
    assert not any(told(place).values())
    assert not go(new)[1].reused
    assert measured(place) == measured(fresh["none"])


def test_a_job_never_reports_the_test_figures_of_another(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, train_run = place.job("first"), place.job("second"), trainer.pipelines.any_kind.train
    noted, its_own = named(place), encode(second, silent()).key

    def meanwhile(*arguments: Any) -> ArtifactRef:
        run = train_run(*arguments)
        go(first)
        return run

    monkeypatch.setattr("trainer.pipelines.any_kind.train", meanwhile)
    with pytest.raises(RunError, match=rf"another test split \({noted}\).*{its_own}; start the command again"):
        trainer.jobs.train(second)


def test_a_file_of_predictions_without_its_split_is_removed(place: Place, fresh: dict[str, Place]) -> None:
    go(place.job("none"))
    stale = place.store / "runs/pairs/predictions/test.jsonl"
    stale.write_text("stale")
    (place.store / "runs/pairs" / EVALUATION).unlink()
    go(place.job("none"))
    assert measured(place) == measured(fresh["none"]) and not stale.exists()


def verdicts(stages: list[StepStatus]) -> list[str]:
    return [stage.verdict for stage in stages]


def test_what_is_foreseen_happens(place: Place) -> None:
    job = place.job("second")
    before = named(place)
    encoded, run, evaluation, report = explain_job(job)
    assert verdicts([encoded, run, evaluation, report]) == ["made", "reused", "made", "depends"]
    assert "second.jsonl" in encoded.reasons[0]
    assert (run.key, evaluation.key) == ("runs/pairs", f"runs/pairs/{EVALUATION}")
    assert evaluation.reasons == (f"another test split: {before} -> {encoded.key}",)
    go(job)
    assert named(place) == encoded.key
    assert verdicts(explain_job(job)) == ["reused"] * 4
    assert verdicts(explain_job(place.job("first"))) == ["reused", "reused", "made", "depends"]


def test_the_report_and_the_lineage_tell_of_the_new_file_and_the_old_set_may_go(place: Place) -> None:
    before = named(place)
    assert keys(garbage_of(place.open)) == []
    run, _ = go(place.job("second"))
    page = (place.store / run.key / "report.html").read_text(encoding="utf-8")
    details = encoded_details(place.open, named(place))
    validation = details["splits"]["validation"]["examples"]
    assert details["splits"]["test"]["examples"] == 12 and f"{validation} validation, 12 test" in page
    assert "on 12 test examples" in page
    traced = trace(place.open, run.key)
    assert traced["lineage"]["encoded"]["key"] == named(place)
    assert f"{place.raw}/second.jsonl" in {file["path"] for file in traced["raw_files"]["pairs"]}
    assert {finding.state for finding in check(place.open, traced)} == {"same"}
    assert keys(garbage_of(place.open)) == [before]
    assert keys(garbage_of(place.open, remove=True)) == [before]
    assert all(each.reused for each in go(place.job("second")))


def test_the_gate_sees_the_same_validation_figures(place: Place) -> None:
    values = {"name": "best", "metric": "loss", "better_by": 0.0}
    store, gate = place.open, place.job("first", promotion=values).promotion
    assert gate is not None
    first = evaluate_run(place.job("first"), "runs/pairs", silent())
    assert pass_through(store, gate, "runs/pairs", first.groups["validation"].figures, first.measured_on).passed
    other, second = go(place.job("second", run="other", training__learning_rate=1e-4))
    assert champion_to_measure(store, gate, other.key, second.measured_on) is None
    again = go(place.job("second"))[1]
    assert again.groups["validation"].figures == first.groups["validation"].figures
    assert not why_incomparable("loss", again.measured_on, first.measured_on)
    verdict = pass_through(store, gate, "runs/pairs", again.groups["validation"].figures, again.measured_on)
    assert (verdict.passed, verdict.reason) == (True, "it is the champion already")


def test_compared_runs_are_trained_on_the_same_and_figures_of_other_examples_are_kept_apart(place: Place) -> None:
    go(place.job("second", run="other"))
    text = compare(place.open, ["pairs", "other"])
    assert "Trained and validated on the same data. The test splits differ; their examples: A 20, B 12." in text
    assert "A, B differ in configuration." in text
    assert "so none is marked best: loss, test; accuracy, test; f1, test." in text
    assert "encoded set" not in text
    go(place.job("none", run="without", data__validation=[f"{place.raw}/second.jsonl"]))
    text = compare(place.open, ["pairs", "without"])
    assert "A, B differ in configuration and data." in text and "validation: digest" in text
    shutil.rmtree(place.store / named(place))
    assert "their examples: A gone, B 12." in compare(place.open, ["pairs", "other"])


def test_a_run_that_is_removed_while_another_test_split_is_noted_is_told(place: Place) -> None:
    job = place.job("second")
    data = encode(job, silent())
    refused = pytest.raises(ArtifactError, match="runs/pairs was removed while runs/pairs started; run the job again")
    with Lease(place.open, "runs/pairs", removing=True), refused:
        train(job, silent(), data)


def test_a_set_that_is_removed_while_it_is_noted_is_told(place: Place) -> None:
    job = place.job("second")
    data = encode(job, silent())
    (place.store / data.key / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match=rf"{data.key} was removed while runs/pairs started; run the job again"):
        train(job, silent(), data)
    _, evaluation = go(job)
    assert evaluation.data == [data.key]
