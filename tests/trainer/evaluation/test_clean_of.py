"""An evaluation states which evaluation sets the text is clean of that the model was trained on."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.processes import cores
from tests.support import write_config
from tests.trainer.chats import chat_job
from tests.trainer.curated_runs import KEPT_OUT, curated_run, run_through
from tests.trainer.curating import write_documents
from tests.trainer.evaluation.harness_tasks import write_task, write_yaml
from tests.trainer.made import encode, encode_conversations, prepare
from tests.trainer.small_jobs import Finished
from trainer.common.progress import silent
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import FinetuneJob
from trainer.data.decisions import read_decisions
from trainer.evaluation import decontamination
from trainer.evaluation.decontamination import clean_of, find_kept_out, read_searched
from trainer.evaluation.harness import _defined
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.records.sealed import read_sealed, write_sealed
from trainer.store.manifest import digest_file
from trainer.store.storage import Store
from trainer.training.identity import data_keys


@pytest.fixture
def store(curated: Finished, tmp_path: Path) -> Store:
    """A copy of the store with the curated run, and of what that kept out."""
    shutil.copy(curated.store.parent / KEPT_OUT, tmp_path)
    return Store(str(shutil.copytree(curated.store, tmp_path / "store")))


def paths(store: Store, run: str) -> list[str] | None:
    found = clean_of(store, run)
    return found and [file.path for file in found.files]


@pytest.mark.deep
def test_the_record_names_the_files_the_n_gram_and_the_decisions(curated: Finished) -> None:
    store = Store(str(curated.store))
    (name,) = store.names("decisions")
    kept_out = read_decisions(store, f"decisions/{name}").details["kept_out"]
    record = read_sealed(store, f"{curated.run}/eval.json")
    assert record is not None
    told = {
        "ngram": 13, "least_words": 5, "files": kept_out["files"], "decisions": [f"decisions/{name}"],
        "texts": 1, "too_short": 0,
    }  # fmt: skip
    assert record["clean_of"] == told
    lineage = read_sealed(store, f"{curated.run}/lineage.json")
    assert lineage is not None and lineage["evaluation"]["clean_of"] == told


@pytest.mark.deep
def test_an_evaluation_of_a_checkpoint_tells_it_as_well(store: Store, curated: Finished) -> None:
    made = evaluate_checkpoint(
        EvaluateJob(store=store.url, checkpoint=f"{curated.run}/checkpoint-best", device="cpu"), silent()
    )
    assert made.clean_of is not None and made.clean_of.ngram == 13
    assert made.lines()[-1] == (
        f"The model's training text shares no 13-gram of words with {curated.store.parent / KEPT_OUT} (by "
        f"{made.clean_of.decisions[0]}; examples of fewer than 5 words were not searched for: 0 of 1)."
    )


def test_a_run_on_text_that_was_not_decontaminated_tells_nothing(finished: Finished) -> None:
    assert clean_of(Store(str(finished.store)), finished.run) is None
    record = read_sealed(Store(str(finished.store)), f"{finished.run}/eval.json")
    assert record is None or "clean_of" not in record


@pytest.mark.deep
def test_it_is_told_how_many_examples_were_too_short_to_be_looked_for(
    raw: Path, store: Store, curated: Finished, tmp_path: Path
) -> None:
    other, kept = write_other(tmp_path), curated.store.parent / KEPT_OUT
    other.write_text(other.read_text() + "too short\nthis too\nand these four words\n")
    prepare(curated_run(raw, Path(store.url), decontaminated(other, kept)).preparation(), silent())
    found = clean_of(store, curated.run)
    assert found is not None and (found.texts, found.too_short) == (5, 3)
    assert found.describe().endswith("examples of fewer than 5 words were not searched for: 3 of 5).")
    alone = clean_of(store, curated.run, {(digest_file(kept).sha256, "text")})
    assert (
        alone is not None
        and [file.path for file in alone.files] == [str(kept)]
        and (alone.texts, alone.too_short) == (1, 0)
    )
    assert clean_of(store, curated.run, {(digest_file(kept).sha256, "text"), ("0" * 64, "text")}) is None


def decontaminated(*files: Path, **options: Any) -> dict[str, Any]:
    named = {"files": [{"paths": list(map(str, files))}], **options}
    return {"filters": [{"kind": "length", "least_bytes": 700}], "decontaminate": named}


def further(raw: Path, store: Store, base: str, curation: dict[str, Any]) -> str:
    """A run that trains another one's model further."""
    model = {"model__pretrained": base, "model__config": None}
    return run_through(curated_run(raw, Path(store.url), curation, name="further", **model))


