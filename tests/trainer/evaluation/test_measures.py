"""Metrics: the figures of scikit-learn and scipy, modules that `evaluate` loads, and errors that say what is wrong."""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics as sk

from tests import ROOT
from tests.http_server import Answering, http_server
from tests.processes import wait_until
from trainer.common.errors import ConfigError
from trainer.evaluation.builtin_metrics import SEVERAL, TAGS, marks_entities, score_entities
from trainer.evaluation.metrics import (
    AVERAGED,
    METRICS,
    Metrics,
    Task,
    default_metrics,
    greater_is_better,
    load_metrics,
    metric_identity,
    of_one_class,
    positive_class,
)

CLASSIFICATION: dict[str, Callable[..., float]] = {
    "accuracy": sk.accuracy_score, "f1": sk.f1_score, "precision": sk.precision_score, "recall": sk.recall_score,
    "matthews_correlation": sk.matthews_corrcoef,
}  # fmt: skip
REGRESSION: dict[str, Callable[..., float]] = {
    "pearsonr": lambda truth, guess: float(stats.pearsonr(truth, guess).statistic),
    "spearmanr": lambda truth, guess: float(stats.spearmanr(truth, guess).statistic),
    "mse": sk.mean_squared_error,
}
GLUE: dict[str, dict[str, Callable[..., float]]] = {
    "cola": {"matthews_correlation": sk.matthews_corrcoef},
    "mrpc": {"accuracy": sk.accuracy_score, "f1": sk.f1_score},
    "qqp": {"accuracy": sk.accuracy_score, "f1": sk.f1_score},
    "stsb": {"pearson": REGRESSION["pearsonr"], "spearmanr": REGRESSION["spearmanr"]},
    **{task: {"accuracy": sk.accuracy_score} for task in ("sst2", "qnli", "rte", "wnli", "hans")},
    **{task: {"accuracy": sk.accuracy_score} for task in ("mnli", "mnli_matched", "mnli_mismatched")},
}
FOREIGN = """
import datasets
import evaluate

class Foreign(evaluate.Metric):
    def _info(self):
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="", citation="", features=datasets.Features({{"predictions": number, "references": number}})
        )

    def _compute(self, predictions, references):
        return {body}
"""


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Everything that `evaluate` keeps is kept in a folder of the test's own, and temporary files beside it."""
    folder = tmp_path / "caches"
    others = str(evaluate.config.HF_MODULES_CACHE)  # on the path if a metric was loaded before in this process
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != others])
    for name in ("HF_MODULES_CACHE", "HF_METRICS_CACHE", "HF_EVALUATE_CACHE", "DOWNLOADED_EVALUATE_PATH"):
        monkeypatch.setattr(evaluate.config, name, folder / name)
    monkeypatch.setattr(evaluate.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    forget_copies()
    yield folder
    forget_copies()


def forget_copies() -> None:
    """Make Python forget the copies of modules that it imported from another test's folder."""
    for name in [name for name in sys.modules if name.split(".")[0] == "evaluate_modules"]:
        del sys.modules[name]


def labels(classes: int, examples: int = 101, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Predicted and true classes, of which about half agree."""
    chance = np.random.default_rng(seed)
    references = chance.integers(classes, size=examples)
    return np.where(chance.random(examples) < 0.5, references, chance.integers(classes, size=examples)), references


def values(examples: int = 101) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Predicted and true numbers that correlate; predictions are float32, as models give them."""
    chance = np.random.default_rng(0)
    references = chance.normal(size=examples)
    return (references + chance.normal(size=examples)).astype(np.float32), references


def measure(metrics: Metrics, predictions: NDArray[Any], references: NDArray[Any], batch: int = 32) -> dict[str, float]:
    for start in range(0, len(predictions), batch):
        metrics.add_batch(predictions[start : start + batch], references[start : start + batch])
    return metrics.compute()


def write_module(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FOREIGN.format(body=body))
    return path


def error_of(*names: str, task: Task = "classification", classes: int = 2) -> str:
    with pytest.raises(ConfigError) as caught:
        load_metrics(names, task, classes)
    return str(caught.value)


@pytest.mark.parametrize("batch", [1, 7, 101])
@pytest.mark.parametrize("classes", [2, 5])
def test_figures_of_classes_are_those_of_scikit_learn_whatever_the_batch(classes: int, batch: int) -> None:
    predictions, references = labels(classes)
    several = {"average": "macro"} if classes > 2 else {}
    expected = {
        name: function(references, predictions, **(several if name in ("f1", "precision", "recall") else {}))
        for name, function in CLASSIFICATION.items()
    }
    found = measure(load_metrics(list(CLASSIFICATION), "classification", classes), predictions, references, batch)
    assert found == pytest.approx(expected, rel=1e-12)
    assert {type(figure) for figure in found.values()} == {float}


@pytest.mark.parametrize("batch", [1, 7, 101])
def test_figures_of_numbers_are_those_of_scipy_and_scikit_learn_whatever_the_batch(batch: int) -> None:
    predictions, references = values()
    expected = {name: function(references, predictions.astype(np.float64)) for name, function in REGRESSION.items()}
    found = measure(load_metrics(list(REGRESSION), "regression", 0), predictions, references, batch)
    assert found == pytest.approx(expected, rel=1e-12)
    assert {type(figure) for figure in found.values()} == {float}


@pytest.mark.parametrize("task", GLUE)
def test_a_glue_task_gives_its_own_figures(task: str) -> None:
    classes = 3 if task.startswith("mnli") else 2
    predictions, references = values() if task == "stsb" else labels(classes)
    metrics = load_metrics([f"glue/{task}"], "regression" if task == "stsb" else "classification", classes)
    expected = {key: function(references, predictions) for key, function in GLUE[task].items()}
    assert measure(metrics, predictions, references) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("positive", [0, 1])
def test_figures_of_one_class_are_those_of_the_positive_one(positive: int) -> None:
    predictions, references = labels(2)
    found = measure(load_metrics(list(CLASSIFICATION), "classification", 2, positive), predictions, references)
    of_it = {name: {"pos_label": positive} if name in AVERAGED else {} for name in CLASSIFICATION}
    expected = {name: function(references, predictions, **of_it[name]) for name, function in CLASSIFICATION.items()}
    assert found == pytest.approx(expected, rel=1e-12)
    glue = measure(load_metrics(["glue/mrpc"], "classification", 2, positive), predictions, references)
    assert glue == pytest.approx({"accuracy": expected["accuracy"], "f1": expected["f1"]})


def test_a_metric_from_a_file_gets_the_classes_as_they_are_whichever_is_positive(tmp_path: Path) -> None:
    own = write_module(tmp_path / "share.py", '{"share": sum(predictions) / len(predictions)}')
    predictions, references = labels(2, examples=100)
    for positive in (0, 1):
        found = measure(load_metrics([str(own), "f1"], "classification", 2, positive), predictions, references)
        assert found["share"] == pytest.approx(predictions.mean())


def test_a_positive_class_is_found_by_name_or_id() -> None:
    classes = ["no", "yes"]
    assert [positive_class(wanted, classes, ["f1"]) for wanted in (None, "no", "yes", 0, 1, "0", "1")] == [
        1,
        0,
        1,
        0,
        1,
        0,
        1,
    ]
    assert [positive_class(wanted, ["1", "2"], ["glue/qqp"]) for wanted in ("1", 1, "2", 0)] == [0, 0, 1, 0]
    for wanted, names, metrics, message in (
        ("maybe", classes, ["f1"], r"is 'maybe', but the classes are 0 \('no'\) and 1 \('yes'\)"),
        ("yes", [*classes, "x"], ["f1"], "needs two classes, but the data has 3 classes"),
        (1, [], ["mse"], "needs two classes, but the data has numbers"),
        (1, classes, ["accuracy"], "but none of accuracy has a positive class"),
    ):
        with pytest.raises(ConfigError, match=f"evaluation.positive_class .*{message}"):
            positive_class(wanted, names, metrics)
    assert of_one_class(["f1", "accuracy", "glue/mrpc", "hub:recall"]) == {"f1", "glue/mrpc/f1", "recall", "hub:recall"}


def test_figures_of_several_labels_are_scikit_learns_in_whatever_batches() -> None:
    draw = np.random.default_rng(3)
    true, told = (draw.integers(0, 2, (50, 4)) for _ in range(2))
    true[:, 3] = told[:, 3] = 0
    metrics = load_metrics(SEVERAL, "multi-label", 4)
    for start in range(0, 50, 7):
        metrics.add_batch(told[start : start + 7], true[start : start + 7])
    assert metrics.compute() == pytest.approx(
        {
            "subset_accuracy": sk.accuracy_score(true, told),
            "f1_micro": sk.f1_score(true, told, average="micro"),
            "f1_macro": sk.f1_score(true, told, average="macro", zero_division=0.0),
        }
    )
    with pytest.raises(ConfigError, match="'accuracy' is for classification, but the task is multi-label"):
        load_metrics(["accuracy"], "multi-label", 4)


def entities(labels: list[str], number: int) -> set[tuple[int, int, str]]:
    """Where the entities of a sentence begin, how many words they have, and their types; I-X after another begins one
    too.
    """
    found: list[tuple[int, int, str]] = []
    for place, label in enumerate(labels):
        start, _, kind = label.partition("-")
        begin, words, last = found[-1] if found else (0, 0, "")
        if start == "I" and last == kind and begin + words == place:
            found[-1] = (begin, words + 1, kind)
        elif start != "O":
            found.append((place, 1, kind))
    return {(number * 1000 + begin, words, kind) for begin, words, kind in found}


def test_figures_of_entities_are_those_of_a_plain_count_in_whatever_batches() -> None:
    classes = ["O", "B-X", "I-X", "B-Y-Z", "I-Y-Z", "B-W", "B-V", "B-U", "B-N"]
    draw = np.random.default_rng(5)
    true = [[classes[n] for n in draw.integers(0, 8, length)] for length in draw.integers(1, 12, 60)]
    told = [[label if draw.random() < 0.7 else classes[draw.integers(0, 8)] for label in labels] for labels in true]
    metrics = load_metrics(["seqeval"], "tokens", len(classes))
    for start in range(0, 60, 7):
        metrics.add_batch(told[start : start + 7], true[start : start + 7])
    found, expected = (set().union(*(entities(each, n) for n, each in enumerate(labels))) for labels in (told, true))
    precision, recall = len(found & expected) / len(found), len(found & expected) / len(expected)
    same = [one == other for each in zip(told, true, strict=True) for one, other in zip(*each, strict=True)]
    assert metrics.compute() == pytest.approx({
        "precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall),
        "accuracy": sum(same) / len(same),
    })  # fmt: skip
    for kind, precision, recall, _, support in score_entities(told, true, classes):
        of_kind, wanted = ({each for each in side if each[2] == kind} for side in (found, expected))
        assert support == len(wanted)
        assert precision == pytest.approx(len(of_kind & wanted) / max(len(of_kind), 1))
        assert recall == pytest.approx(len(of_kind & wanted) / max(len(wanted), 1))
    assert [kind for kind, *_ in score_entities(told, true, classes)] == ["X", "Y-Z", "W", "V", "U", "N"]
    assert score_entities([["O"]], [["O"]], classes)[0] == ("X", 0.0, 0.0, 0.0, 0)
    alone = load_metrics(["word_accuracy"], "tokens", 6)
    alone.add_batch(told, true)
    assert alone.compute() == {"accuracy": pytest.approx(sum(same) / len(same))}
    empty = load_metrics(["seqeval"], "tokens", 6)
    empty.add_batch([["O", "O"]], [["O", "O"]])
    assert empty.compute() == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0}
    with pytest.raises(ValueError, match="differ in their numbers of words"):
        metrics.add_batch([["O"]], [["O", "O"]])
    with pytest.raises(
        ConfigError, match="'f1' is for classification, but the task is tokens; metrics for it are seqeval"
    ):
        load_metrics(["f1"], "tokens", 6)


def test_a_module_of_labels_of_words_gets_their_names_in_lists(tmp_path: Path) -> None:
    path = write_module(
        tmp_path / "own.py", '{"examples": len(predictions), "same": sum(map(list.__eq__, predictions, references))}'
    )
    words = path.read_text().replace('datasets.Value("float64")', 'datasets.List(datasets.Value("string"))')
    path.write_text(words)
    metrics = load_metrics([str(path)], "tokens", 3)
    metrics.add_batch([["O", "B-X"], ["O"]], [["O", "I-X"], ["O"]])
    assert metrics.compute() == {"own/examples": 2, "same": 1}


def test_a_scheme_of_entities_is_known_by_its_labels() -> None:
    assert marks_entities(["O", "B-PER", "I-PER"]) and marks_entities(["B", "I", "O"])
    assert marks_entities(["O", "S-X", "B-X", "I-X", "E-X"])
    assert not marks_entities(["NOUN", "VERB"]) and not marks_entities(["0", "1"]) and not marks_entities(["O", "PER"])


def test_all_our_metrics_are_tried_here() -> None:
    assert set(METRICS) == {*CLASSIFICATION, *REGRESSION, *SEVERAL, *TAGS, *(f"glue/{task}" for task in GLUE)}


def test_metrics_can_be_used_for_one_split_after_another() -> None:
    metrics = load_metrics(["glue/mrpc"], "classification", 2)
    first, second = labels(2, seed=1), labels(2, seed=2)
    figures = [measure(metrics, *each) for each in (first, second, first)]
    assert figures[0] == figures[2] != figures[1]


def test_measuring_leaves_the_random_numbers_alone() -> None:
    before = np.random.get_state()[1:]
    measure(load_metrics(["accuracy"], "classification", 2), *labels(2))
    assert all(np.array_equal(*pair) for pair in zip(before, np.random.get_state()[1:], strict=True))


@pytest.mark.parametrize("constant", ["predictions", "references", "both"])
def test_a_correlation_with_a_constant_is_undefined_and_nobody_is_warned(constant: str) -> None:
    predictions, references = values()
    if constant != "references":
        predictions = np.full_like(predictions, 0.1)
    if constant != "predictions":
        references = np.full_like(references, 2.5)
    found = measure(load_metrics(["pearsonr", "spearmanr", "glue/stsb"], "regression", 0), predictions, references)
    assert len(found) == 4 and all(math.isnan(figure) for figure in found.values())


def test_a_correlation_of_one_example_is_undefined() -> None:
    found = measure(load_metrics(["pearsonr", "spearmanr", "mse"], "regression", 0), np.array([1.0]), np.array([3.0]))
    assert math.isnan(found["pearsonr"]) and math.isnan(found["spearmanr"]) and found["mse"] == 4


def test_nearly_constant_predictions_have_a_correlation_and_nobody_is_warned() -> None:
    predictions, references = np.nextafter(np.ones(3), [2.0, 1.0, 2.0]), np.array([1.0, 0.0, 2.0])
    found = measure(load_metrics(["pearsonr", "glue/stsb"], "regression", 0), predictions, references)
    assert 0 < found["pearsonr"] <= 1 and found["pearson"] == found["pearsonr"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_model_that_diverged_has_undefined_figures(bad: float) -> None:
    predictions, references = values()
    predictions[3] = bad
    found = measure(
        load_metrics(["pearsonr", "spearmanr", "mse", "glue/stsb"], "regression", 0), predictions, references
    )
    assert len(found) == 5 and all(math.isnan(figure) for figure in found.values())


@pytest.mark.parametrize(("only", "right"), [(0, 0.0), (1, 1.0)])
def test_one_class_alone_has_figures_and_nobody_is_warned(only: int, right: float) -> None:
    ids = np.full(9, only)
    found = measure(load_metrics([*CLASSIFICATION, "glue/cola"], "classification", 2), ids, ids)
    assert found.pop("accuracy") == 1
    assert {key: found.pop(key) for key in ("f1", "precision", "recall")} == dict.fromkeys(
        ("f1", "precision", "recall"), right
    )
    assert found == {"matthews_correlation": 0, "glue/cola/matthews_correlation": 0}


def test_a_class_that_is_never_predicted_warns_nobody() -> None:
    found = measure(load_metrics(["f1", "precision"], "classification", 3), np.array([0, 0, 1]), np.array([0, 1, 2]))
    assert found == pytest.approx({"f1": 2 / 9, "precision": 1 / 6})


def test_no_examples_are_an_error_that_says_so() -> None:
    metrics = load_metrics(["accuracy", "f1"], "classification", 2)
    metrics.add_batch(np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    with pytest.raises(ConfigError, match="no examples for accuracy, f1"):
        metrics.compute()


def test_no_metrics_give_no_figures() -> None:
    assert measure(load_metrics([], "classification", 2), *labels(2)) == {}


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\) for references of shape \(3,\)"):
        load_metrics(["accuracy"], "classification", 2).add_batch(np.array([0, 1]), np.array([0, 1, 1]))


@pytest.mark.parametrize(
    ("task", "classes", "subset", "expected"),
    [
        ("classification", 2, "mrpc", ["glue/mrpc"]), ("classification", 3, "mnli", ["glue/mnli"]),
        ("regression", 0, "stsb", ["glue/stsb"]), ("classification", 2, None, ["accuracy", "f1"]),
        ("regression", 0, None, ["pearsonr", "spearmanr"]), ("classification", 3, "mrpc", ["accuracy", "f1"]),
        ("classification", 2, "stsb", ["accuracy", "f1"]), ("regression", 0, "cola", ["pearsonr", "spearmanr"]),
        ("classification", 2, "ax", ["accuracy", "f1"]),
    ],
)  # fmt: skip
def test_the_default_is_what_fits_the_data(task: Task, classes: int, subset: str | None, expected: list[str]) -> None:
    assert default_metrics(task, [f"class {number}" for number in range(classes)], subset) == expected
    load_metrics(expected, task, classes)


def test_an_unknown_metric_is_named_with_all_there_are() -> None:
    said = error_of("acuracy")
    assert "'acuracy' is unknown; did you mean 'accuracy'?" in said
    assert all(name in said for name in METRICS) and "hub:NAME" in said
    assert "did you mean 'f1'?" in error_of("F1")
    assert "did you mean" not in error_of("./somewhere/else.py")


@pytest.mark.parametrize("name", ["accuracy", "f1", "glue/cola", "hub:precision", "hub:glue/mrpc"])
def test_a_metric_of_classes_is_refused_for_numbers(name: str) -> None:
    said = error_of(name, task="regression", classes=0)
    assert repr(name) in said and "is for classification, but the task is regression" in said and "pearsonr" in said


@pytest.mark.parametrize("name", ["pearsonr", "mse", "glue/stsb", "hub:spearmanr"])
def test_a_metric_of_numbers_is_refused_for_classes(name: str) -> None:
    said = error_of(name)
    assert repr(name) in said and "is for regression, but the task is classification" in said and "accuracy" in said


def test_a_glue_task_of_two_classes_is_refused_for_more() -> None:
    assert "'glue/mrpc' is for two classes, but the data has 4" in error_of("glue/mrpc", classes=4)


def test_a_metric_given_twice_is_refused(tmp_path: Path) -> None:
    assert "lists f1 twice" in error_of("f1", "accuracy", "f1")
    assert "lists f1 twice" in error_of("f1", str(write_module(tmp_path / "f1.py", "{}")))


def test_a_module_is_taken_by_its_file_or_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path / "own" / "own.py", '{"share": np.float32(sum(predictions) / len(predictions)), "rows": 3}')
    (tmp_path / "own" / "own.py").write_text("import numpy as np\n" + (tmp_path / "own" / "own.py").read_text())
    monkeypatch.chdir(tmp_path)
    for name in ("own", "./own/own.py", str(tmp_path / "own") + "/"):
        for task in ("classification", "regression"):
            found = measure(load_metrics([name], task, 4), np.array([1, 0, 1, 0]), np.array([1, 0, 0, 0]))
            assert found == {"share": 0.5, "rows": 3.0}


def test_the_module_in_the_documentation_computes_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    module = page.partition('```python title="balanced.py"\n')[2].partition("```")[0]
    (tmp_path / "balanced.py").write_text(module)
    truth, guess = np.array([0, 0, 0, 1, 2, 2]), np.array([0, 1, 0, 1, 0, 2])
    found = measure(load_metrics([str(tmp_path / "balanced.py")], "classification", 3), guess, truth)
    assert found == {"balanced_accuracy": pytest.approx(sk.balanced_accuracy_score(truth, guess))}


def test_a_module_is_another_if_it_or_what_it_imports_changes(tmp_path: Path) -> None:
    path = write_module(tmp_path / "own.py", '{"figure": WEIGHT}')
    path.write_text(f"from .weights import WEIGHT\n{path.read_text()}")
    (tmp_path / "other.py").write_text("")
    found = []
    for weight in (1.0, 5.0):
        (tmp_path / "weights.py").write_text(f"WEIGHT = {weight}\n")
        found.append(metric_identity(str(path)))
        assert measure(load_metrics([str(path)], "classification", 2), *labels(2)) == {"figure": weight}
    (tmp_path / "other.py").write_text("changed = True\n")
    assert metric_identity(str(path)) == found[1] != found[0]


def test_a_module_that_was_changed_is_taken_as_it_is_now(tmp_path: Path) -> None:
    for figure in (1.0, 2.0):
        path = write_module(tmp_path / "own.py", f'{{"figure": {figure}}}')
        assert measure(load_metrics([str(path)], "classification", 2), *labels(2)) == {"figure": figure}


def test_figures_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    own = write_module(tmp_path / "own.py", '{"loss": 1.0, "other": 2.0, "lists": predictions}')
    found = measure(load_metrics(["accuracy", "glue/mrpc", str(own)], "classification", 2), *labels(2))
    assert list(found) == ["accuracy", "glue/mrpc/accuracy", "f1", "own/loss", "other"]
    loss = write_module(tmp_path / "loss.py", '{"loss": 1.0}')
    assert measure(load_metrics([str(loss)], "classification", 2), *labels(2)) == {"loss/loss": 1.0}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("None", "TypeError"),
        ('{"list": predictions}', "no number, only list"),
    ],
)
def test_a_foreign_module_that_fails_is_named_with_its_error(body: str, said: str, tmp_path: Path) -> None:
    metrics = load_metrics([str(write_module(tmp_path / "own.py", body))], "classification", 2)
    with pytest.raises(ConfigError, match=f"metric 'own' .*{said}"):
        measure(metrics, *labels(2))


