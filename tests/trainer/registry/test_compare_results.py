"""When figures of fine-tuned models are compared: if they are of the same examples, with whatever tokenizer."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.labelled_data import as_csv, as_jsonl, flat_records, job_of, prepared, records, saved_set, written
from tests.trainer.results import a_result
from trainer.config.kinds import KINDS
from trainer.records.basis import HarnessBasis, TextBasis, basis_by_split, examples_basis
from trainer.records.evaluations import HarnessRun, Result, Scores, Task
from trainer.registry.compare_figures import compare_results, compare_seeds, curve_table, spark_table
from trainer.registry.compare_runs import _note_read
from trainer.registry.compared_runs import ComparedRun
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store

PRETRAINING, FINE_TUNING, *_ = KINDS

APART = "Measured on different data or in different ways, so none is marked best: "


def rows() -> list[dict[str, Any]]:
    """Records with a second label."""
    return [{**record, "other": number % 3 % 2} for number, record in enumerate(records(60))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Labelled files without a validation split."""
    written(tmp_path / "raw" / "train.jsonl", as_jsonl(rows()))
    written(tmp_path / "raw" / "test.jsonl", as_jsonl(rows()[:20]))
    return tmp_path / "raw"


def measured(
    letter: str, store: Path, model: Path, loss: float, metrics: Sequence[str] = ("accuracy",), **options: Any
) -> ComparedRun:
    """A fine-tuned run on a real encoded set, with these losses, which are its accuracies too."""
    job = job_of(store, **options)
    key = prepared(job, model).key
    config = {"job": job.model_dump(mode="json"), "data": {"key": key}}
    manifest, splits = (
        read_manifest(Store(str(store)), key, "encoded"),
        {split: {"loss": loss, "accuracy": loss} for split in ("validation", "test")},
    )
    basis = partial(
        examples_basis, manifest.details, job.data.model_dump(), metrics=list(metrics), precision=job.training.precision
    )
    return ComparedRun(
        letter=letter, key=f"runs/{letter}", entry=FINE_TUNING, state="finished", config=config, plan={},
        environment={}, records=[], model_config={}, parameters=None,
        evaluation=a_result(splits, measured_on=basis_by_split(basis, splits)), sources={key: manifest},
    )  # fmt: skip


def files(folder: Path) -> dict[str, Any]:
    return {"source": "jsonl", "train": [f"{folder}/train.jsonl"], "test": [f"{folder}/test.jsonl"]}


def note(*runs: ComparedRun) -> str:
    return compare_results(runs).note


def apart(*splits: str) -> str:
    """What is said where no figure of these splits is best."""
    told = "; ".join(f"{figure}, {split}" for split in splits for figure in ("loss", "accuracy"))
    return f"{APART}{told}."


def marked(*runs: ComparedRun) -> dict[str, list[bool]]:
    """Of each figure, whether a run's is marked as the best."""
    table = compare_results(runs).table
    assert table is not None
    return {str(name): [str(cell).endswith("*") for cell in cells] for name, *cells in table.rows}


