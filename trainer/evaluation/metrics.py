"""Metrics of labelled data, built in or loaded from modules of Hugging Face's `evaluate` (a file, or the hub).

Also the criterion that selects a run's best checkpoint.
"""

import difflib
import numbers
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError
from trainer.common.imports import with_imports
from trainer.config.evaluation import PREFIX, SelectionConfig, TrainedHarnessConfig
from trainer.evaluation.builtin_metrics import (
    FIGURES,
    OF_NUMBERS,
    SEQEVAL,
    SEVERAL,
    TAGS,
    WORD_ACCURACY,
    BuiltinMetric,
    Sentences,
    marks_entities,
)
from trainer.records.evaluations import Criterion
from trainer.records.shapes import READ, EvaluationRecord
from trainer.store.manifest import digest_file, fingerprint

HUB = "hub:"

Task = Literal["classification", "multi-label", "regression", "tokens"]

METRICS: dict[str, Task] = {
    **dict.fromkeys(FIGURES, "classification"),
    **dict.fromkeys(OF_NUMBERS, "regression"),
    **dict.fromkeys(SEVERAL, "multi-label"),
    **dict.fromkeys(TAGS, "tokens"),
}
"""The built-in metrics, with their tasks."""

TYPES: dict[Task, type | None] = {
    "classification": np.int64, "multi-label": np.int8, "regression": np.float64, "tokens": None,
}  # fmt: skip
"""The type in which predictions and labels are kept until they are measured; labels of words are lists of names."""

USUAL: dict[Task, Sequence[str]] = {
    "classification": ("accuracy", "f1"), "multi-label": ("subset_accuracy", "f1_micro", "f1_macro"),
    "regression": ("pearsonr", "spearmanr"), "tokens": (SEQEVAL,),
}  # fmt: skip
"""The default metrics. A result's recipe does not contain them, so raise `FORMAT` in trainer/records/evaluations.py if
this list changes.
"""

AVERAGED = ("f1", "precision", "recall")
"""Metrics with a figure per class, which need an option for the averaging."""

OF_ONE_CLASS = {**{name: name for name in AVERAGED}, "glue/mrpc": "f1", "glue/qqp": "f1"}
"""The figure of each of these metrics that is computed for the positive class, if there are two classes."""

SMALLER_IS_BETTER = {
    "mse", "rmse", "mae", "mape", "smape", "mase", "msle", "rmsle", "ece", "nll", "perplexity", "ppl", "bits", "brier",
    "wer", "cer", "ter", "wape", "medae", "kl", "rejected",
}  # fmt: skip
SMALLER_ENDINGS = ("loss", "error", "errors", "mse", "mae", "mape", "entropy", "divergence", "distance", "deviation")
"""Words, and endings of words, in the names of figures of which a smaller value is better."""


RESERVED = (*EvaluationRecord.model_fields, *READ)
"""The fields that the record of an evaluation during training has besides the metrics' figures."""


class Measure(NamedTuple):
    """A metric's name, its `evaluate` module, and the options of the module's `compute`.

    `swapped`: the two class ids are swapped, because the modules treat class 1 as the positive one.
    """

    name: str
    module: Any
    options: dict[str, Any]
    swapped: bool = False

    def names(self, figure: str) -> str:
        """The name of one of its figures if that of the figure itself is taken."""
        is_named_alike = re.split("[:/]", self.name)[-1] == figure and self.name not in RESERVED
        return self.name if is_named_alike else f"{self.name}/{figure}"