def test_a_foreign_module_that_wants_other_inputs_is_named_with_its_error(tmp_path: Path) -> None:
    path = write_module(tmp_path / "own.py", "{}")
    path.write_text(path.read_text().replace('"references"', '"answers"'))
    with pytest.raises(ConfigError, match="metric 'own' refuses these predictions and labels"):
        measure(load_metrics([str(path)], "classification", 2), *labels(2))


def test_a_file_that_is_no_module_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    assert "nowhere_to_be_found" in error_of(str(tmp_path / "broken.py"))
    (tmp_path / "empty").mkdir()
    assert "nor a folder with empty.py" in error_of(str(tmp_path / "empty"))
    (tmp_path / "notes.txt").write_text("accuracy")
    assert "neither a .py file" in error_of(str(tmp_path / "notes.txt"))


def test_a_copy_that_a_kill_cut_short_is_made_anew(caches: Path, tmp_path: Path) -> None:
    own = str(write_module(tmp_path / "own.py", '{"figure": 1.0}'))
    load_metrics([own], "classification", 2)
    (copy,) = caches.glob("HF_MODULES_CACHE/evaluate_modules/metrics/own/*/own.py")
    for cut in ("", "class Foreign(evaluate.Met"):
        copy.write_text(cut)
        forget_copies()
        assert measure(load_metrics([own], "classification", 2), np.ones(2), np.ones(2)) == {"figure": 1}


