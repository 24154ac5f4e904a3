"""What is foreseen of a job is what its stages then do, and why; looking changes nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.headrace import headrace
from tests.processes import cores
from tests.s3 import S3Server
from tests.support import cpu_runtime, digests, small_job, small_values, write_config, write_corpora
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.made import encode, prepare, prepare_corpus, prepare_tokenizer
from tests.trainer.preparing import stamps, write_old
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.data.shard_building import find_shards
from trainer.data.shards import read_record
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.pipelines.any_kind import evaluate_checkpoint, train
from trainer.pipelines.explain import ExplainStages, ReadOnlyStore, explain_job
from trainer.preflight.step_status import StepStatus
from trainer.records.lease import Lease
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.report import make_report
from trainer.store.names import FINAL
from trainer.store.storage import Store

STAGES = ["the tokenizer", "shards of code", "shards of docs", "training", "evaluation", "report"]


class Place(NamedTuple):
    """Raw files, and a store into which a small job went from them to its report."""

    raw: Path
    store: Path


def run_stages(job: PipelineJob) -> dict[str, bool]:
    """Go through a whole job; returns for each stage whether it found its work done."""
    cpu_runtime()
    tokenizer = prepare_tokenizer(job.preparation(), silent())
    shards = [prepare_corpus(job.preparation(), corpus.name, tokenizer, silent()) for corpus in job.data.corpora]
    with cores(1):
        run = train(job, silent(), PreparedData(tokenizer=tokenizer, shards=shards))
        evaluation = evaluate_checkpoint(evaluation_of(job, run.key), silent())
    report = make_report(Store(job.store), run.key)
    return dict(zip(STAGES, [each.reused for each in (tokenizer, *shards, run, evaluation, report)], strict=True))


def look(job: PipelineJob) -> dict[str, StepStatus]:
    """What is foreseen, by stage, after making sure that the store is as it was."""
    folder = Path(job.store)
    before = stamps(folder), digests(folder)
    found = {stage.stage: stage for stage in explain_job(job)}
    assert (stamps(folder), digests(folder)) == before
    assert list(found) == STAGES
    return found


def reasons(found: dict[str, StepStatus]) -> dict[str, tuple[str, ...]]:
    return {name: stage.reasons for name, stage in found.items() if stage.verdict == "made"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A small job that went all the way; not to be written to."""
    folder = tmp_path_factory.mktemp("done")
    place = Place(write_corpora(folder / "raw"), folder / "store")
    assert not any(run_stages(small_job(*place)).values())
    return place


@pytest.fixture
def place(done: Place, tmp_path: Path) -> Place:
    """A copy of that."""
    return Place(*(Path(shutil.copytree(each, tmp_path / each.name)) for each in done))


def edited(place: Place) -> str:
    """The name of a file of the corpus `code` that was just added to."""
    path = min((place.raw / "code").iterdir())
    write_old(path, path.read_text(encoding="utf-8") + "\n\nADDED = 1\n")
    return path.name


def fingerprints(folder: Path) -> set[str]:
    """The fingerprints of a set's shards."""
    return {json.loads(path.read_text())["fingerprint"] for path in folder.glob("shard-*.json")}


def test_of_an_empty_store_all_is_made(place: Place, tmp_path: Path) -> None:
    found = look(small_job(place.raw, tmp_path / "none"))
    assert reasons(found) == {"the tokenizer": ("there is none yet",)}
    assert {stage.verdict for name, stage in found.items() if name != "the tokenizer"} == {"depends"}
    assert not (tmp_path / "none").exists()