class Metrics:
    """Collects predictions in batches and computes the figures of several metrics."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self.measures = list(measures)
        self._examples = 0

    def add_batch(self, predictions: NDArray[Any] | Sentences, references: NDArray[Any] | Sentences) -> None:
        """Add predicted and true class ids or numbers, of shape [B], or indicators of classes, of shape [B, C].

        For words, both are lists of class names, one per example. Raises `ConfigError` if a metric refuses them.
        """
        if isinstance(predictions, list) or isinstance(references, list):
            if [*map(len, predictions)] != [*map(len, references)]:
                raise ValueError("predictions and references differ in their numbers of words")
        elif predictions.ndim not in (1, 2) or predictions.shape != references.shape:
            raise ValueError(
                f"predictions of shape {predictions.shape} for references of shape {references.shape}; expected [B] or "
                "[B, C] for both"
            )
        if not len(predictions):
            return
        for measure in self.measures:
            sides = {"predictions": predictions, "references": references}
            if measure.swapped:
                sides = {side: 1 - np.asarray(ids) for side, ids in sides.items()}
            try:
                measure.module.add_batch(**sides)
            except Exception as error:  # whatever a foreign module raises
                raise _failed(measure.name, error) from error
        self._examples += len(predictions)

    def compute(self) -> dict[str, float]:
        """The figures of all batches added since the last call, by the names that the modules give them.

        An undefined figure is NaN, such as the correlation with a constant. A figure that two modules return is
        renamed METRIC/FIGURE, or to the metric's name if that ends with the figure's; so is one with a name in
        `RESERVED`. Raises `ConfigError` if there were no examples, or if a metric fails or returns no number.
        """
        if not self._examples and self.measures:
            raise ConfigError(f"nothing to measure: no examples for {', '.join(each.name for each in self.measures)}")
        figures = [(measure, _compute(measure)) for measure in self.measures]
        self._examples = 0
        names = Counter([*RESERVED, *(key for _, each in figures for key in each)])
        return {key if names[key] == 1 else of.names(key): value for of, each in figures for key, value in each.items()}


def default_metrics(task: Task, classes: Sequence[str], subset: str | None) -> list[str]:
    """The default metrics; `subset` is the GLUE task of the data, if any."""
    if task == "tokens" and not marks_entities(classes):
        return [WORD_ACCURACY]
    glue = f"glue/{subset}"
    if glue in METRICS and _misfit(glue, task, len(classes)) is None:
        return [glue]
    return list(USUAL[task])


def load_metrics(names: Sequence[str], task: Task, classes: int, positive: int = 1) -> Metrics:
    """Load metrics: built-in ones by name, modules of `evaluate` by their file or folder, modules of the hub as
    hub:NAME.

    `classes` is the number of classes. With two classes, precision, recall and F1 are those of the class `positive`,
    else the mean over the classes that occur. Raises `ConfigError` for a metric that is unknown, does not fit the task
    or the number of classes, cannot be loaded, or is given twice.
    """
    measures = [_load(name, task, classes)._replace(swapped=positive == 0 and has_positive(name)) for name in names]
    twice = [name for name, times in Counter(measure.name for measure in measures).items() if times > 1]
    if twice:
        raise ConfigError(f"evaluation.metrics lists {', '.join(twice)} twice; list each once, under a distinct name")
    return Metrics(measures)


def positive_class(wanted: str | int | None, classes: Sequence[str], metrics: Sequence[str]) -> int:
    """The id of the positive class for precision, recall and F1, given its name or id; 1 by default.

    Raises `ConfigError` for an unknown class, if there are not two classes, or if no metric has a figure of one class.
    """
    if wanted is None:
        return 1
    setting = f"evaluation.positive_class is {wanted!r}"
    if len(classes) != 2:
        found = f"{len(classes)} classes" if classes else "numbers"
        raise ConfigError(f"{setting}, which needs two classes, but the data has {found}; remove it")
    if not any(map(has_positive, metrics)):
        raise ConfigError(
            f"{setting}, but none of {', '.join(metrics)} has a positive class; remove it, or add the metric f1"
        )
    ids = {"0": 0, "1": 1, **{name: number for number, name in enumerate(classes)}}
    if str(wanted) not in ids:
        raise ConfigError(f"{setting}, but the classes are 0 ({classes[0]!r}) and 1 ({classes[1]!r})")
    return ids[str(wanted)]


def has_positive(name: str) -> bool:
    """Whether a metric has a figure of the positive class of two classes; for a metric from a file this is unknown."""
    return name.removeprefix(HUB) in OF_ONE_CLASS


def of_one_class(metrics: Sequence[str]) -> set[str]:
    """The figures of these metrics that are computed for the positive class, by all names that they may have."""
    found = [(Measure(name, None, {}), OF_ONE_CLASS.get(name.removeprefix(HUB))) for name in metrics]
    return {name for measure, figure in found if figure for name in (figure, measure.names(figure))}


def greater_is_better(name: str, stated: bool | None = None) -> bool:
    """Whether a greater figure is better: `stated` if it is given, else False for a name of a loss or an error.

    The name of an lm-eval task is ignored.
    """
    if stated is not None:
        return stated
    figure = name.rpartition("/")[2] if name.startswith(PREFIX) else name
    words = re.split(r"[^a-z]+", figure.lower())
    return not any(word in SMALLER_IS_BETTER or word.endswith(SMALLER_ENDINGS) for word in words)


def metric_identity(name: str) -> str:
    """A metric's name, or for a path the digest of its file and of the local files that it imports."""
    if name in METRICS or name.startswith(HUB):
        return name
    digests = [digest_file(path).sha256 for path in with_imports(_find_file(name))]
    return fingerprint(digests) if len(digests) > 1 else digests[0]


def file_of(name: str) -> str | None:
    """The name of a metric's file without its ending, which the names of its figures may contain; None if it has no
    file.
    """
    return None if name in METRICS or name.startswith(HUB) else _find_file(name).stem


def _load(name: str, task: Task, classes: int) -> Measure:
    """Load one metric; raises `ConfigError` as `load_metrics` does."""
    plain = name.removeprefix(HUB)
    misfit = _misfit(plain, task, classes)
    if misfit is not None:
        raise ConfigError(f"metric {name!r} {misfit}")
    options = {"average": "macro"} if plain in AVERAGED and classes > 2 else {}
    if name.startswith(HUB):
        return Measure(name, _load_from_hub(plain), options)
    if name in FIGURES:
        return Measure(name, BuiltinMetric(FIGURES[name], TYPES[task]), options)
    path = _find_file(name)
    return Measure(path.stem, _load_file(path), options)