@pytest.mark.deep
def test_the_text_of_a_base_model_must_be_clean_too(raw: Path, store: Store, curated: Finished, tmp_path: Path) -> None:
    kept, final = curated.store.parent / KEPT_OUT, store.path(f"{curated.run}/final")
    assert paths(store, further(raw, store, final, decontaminated(kept))) == [str(kept)]
    elsewhere = Path(shutil.copytree(final, tmp_path / "elsewhere"))
    # Else it makes the same run.
    Path(elsewhere, "config.json").write_text(Path(final, "config.json").read_text() + "\n")
    assert paths(store, further(raw, store, str(elsewhere), decontaminated(kept))) is None, "a model of unknown text"
    dirty = run_through(curated_run(raw, Path(store.url), {}, name="dirty"))
    assert paths(store, dirty) is None
    assert paths(store, further(raw, store, store.path(f"{dirty}/final"), decontaminated(kept))) is None


def test_a_model_may_have_any_number_of_runs_before_it(store: Store, curated: Finished) -> None:
    config, before = read_sealed(store, f"{curated.run}/config.json"), curated.run
    assert config is not None
    for number in range(1100):
        run, fork = f"runs/fork-{number}", {"run": before, "checkpoint": "checkpoints/step-00000001"}
        write_sealed(store, f"{run}/config.json", {**config, "fork": fork})
        before = run
    assert clean_of(store, before) == clean_of(store, curated.run)


@pytest.mark.deep
def test_of_several_runs_only_what_all_kept_out_is_told(
    raw: Path, store: Store, curated: Finished, tmp_path: Path
) -> None:
    other = write_other(tmp_path)
    kept, final = curated.store.parent / KEPT_OUT, store.path(f"{curated.run}/final")
    for files, told in (([kept, other], [str(kept)]), ([other], None)):
        options = {**decontaminated(*files, ngram=5), "filters": [{"kind": "length", "least_bytes": 1000}]}
        run = further(raw, store, final, options)
        assert paths(store, run) == told
        if told:
            found = clean_of(store, run)
            assert found is not None and found.ngram == 13 and len(found.decisions) == 2


@pytest.mark.deep
def test_shards_that_more_evaluation_sets_leave_as_they_are_are_clean_of_these_too(
    raw: Path, store: Store, curated: Finished, tmp_path: Path
) -> None:
    other, kept = write_other(tmp_path), curated.store.parent / KEPT_OUT
    prepare(curated_run(raw, Path(store.url), decontaminated(other, kept)).preparation(), silent())
    assert len(store.names("shards")) == 2 and len(store.names("decisions")) == 2
    found = clean_of(store, curated.run)
    assert found is not None and [file.path for file in found.files] == sorted([str(kept), str(other)])
    assert found.decisions == [f"decisions/{name}" for name in store.names("decisions")]
    shorter = {**decontaminated(other), "filters": [{"kind": "length", "least_bytes": 1000}]}
    prepare(curated_run(raw, Path(store.url), shorter).preparation(), silent())
    assert clean_of(store, curated.run) == found, "these let other documents through"


@pytest.mark.deep
def test_the_same_texts_in_another_place_were_kept_out_as_well(
    raw: Path, store: Store, curated: Finished, tmp_path: Path
) -> None:
    moved = Path(shutil.copy(curated.store.parent / KEPT_OUT, tmp_path / "moved.txt"))
    options = {**decontaminated(moved), "filters": [{"kind": "length", "least_bytes": 1000}]}
    run = further(raw, store, store.path(f"{curated.run}/final"), options)
    assert paths(store, run) == [str(moved)]
    found = clean_of(store, run)
    assert found is not None and len(found.decisions) == 2 and (found.texts, found.too_short) == (1, 0)


def write_other(folder: Path) -> Path:
    path = folder / "other.txt"
    path.write_text("none of these words in just this order stands anywhere else among all the raw documents here\n")
    return path


LABELLED = {"train": 0, "validation": 20, "test": 30}