def test_nothing_is_left_behind_and_no_network_is_asked(
    caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.socket.connect", lambda self, address: asked.append(address))
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **options: asked.append(address))
    measure(load_metrics([*CLASSIFICATION, "glue/mrpc"], "classification", 2), *labels(2))
    assert not caches.exists()
    own = str(write_module(tmp_path / "own.py", '{"figure": 1.0}'))
    measure(load_metrics([own], "classification", 2), *labels(2))
    unfinished = load_metrics([own], "regression", 0)
    unfinished.add_batch(*values())
    assert not asked
    assert [path.name for path in caches.iterdir()] == ["HF_MODULES_CACHE"]
    assert not list(Path(tempfile.gettempdir()).iterdir())


@pytest.mark.deep
def test_processes_that_load_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
import evaluate, numpy as np
from trainer.evaluation.metrics import load_metrics
Path(sys.argv[1]).touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.0005)
for _ in range(3):
    metrics = load_metrics([f"{sys.argv[3]}/{number}.py" for number in range(6)], "classification", 2)
    metrics.add_batch(np.array([0, 1, 1]), np.array([0, 1, 0]))
    print(metrics.compute()["f5"])
"""
    for number in range(6):
        write_module(tmp_path / f"{number}.py", f'{{"f{number}": sum(predictions) / len(predictions)}}')
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", program]
    running = [
        subprocess.Popen(
            [*command, str(tmp_path / f"ready-{number}"), str(tmp_path / "go"), str(tmp_path)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(3)
    ]  # fmt: skip
    wait_until(
        lambda: len(list(tmp_path.glob("ready-*"))) == 3 or any(process.poll() is not None for process in running)
    )
    (tmp_path / "go").touch()
    for process in running:
        said, complaints = process.communicate(timeout=60)
        assert (process.returncode, said.split()) == (0, ["0.6666666666666666"] * 3), complaints
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["modules"]


def test_a_module_of_the_hub_is_fetched_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served" / "spaces"
    for owner, name in (("evaluate-metric", "accuracy"), ("evaluate-metric", "glue"), ("someone", "own")):
        write_module(
            served / owner / name / f"{name}.py", f'{{"from": {len(owner)}.0, "is_mrpc": self.config_name == "mrpc"}}'
        )
    quiet = type("Quiet", (Answering, SimpleHTTPRequestHandler), {})
    with http_server(partial(quiet, directory=str(tmp_path / "served"))) as address:
        monkeypatch.setattr(evaluate.config, "HUB_EVALUATE_URL", f"{address}/spaces/{{path}}/{{name}}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        write_module(tmp_path / "accuracy" / "accuracy.py", "{}")
        monkeypatch.chdir(tmp_path)  # where the name of one is a folder too
        expected = {
            "hub:accuracy": (15, 0), "hub:glue/mrpc": (15, 1), "hub:someone/own": (7, 0),
            "hub:someone/own/mrpc": (7, 1),
        }  # fmt: skip
        for name, (owner, is_mrpc) in expected.items():
            found = measure(load_metrics([name], "classification", 2), *labels(2))
            assert found == {"from": owner, "is_mrpc": is_mrpc}


@pytest.mark.parametrize("name", ["hub:accuracy", "hub:glue/mrpc", "hub:someone/own"])
def test_a_hub_that_cannot_be_reached_is_said_to_be_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.config, "HUB_EVALUATE_URL", "http://127.0.0.1:9/{path}/{name}")
    said = error_of(name)
    assert f"{name.removeprefix('hub:')!r} cannot be loaded from the hub" in said
    assert ("needs no hub" in said) == (name != "hub:someone/own")


def test_evaluate_is_not_imported_before_a_metric_is_loaded() -> None:
    program = "import sys, trainer.evaluation.metrics; sys.exit('evaluate' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_less_of_a_loss_or_an_error_is_better_and_more_of_anything_else() -> None:
    less = [
        "loss",
        "eval_loss",
        "mse",
        "RMSE",
        "mae",
        "mean_absolute_error",
        "own/loss",
        "errors",
        "wer",
        "smape",
        "ppl",
        "nrmse",
        "cross_entropy",
        "wape",
        "kl_divergence",
        "edit_distance",
        "median_absolute_deviation",
        "reward_rejected",
        "harness/own/word_perplexity",
    ]
    more = [
        "accuracy", "f1", "glue/mrpc/accuracy", "pearsonr", "matthews_correlation", "own", "lossless", "terms",
        "harness/spelling_errors/acc",
    ]  # fmt: skip
    assert [name for name in [*less, *more] if greater_is_better(name)] == more