def _misfit(name: str, task: Task, classes: int) -> str | None:
    """Why a metric does not fit the task, or None; metrics that are not built in are not checked."""
    if METRICS.get(name, task) != task:
        fitting = ", ".join(each for each, other in METRICS.items() if other == task)
        return f"is for {METRICS[name]}, but the task is {task}; metrics for it are {fitting}"
    if name in ("glue/mrpc", "glue/qqp") and classes > 2:
        return f"is for two classes, but the data has {classes}; use accuracy and f1"
    return None


def _find_file(name: str) -> Path:
    """The file of a module given by path: the file itself, or FOLDER/FOLDER.py; raises `ConfigError` if missing."""
    path = Path(name).expanduser().resolve()
    if path.suffix == ".py" and path.is_file():
        return path
    if (script := path / f"{path.name}.py").is_file():
        return script
    if path.exists():
        raise ConfigError(
            f"metric {name!r}: {path} is not a module of `evaluate`: neither a .py file nor a folder with {script.name}"
        )
    close = difflib.get_close_matches(name.lower(), METRICS, n=1)
    raise ConfigError(
        f"metric {name!r} is unknown{f'; did you mean {close[0]!r}?' if close else ''}: expected one of "
        f"{', '.join(METRICS)}, the path of a module of `evaluate`, or hub:NAME for a module of the hub"
    )


def _load_file(path: Path) -> Any:
    """Load the module of a file; raises `ConfigError` on failure."""
    try:
        return _open(str(path))
    except Exception:  # the file fails, or evaluate's cached copy of it was truncated by a kill: retry with a new copy
        for module in [module for module in sys.modules if module.startswith(f"evaluate_modules.metrics.{path.stem}.")]:
            del sys.modules[module]
    try:
        return _open(str(path), download_mode="force_redownload")
    except Exception as error:
        raise ConfigError(f"metric {path} cannot be loaded: {type(error).__name__}: {error}") from error


def _load_from_hub(name: str) -> Any:
    """Load the hub's module NAME, NAME/TASK of a benchmark, or OWNER/NAME; raises `ConfigError` on failure."""
    parts = name.split("/")
    if len(parts) == 1 or parts[0] in ("glue", "super_glue"):
        # The owner of these modules; without it `evaluate` would search the working directory first.
        parts.insert(0, "evaluate-metric")
    try:
        return _open("/".join(parts[:2]), parts[2] if len(parts) > 2 else None)
    except Exception as error:  # network, HTTP and the module's own errors alike
        hint = f"; {name!r} without {HUB} needs no hub" if name in METRICS else ""
        raise ConfigError(
            f"metric {name!r} cannot be loaded from the hub{hint}: {type(error).__name__}: {error}"
        ) from error


def _open(path: str, configuration: str | None = None, **options: Any) -> Any:
    import evaluate  # takes seconds to import

    # Values are kept in memory, but `evaluate` creates a cache folder anyway, which processes must not share.
    with tempfile.TemporaryDirectory(prefix="headrace-metrics-") as folder:
        return evaluate.load(path, configuration, cache_dir=folder, keep_in_memory=True, **options)


def _compute(measure: Measure) -> dict[str, float]:
    """The numbers that a metric returns; raises `ConfigError` if it fails or returns none."""
    try:
        found = dict(measure.module.compute(**measure.options))
    except Exception as error:  # whatever a foreign module raises
        raise _failed(measure.name, error) from error
    figures = {key: float(value) for key, value in found.items() if isinstance(value, numbers.Real)}
    if not figures:
        raise ConfigError(f"metric {measure.name!r} returns no number, only {', '.join(found) or 'nothing'}")
    return figures


def _failed(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"metric {name!r} refuses these predictions and labels: {type(error).__name__}: {error}")


BY_LOSS = Criterion("loss", greater_is_better=False)


def criterion_of(options: SelectionConfig) -> Criterion:
    """The criterion that selects the best checkpoint."""
    return Criterion(options.best_by, greater_is_better(options.best_by, options.greater_is_better))


def describe_selection(options: SelectionConfig, harness: TrainedHarnessConfig | None) -> dict[str, Any]:
    """The identity of the criterion for a language model's best checkpoint; empty if it is the loss.

    For a figure of an lm-eval task, it includes the task. Raises `ConfigError` if lm-eval is not installed or files of
    the task are missing.
    """
    criterion = criterion_of(options)
    if criterion == BY_LOSS:
        return {}
    selection: dict[str, Any] = {"best_by": criterion.figure, "greater_is_better": criterion.greater_is_better}
    if harness is not None and criterion.figure.startswith(PREFIX):
        from trainer.evaluation.harness_identity import describe_task, identify, installed_version

        task = criterion.figure.split("/")[1]
        identity = identify(harness.model_copy(update={"tasks": [task]}), installed_version())[task]
        selection["task"] = {"every": harness.every, **describe_task(identity)}
    return selection