def test_a_changed_file_makes_its_shard_and_what_follows(place: Place) -> None:
    name, job = edited(place), small_job(*place)
    earlier = fingerprints(next(place.store.glob("shards/code-*")))
    found = look(job)
    assert found["shards of code"].reasons == (f"files: 1 changed ({name})",)
    before, now = (
        json.loads(next(place.store.glob("runs/*/config.json")).read_text())["data"]["shards"][0]["key"],
        found,
    )
    assert found["training"].reasons == (f"data.code: {before[-16:]} -> {str(now['shards of code'].key)[-16:]}",)
    assert found["training"].work == "depends on shards of code, which will be made"
    actual = run_stages(job)
    kept = len(earlier & fingerprints(place.store / str(found["shards of code"].key)))
    assert found["shards of code"].work.startswith(f"{kept} of 2 shards reused, {2 - kept} to build from ")
    assert actual == {name: stage.verdict == "reused" for name, stage in found.items()}
    assert {stage.key for stage in look(job).values()} >= {found["shards of code"].key, found["training"].key}


def test_a_set_is_listed_once_for_all_of_its_shards(done: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store, (folder,) = Store(str(done.store)), done.store.glob("shards/code-*")
    records = [read_record(store, f"shards/{folder.name}/shard-{number:05d}.json") for number in range(2)]
    work: Any = [SimpleNamespace(number=each.number, fingerprint=each.fingerprint) for each in records if each]
    sizes, listed = Store.sizes, list[str]()
    monkeypatch.setattr(Store, "sizes", lambda store, key: (listed.append(key), sizes(store, key))[1])
    assert len(find_shards(store, f"shards/{folder.name}", "code", work, "sizes")) == 2
    assert listed == [f"shards/{folder.name}"]


def test_added_and_removed_files_are_counted_and_named(place: Place) -> None:
    removed = max((place.raw / "code").iterdir())
    removed.unlink()
    for number in range(5):
        write_old(place.raw / "code" / f"_{number}.py", f"x = {number}\n")
    (reason,) = look(small_job(*place))["shards of code"].reasons
    assert reason == f"files: 5 added (_0.py, _1.py, _2.py and 2 more), 1 removed ({removed.name})"


CHANGES: dict[str, tuple[dict[str, Any], dict[str, tuple[str, ...]], set[str]]] = {
    "shards": (
        {"data__shards__num_shards": 3},
        {f"shards of {name}": ("data.shards.num_shards: 2 -> 3",) for name in ("code", "docs")},
        {"training", "evaluation", "report"},
    ),
    "vocabulary": (
        {"data__tokenizer__vocab_size": 400},
        {"the tokenizer": ("data.tokenizer.vocab_size: 384 -> 400",)},
        set(STAGES[1:]),
    ),
    "learning rate": (
        {"training__learning_rate": 0.002},
        {"training": ("training.learning_rate: 0.001 -> 0.002",)},
        {"evaluation", "report"},
    ),
    "evaluation": (
        {"evaluation__new_tokens": 5},
        {"evaluation": ("evaluation.new_tokens: 4 -> 5",)},
        {"report"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_changed_option_is_the_one_reason_and_what_is_foreseen_happens(place: Place, name: str) -> None:
    changes, expected, later = CHANGES[name]
    job = small_job(*place, **changes)
    found = look(job)
    made = reasons(found)
    if name == "shards":  # with shards of another name, the run is another one
        told = made.pop("training")
        assert len(told) == 2 and {each.split(":")[0] for each in told} == {"data.code", "data.docs"}
        later = later - {"training"}
    assert made == expected
    assert {stage for stage, seen in found.items() if seen.verdict == "depends"} == later
    actual = run_stages(job)
    assert actual == {stage: seen.verdict == "reused" for stage, seen in found.items()}
    assert {seen.verdict for seen in look(job).values()} == {"reused"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"card__license": "mit"}, "card.license: None -> mit"),
        ({"promotion": {"name": "best", "threshold": 9.0}}, "promotion: None -> "),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_setting_that_does_not_affect_training_makes_the_report_again(
    place: Place, changes: dict[str, Any], said: str
) -> None:
    job = small_job(place.raw, place.store, **changes)
    found = look(job)
    assert {stage for stage, each in found.items() if each.verdict != "reused"} == {"report"}
    assert found["report"].reasons[0].startswith(said) and len(found["report"].reasons) == 1
    assert {stage for stage, reused in run_stages(job).items() if not reused} == {"report"}
    assert look(job)["report"].verdict == "reused"


@pytest.mark.parametrize("changes", [{"evaluation__during_training": 3}, {"evaluation__best_by": "bits_per_byte"}])
def test_what_decided_in_training_is_not_replaced_in_a_finished_run(place: Place, changes: dict[str, Any]) -> None:
    found = look(small_job(place.raw, place.store, **changes))
    assert {each.verdict for each in found.values()} == {"reused"}


def test_another_tokenizer_is_the_reason_with_what_differs_in_it(place: Place) -> None:
    job = small_job(*place, data__tokenizer__vocab_size=400)
    prepare_tokenizer(job.preparation(), silent())
    found = look(job)["shards of code"]
    (reason,) = found.reasons
    assert reason.startswith("the tokenizer: tokenizers/bpe-") and reason.endswith(
        "(data.tokenizer.vocab_size: 384 -> 400)"
    )
    assert found.work.startswith("0 of 2 shards reused, 2 to build")


@pytest.mark.parametrize(("fault", "said"), [(bytes.upper, "does not match its checksum"), (None, "is missing")])
def test_a_damaged_shard_is_named(place: Place, fault: Callable[[bytes], bytes] | None, said: str) -> None:
    shard = next(place.store.glob("shards/code-*/shard-00001.bin"))
    shard.write_bytes(fault(shard.read_bytes())) if fault else shard.unlink()
    found = look(small_job(*place, verify=True))["shards of code"]
    assert found.verdict == "made" and len(found.reasons) == 1
    assert found.reasons[0].startswith("shard-00001.bin") and said in found.reasons[0]
    assert found.work.startswith("1 of 2 shards reused, 1 to build")


def test_a_run_that_was_begun_continues_and_a_named_one_with_other_settings_is_refused(place: Place) -> None:
    (run,) = (place.store / "runs").iterdir()
    shutil.rmtree(run / FINAL)
    found = look(small_job(*place))
    assert (found["training"].verdict, found["training"].reasons) == ("continued", ("continues from step 6 of 6",))
    assert found["evaluation"].reasons == ("depends on training, which is not finished",)
    config = read_sealed(Store(str(place.store)), f"runs/{run.name}/config.json")
    assert config is not None
    run.rename(run.with_name("mine"))
    write_sealed(Store(str(place.store)), "runs/mine/config.json", config)
    refused = look(small_job(*place, run="mine", training__seed=3))["training"]
    assert refused.verdict == "refused"
    assert refused.reasons == ("runs/mine was trained with other settings", "training.seed: 0 -> 3")
    fork = look(small_job(*place, run="mine", training__seed=3, resume="fork"))["training"]
    assert fork.verdict == "made" and str(fork.key).startswith("runs/mine-fork-")
    left = "abandons runs/mine, unfinished at step 6; it differs in training.seed: 0 -> 3"
    assert fork.reasons == ("a fork of runs/mine", "training.seed: 0 -> 3", left)
    shutil.rmtree(run.with_name("mine") / "checkpoints")
    (run.with_name("mine") / "checkpoint-last").unlink()
    fork = look(small_job(*place, run="mine", training__seed=3, resume="fork"))["training"]
    assert (fork.verdict, fork.reasons) == ("refused", ("runs/mine has no checkpoint to fork from",))


def test_an_unfinished_run_that_would_be_left_behind_is_named_with_its_step_and_what_differs(place: Place) -> None:
    (run,) = (place.store / "runs").iterdir()
    shutil.rmtree(run / FINAL)
    job = small_job(*place, training__learning_rate=0.002)
    left = f"abandons runs/{run.name}, unfinished at step 6 of 6; it differs in training.learning_rate: 0.001 -> 0.002"
    assert look(job)["training"].reasons == ("training.learning_rate: 0.001 -> 0.002", left)
    with Lease(Store(job.store), f"runs/{run.name}"):
        assert left not in look(job)["training"].reasons, "it is being trained"
    (run / "checkpoint-last").write_bytes(b"{")
    assert left in look(job)["training"].reasons, "its pointer can be mended"
    shutil.rmtree(run / "checkpoints")
    assert look(job)["training"].reasons == ("training.learning_rate: 0.001 -> 0.002",)


def look_at_encoded(job: FinetuneJob) -> StepStatus:
    looking = ExplainStages(ReadOnlyStore(job.store))
    looking.make("encode", job)
    (found,) = looking.stages
    return found


def test_an_encoded_set_names_the_file_or_the_option_that_differs(pairs: Path, gpt2: Path, tmp_path: Path) -> None:
    raw = Path(shutil.copytree(pairs, tmp_path / "pairs"))
    job = finetune_job(raw, tmp_path / "store", gpt2)
    encode(job, silent(), gpt2)
    assert look_at_encoded(job).verdict == "reused"
    shorter = look_at_encoded(finetune_job(raw, tmp_path / "store", gpt2, data__max_length=24))
    assert set(shorter.reasons) >= {"data.max_length: 32 -> 24"} and all(
        "tokenizer" in each for each in shorter.reasons[1:]
    )
    swapped = look_at_encoded(finetune_job(raw, tmp_path / "store", gpt2, data__text_columns=["code", "summary"]))
    assert swapped.reasons == ("data.text_columns: ['summary', 'code'] -> ['code', 'summary']",)
    lines = (raw / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    write_old(raw / "train.jsonl", "".join(lines[:-1]))
    before = stamps(Path(job.store))
    assert look_at_encoded(job).reasons == (f"files: 1 changed ({raw / 'train.jsonl'})",)
    assert stamps(Path(job.store)) == before


def test_a_fine_tuned_model_is_measured_anew_with_another_metric(tuned: Finished) -> None:
    *_, run, evaluation, report = explain_job(tuned.job(evaluation__metrics=["f1"]))
    assert run.verdict == "reused"
    assert (evaluation.verdict, evaluation.reasons) == ("made", ("evaluation.metrics: None -> ['f1']",))
    assert report.reasons == ("depends on evaluation, which will be made",)
    with pytest.raises(ConfigError, match="is unknown"):
        explain_job(tuned.job(evaluation__metrics=["gone.py"]))


@pytest.mark.deep
def test_a_store_in_a_bucket_is_looked_at_in_the_same_way(raw: Path, s3: S3Server) -> None:
    job = small_job(raw, s3.new_store())
    prepare(job.preparation(), silent())
    store = Store(job.store)
    before = sorted(store.walk())
    found = {stage.stage: stage for stage in explain_job(job)}
    assert [found[name].verdict for name in STAGES] == ["reused", "reused", "reused", "made", "depends", "depends"]
    assert found["training"].reasons == ("there is none yet",)
    changed = {stage.stage: stage for stage in explain_job(small_job(raw, job.store, data__shards__num_shards=3))}
    assert changed["shards of docs"].reasons == ("data.shards.num_shards: 2 -> 3",)
    assert sorted(store.walk()) == before


def test_the_command_says_it_in_lines_and_as_json(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(*place))
    assert headrace("explain", str(config), "training.learning_rate=0.01") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("reused     the tokenizer           tokenizers/bpe-") and lines[0].endswith(" UTC")
    assert "           training.learning_rate: 0.001 -> 0.01" in lines
    assert headrace("explain", str(config), "--json") == 0
    assert {stage["verdict"] for stage in json.loads(capsys.readouterr().out)} == {"reused"}
    assert headrace("explain", str(config), "data.corpora.0.paths=[nowhere/*]") == 2
    assert "no file matches 'nowhere/*'" in capsys.readouterr().err