@pytest.mark.deep
@pytest.mark.parametrize(("source", "kept_out"), [("jsonl", True), ("parquet", True), ("jsonl", False)])
def test_a_fine_tuned_model_is_measured_on_what_its_base_was_kept_clean_of(
    raw: Path, tmp_path: Path, source: str, kept_out: bool
) -> None:
    for split, first in LABELLED.items():
        rows = [
            {"text": f"this is the text of {n} in all", "label": ("odd", "even")[n % 2]}
            for n in range(first, first + 6)
        ]
        write_documents(tmp_path / f"{split}.jsonl", rows)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    values = {
        "store": str(tmp_path / "store"), "name": "tuned", "model": {"pretrained": "runs/base"},
        "data": {
            "name": "labelled", "source": source, "text_columns": ["text"], "classes": ["odd", "even"],
            "max_length": 12,
            **{split: [f"{tmp_path}/{split}.{source}"] for split in LABELLED},
        },
        "training": {"max_steps": 1, "global_batch": 2, "device": "cpu"},
    }  # fmt: skip
    named = {"jobs": [str(write_config(tmp_path / "tuned.yaml", values))]}
    (tmp_path / "other.txt").write_text("some other words that stand in no document\n")
    other = {"files": [{"paths": [str(tmp_path / "other.txt")]}]}
    run_through(curated_run(raw, tmp_path / "store", {"decontaminate": named if kept_out else other}, run="base"))
    job = validate_job(FinetuneJob, values, "test")
    run = train(job, silent(), encode(job, silent()))
    evaluation = evaluate_run(job, run.key, silent())
    if not kept_out:
        assert evaluation.clean_of is None
        return
    assert evaluation.clean_of is not None
    assert [Path(file.path).stem for file in evaluation.clean_of.files] == ["test", "validation"]
    assert evaluation.lines()[-1] == evaluation.clean_of.describe()
    assert evaluation.clean_of.describe().startswith("The base model's training text shares no 13-gram")
    if source == "parquet":
        return
    swapped = {"train": values["data"]["validation"], "validation": values["data"]["train"]}
    other = validate_job(FinetuneJob, {**values, "run": "swapped", "data": {**values["data"], **swapped}}, "test")
    train(other, silent(), encode(other, silent()))
    fork = validate_job(FinetuneJob, {**values, "run": "swapped", "resume": "fork"}, "test")
    forked = train(fork, silent(), encode(fork, silent())).key
    assert evaluate_run(fork, forked, silent()).clean_of is None, "its origin was trained on the validation examples"
    within = validate_job(
        FinetuneJob, {**values, "data": {**values["data"], "train": values["data"]["validation"]}}, "test"
    )
    own = train(within, silent(), encode(within, silent())).key
    assert evaluate_run(within, own, silent()).clean_of is None, "it was trained on the validation examples itself"


TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'Q: ' + m['content'] + '\nA:' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)


@pytest.mark.deep
def test_of_conversations_that_a_model_was_tuned_on_nothing_was_kept_out(
    store: Store, curated: Finished, tmp_path: Path
) -> None:
    kept = curated.store.parent / KEPT_OUT
    digest = digest_file(kept).sha256
    searched = read_searched(store, curated.run)
    assert find_kept_out(searched, {(digest, "text")}) == {"kept_out": True, "least_words": 5}
    assert find_kept_out(searched, {(digest, "text"), (digest, "passage")}) == {"kept_out": False}, (
        "another field of it"
    )
    for split in ("train", "validation", "test"):
        rows = [{"prompt": f"{n} {kept.read_text()[:20]}", "completion": "it is"} for n in range(8)]
        write_documents(tmp_path / f"{split}.jsonl", rows)
    job = chat_job(
        tmp_path, store.url, f"{curated.run}/final", data__context=32, data__chat_template=TEMPLATE, training__epochs=1
    )
    with cores(1):
        run = train(job, silent(), encode_conversations(job, silent())).key
    assert not find_kept_out(read_searched(store, run), {(digest, "text")})


def test_what_was_kept_out_of_the_text_is_read_once_for_all_tasks(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_task(tmp_path)
    write_yaml(tmp_path / "pair.yaml", {"group": "pair", "task": ["tiny"]})
    read, sets = list[str](), decontamination._sets
    monkeypatch.setattr(decontamination, "_sets", lambda store, run: read.append(run) or sets(store, run))
    found = _defined(options.model_copy(update={"tasks": ["pair"]}), Store(str(finished.store)), finished.run)
    assert found.keys() == {"pair", "tiny"} and all(each.kept_out == {"kept_out": False} for each in found.values())
    assert read == [finished.run]


@pytest.mark.deep
def test_a_model_that_answers_is_measured_on_what_its_base_was_kept_clean_of(raw: Path, tmp_path: Path) -> None:
    for split, first in LABELLED.items():
        rows = [
            {"prompt": f"what is the text of {n} in all of it", "completion": f"it is {n}"}
            for n in range(first, first + 6)
        ]
        write_documents(tmp_path / f"{split}.jsonl", rows)
    changes = {"data__context": 32, "data__chat_template": TEMPLATE, "training__epochs": 1}
    job = chat_job(tmp_path, tmp_path / "store", "runs/base", **changes)
    named = {"jobs": [str(write_config(tmp_path / "chat.yaml", job.model_dump(mode="json")))]}
    run_through(curated_run(raw, tmp_path / "store", {"decontaminate": named}, run="base"))
    with cores(1):
        encoded = encode_conversations(job, silent())
        evaluation = evaluate_run(job, train(job, silent(), encoded).key, silent(), data_keys(encoded))
    assert evaluation.clean_of is not None
    assert [Path(file.path).stem for file in evaluation.clean_of.files] == ["test", "validation"]
    assert {file.field for file in evaluation.clean_of.files} == {"messages"}
    assert evaluation.clean_of.describe() in evaluation.lines()