def test_a_cut_split_is_the_same_with_another_tokenizer_and_from_another_folder(
    folder: Path, bert: Path, gpt2: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    one = measured("A", tmp_path / "store", bert, 0.5, **files(folder))
    two = measured("B", tmp_path / "store", gpt2, 0.4, **files(folder))
    three = measured("C", tmp_path / "other", gpt2, 0.3, max_length=24, **files(moved))
    assert (
        one.encoded
        and two.encoded
        and one.encoded.details["tokenizer_sha256"] != two.encoded.details["tokenizer_sha256"]
    )
    assert note(one, two, three) == "* marks the best."


def test_a_split_that_is_cut_otherwise_is_another_and_one_of_its_own_files_is_not(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    one = measured("A", tmp_path / "store", bert, 0.5, **files(folder))
    two = measured("B", tmp_path / "store", bert, 0.4, validation_fraction=0.3, **files(folder))
    assert note(one, two) == f"{apart('validation')} * marks the best."
    written(folder / "train.jsonl", as_jsonl([*rows()[:-1], {**rows()[-1], "label": 0}]))
    assert (
        note(one, measured("B", tmp_path / "store", bert, 0.4, **files(folder)))
        == f"{apart('validation')} * marks the best."
    )


def test_the_same_texts_with_other_labels_are_other_examples(folder: Path, bert: Path, tmp_path: Path) -> None:
    one = measured("A", tmp_path / "store", bert, 0.5, **files(folder))
    two = measured("B", tmp_path / "store", bert, 0.4, label_column="other", **files(folder))
    assert note(one, two) == apart("validation", "test")


def test_a_file_whose_quotes_are_taken_as_text_has_other_examples(bert: Path, tmp_path: Path) -> None:
    path = [written(tmp_path / "rows.csv", as_csv(flat_records(40), "\t"))]
    table = {"source": "csv", "delimiter": "\t", "train": path, "test": path}
    one, two = (measured(letter, tmp_path / "store", bert, 0.5, quoting=letter == "A", **table) for letter in "AB")
    assert note(one, two) == apart("validation", "test")


@pytest.mark.parametrize("cut", [True, False])
def test_of_a_saved_data_set_the_share_counts_only_where_it_is_cut(
    cut: bool, bert: Path, gpt2: Path, tmp_path: Path
) -> None:
    splits = {"train": rows(), "test": rows()[:20]} | ({} if cut else {"validation": rows()[20:40]})
    path = {"source": "disk", "path": saved_set(tmp_path, splits)}
    one = measured("A", tmp_path / "store", bert, 0.5, **path)
    assert note(one, measured("B", tmp_path / "store", gpt2, 0.4, **path)) == "* marks the best."
    other = measured("B", tmp_path / "store", gpt2, 0.4, validation_fraction=0.3, **path)
    assert note(one, other) == (f"{apart('validation')} * marks the best." if cut else "* marks the best.")


def test_a_figure_is_not_compared_with_that_of_another_metric_of_its_name(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    def run(letter: str, *metrics: str) -> ComparedRun:
        return measured(letter, tmp_path / "store", bert, 0.5, metrics, **files(folder))

    both = f"{APART}accuracy, validation; accuracy, test. * marks the best."
    assert note(run("A", "0" * 64), run("B", "1" * 64)) == both, "files of these digests"
    assert note(run("A", "accuracy"), run("B", "0" * 64)) == both
    assert note(run("A", "accuracy of yes"), run("B", "accuracy of no")) == both
    assert note(run("A", "accuracy", "f1"), run("B", "precision", "accuracy")) == "* marks the best."


def test_which_figure_is_best_is_as_the_jobs_say_and_else_as_lm_eval_does(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    def harness(value: float, greater: bool | None) -> Result:
        better = {} if greater is None else {"share": greater}
        task = Task(version="1", identity="ab", greater_is_better=better)
        scores = Scores(figures={"share": value}, counts={"examples": 1, "few_shot": 0})
        return a_result(
            {}, by="task", groups={"task": scores}, measured_on=HarnessBasis(harness={"task": "ab"}),
            asked=HarnessRun(lm_eval="1", tasks={"task": task}),
        )  # fmt: skip

    def pair(greater: bool | None, **gate: Any) -> list[ComparedRun]:
        runs = []
        for letter, value in (("A", 0.4), ("B", 0.6)):
            run = measured(letter, tmp_path / "store", bert, value, **files(folder))
            assert run.evaluation is not None
            job = {**run.config["job"], "promotion": gate or None}
            evaluation = run.evaluation.beside(harness(value, greater))
            runs.append(replace(run, evaluation=evaluation, config={**run.config, "job": job}))
        return runs

    first, second = [True, False], [False, True]
    assert [marked(*pair(greater))["harness/task/share"] for greater in (None, True, False)] == [second, second, first]
    said = {"metric": "harness/task/share", "greater_is_better": False}
    assert marked(*pair(True, **said))["harness/task/share"] == first
    found = marked(*pair(None, metric="accuracy", greater_is_better=False))
    assert found["accuracy, test"] == found["loss, test"] == first and found["harness/task/share"] == second


def language_model(letter: str, loss: float, bits: float, tokenizer: str) -> ComparedRun:
    """A pretrained run, measured on a text with this tokenizer."""
    figures = {"loss": loss, "perplexity": 2.7**loss, "bits_per_byte": bits}
    basis = TextBasis(
        held_out={"code": "ab"},
        shards=[f"code-{tokenizer}"],
        tokenizer=tokenizer,
        keeps_text=True,
        context=32,
        precision="fp32",
    )
    total = Scores(figures=figures)
    return ComparedRun(
        letter=letter, key=f"runs/{letter}", entry=PRETRAINING, state="finished",
        config={"job": {"evaluation": {}, "training": {}}, "data": {"shards": []}}, plan={}, environment={}, records=[],
        evaluation=a_result({"code": figures}, by="corpus", total=total, measured_on=basis),
        model_config={}, parameters=None, sources={},
    )  # fmt: skip


def test_seeds_are_those_of_fresh_runs_or_of_forks_of_one_checkpoint_and_each_counts_once() -> None:
    def run(letter: str, seed: int, loss: float, fork: dict[str, str] | None = None) -> ComparedRun:
        made = language_model(letter, loss, 2.0, "small")
        identity = {"model": "small", "training": {"seed": seed}}
        return replace(made, config={**made.config, "identity": identity, "fork": fork})

    fork = {"run": "runs/a", "checkpoint": "checkpoints/step-00000010"}
    fresh, again, forked = run("A", 0, 3.0), run("B", 0, 3.0), run("C", 1, 2.0, fork)
    assert not compare_seeds([fresh, again]) and not compare_seeds([fresh, forked])
    (found,) = compare_seeds([fresh, again, forked, run("D", 2, 3.5), run("E", 2, 2.5, fork)])
    assert found.table is not None and found.table.columns == ["mean ± deviation", "A, D", "C, E"]
    assert next(row for row in found.table.rows if row[0] == "loss, all corpora")[1:] == [
        "3.2500 ± 0.3536",
        "2.2500 ± 0.3536",
    ]
    (found,) = compare_seeds([fresh, run("D", 2, math.nan)])
    assert found.table is not None and ["loss, all corpora", "– ± –"] in found.table.rows


def test_of_models_with_different_tokenizers_the_best_by_bits_a_byte_is_marked_and_by_loss_none_is() -> None:
    found = compare_results([language_model("A", 5.0, 2.0, "large"), language_model("B", 4.0, 2.5, "small")])
    assert (
        found.note
        == f"{APART}loss, all corpora; perplexity, all corpora; loss, code; perplexity, code. * marks the best."
    )
    assert found.table is not None
    rows = {row[0]: row[1:] for row in found.table.rows}
    assert rows["bits_per_byte, all corpora"] == ["2.0000 *", "2.5000  "] and rows["loss, all corpora"] == [
        "5.0000  ",
        "4.0000  ",
    ]
    same = compare_results([language_model("A", 5.0, 2.0, "large"), language_model("B", 4.0, 1.5, "large")])
    assert same.note == "* marks the best."


def evaluated(run: ComparedRun, *losses: float, tokens: int = 90, **evaluation: Any) -> ComparedRun:
    """A run with these validation losses, each of which is its share too, in training on so many tokens."""
    records = [
        {"kind": "evaluation", "step": step, "loss": loss, "share": loss, "tokens": tokens}
        for step, loss in enumerate(losses)
    ]
    job = {**run.config["job"], "evaluation": evaluation}
    return replace(run, records=records, config={**run.config, "job": job})


def test_the_best_in_training_is_as_one_of_the_jobs_says_for_all_runs() -> None:
    smaller = {"best_by": "share", "greater_is_better": False}
    one = evaluated(language_model("A", 2.0, 1.0, "one"), 9.0, 0.5, 0.25, **smaller)
    two = evaluated(language_model("B", 2.0, 1.0, "one"), 9.0, 0.5, 0.25)
    (row,) = [row for row in curve_table([one, two]).rows if row[0] == "validation share, best"]
    assert row[1:] == ["0.2500 at 2"] * 2


def test_a_figure_in_training_of_another_class_is_not_the_best_and_is_said_to_be_of_another() -> None:
    def run(letter: str, *classes: str) -> ComparedRun:
        made = evaluated(language_model(letter, 2.0, 1.0, "one"), 0.5, 0.75, 0.25, best_by="f1", metrics=["f1"])
        records = [
            {**each, "f1": each["loss"], "positive": name} for each, name in zip(made.records, classes, strict=True)
        ]
        return replace(made, records=records)

    one, two = run("A", "no", "no", "yes"), run("B", "no", "no", "no")
    rows = {row[0]: row[1:] for row in curve_table([one, two]).rows}
    assert (
        rows["validation f1, best"] == ["0.2500 at 2", "0.7500 at 1"]
        and rows["validation loss, best"] == ["0.2500 at 2"] * 2
    )
    said = "The validation figures of one class in training are of different classes: A of 'yes', B of 'no'."
    assert [*_note_read([one, two])] == [said] and not [*_note_read([two, two])]


def test_a_curve_that_ends_without_a_number_does_not_seem_to_end_earlier() -> None:
    run = evaluated(language_model("A", 2.0, 1.0, "one"), 4.0, 3.0, math.nan)
    assert [row[-1] for row in spark_table([run]).rows] == ["–"]


def test_losses_in_training_of_other_amounts_of_text_are_said_to_be() -> None:
    one, two = (evaluated(language_model(letter, 2.0, 1.0, "one"), 4.0, 3.0) for letter in "AB")
    other = evaluated(language_model("C", 2.0, 1.0, "one"), 4.0, 3.0, tokens=900)
    assert [*_note_read([one, two])] == [] == [*_note_read([one])] == [*_note_read([replace(one, records=[]), two])]
    (said,) = _note_read([one, other])
    assert said == "The validation figures of A, C in training are of different amounts of held-out data."
