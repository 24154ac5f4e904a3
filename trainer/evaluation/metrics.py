"""Metrics of labelled data: our own, and modules of Hugging Face's `evaluate`, of a file or the hub; and what says
which checkpoint of a run is best.
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
from trainer.evaluation.own_metrics import (
    FIGURES,
    OF_NUMBERS,
    SEQEVAL,
    SEVERAL,
    TAGS,
    WORD_ACCURACY,
    OwnMetric,
    Sentences,
    marks_entities,
)
from trainer.records.evaluations import Criterion
from trainer.store.manifest import digest_file, fingerprint

HUB = "hub:"

Task = Literal["classification", "multi-label", "regression", "tokens"]

METRICS: dict[str, Task] = {
    **dict.fromkeys(FIGURES, "classification"),
    **dict.fromkeys(OF_NUMBERS, "regression"),
    **dict.fromkeys(SEVERAL, "multi-label"),
    **dict.fromkeys(TAGS, "tokens"),
}
"""Our own, and what they are for."""

TYPES: dict[Task, type | None] = {
    "classification": np.int64, "multi-label": np.int8, "regression": np.float64, "tokens": None,
}  # fmt: skip
"""As what predictions and labels are kept until they are measured; those of words are lists of names."""

USUAL: dict[Task, Sequence[str]] = {
    "classification": ("accuracy", "f1"), "multi-label": ("subset_accuracy", "f1_micro", "f1_macro"),
    "regression": ("pearsonr", "spearmanr"), "tokens": (SEQEVAL,),
}  # fmt: skip
"""What is measured if nothing is said. A result's recipe does not name these, so that with another list `FORMAT` of
trainer/records/evaluations.py must be raised.
"""

AVERAGED = ("f1", "precision", "recall")
"""Those that have a figure a class, and need to be told how to make it one."""

OF_ONE_CLASS = {**{name: name for name in AVERAGED}, "glue/mrpc": "f1", "glue/qqp": "f1"}
"""The figure that each of these has of the positive class, where there are two classes."""

SMALLER_IS_BETTER = {
    "mse", "rmse", "mae", "mape", "smape", "mase", "msle", "rmsle", "ece", "nll", "perplexity", "ppl", "bits", "brier",
    "wer", "cer", "ter",
}  # fmt: skip


class Measure(NamedTuple):
    """A metric's name, its `evaluate` module, and what the module's `compute` is told.

    `swapped`: the two classes change places, for a module that takes class 1 for the positive one.
    """

    name: str
    module: Any
    options: dict[str, Any]
    swapped: bool = False

    def names(self, figure: str) -> str:
        """What one of its figures is called where another metric gives one of that name too."""
        return self.name if re.split("[:/]", self.name)[-1] == figure else f"{self.name}/{figure}"


class Metrics:
    """Takes in predictions as they come, and gives the figures of several metrics."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self.measures = list(measures)
        self._examples = 0

    def add_batch(self, predictions: NDArray[Any] | Sentences, references: NDArray[Any] | Sentences) -> None:
        """Take in predicted and true class ids, or numbers, of shape [B], or which classes apply, of shape [B, C].

        Of words they are the names of their classes, in lists by example. Raises `ConfigError` if a metric refuses
        them.
        """
        if isinstance(predictions, list) or isinstance(references, list):
            if [*map(len, predictions)] != [*map(len, references)]:
                raise ValueError("the predictions and the references are not of the same words")
        elif predictions.ndim not in (1, 2) or predictions.shape != references.shape:
            raise ValueError(
                f"predictions of shape {predictions.shape} for references of shape {references.shape}; need [B] or [B, "
                "C]"
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
        """The figures of all that was taken in since the last call, by the names that the modules give them.

        What is undefined is NaN, such as the correlation with a constant. A figure that two modules give goes by
        METRIC/FIGURE, or the metric's name if that says it, and so does one called loss, which is not theirs. Raises
        `ConfigError` if nothing was taken in, or if a metric fails or gives no number.
        """
        if not self._examples and self.measures:
            raise ConfigError(f"nothing to measure: no examples for {', '.join(each.name for each in self.measures)}")
        figures = [(measure, _compute(measure)) for measure in self.measures]
        self._examples = 0
        given = Counter(["loss", *(key for _, each in figures for key in each)])
        return {key if given[key] == 1 else of.names(key): value for of, each in figures for key, value in each.items()}


def default_metrics(task: Task, classes: int, subset: str | None) -> list[str]:
    """What is measured if nothing is said; `subset` names the GLUE task where the data are one."""
    glue = f"glue/{subset}"
    if glue in METRICS and _misfit(glue, task, classes) is None:
        return [glue]
    return list(USUAL[task])


def default_of_words(classes: Sequence[str]) -> list[str]:
    """The same where each word has a label: figures of entities if the labels mark some."""
    return [SEQEVAL if marks_entities(classes) else WORD_ACCURACY]


def load_metrics(names: Sequence[str], task: Task, classes: int, positive: int = 1) -> Metrics:
    """Load metrics: our own by name, any module of `evaluate` by its file or folder, the hub's as hub:NAME.

    `classes` is the number of classes. Precision, recall and F1 are those of the class `positive` where there are two
    classes, else the mean over the classes that occur. Raises `ConfigError` for a metric that is unknown, does not fit
    the task or the number of classes, cannot be loaded, or is given twice.
    """
    measures = [_load(name, task, classes)._replace(swapped=positive == 0 and has_positive(name)) for name in names]
    twice = [name for name, times in Counter(measure.name for measure in measures).items() if times > 1]
    if twice:
        raise ConfigError(f"evaluation.metrics gives {', '.join(twice)} twice; give each once, under a name of its own")
    return Metrics(measures)


def positive_class(wanted: str | int | None, classes: Sequence[str], metrics: Sequence[str]) -> int:
    """The id of the class that precision, recall and F1 are of: that of a name, or an id; 1 if nothing is wanted.

    Raises `ConfigError` if there is no such class, if there are not two, or if none of the metrics has such a figure.
    """
    if wanted is None:
        return 1
    setting = f"evaluation.positive_class is {wanted!r}"
    if len(classes) != 2:
        found = f"{len(classes)} classes" if classes else "numbers"
        raise ConfigError(f"{setting}, which goes with two classes, but the data has {found}; leave it out")
    if not any(map(has_positive, metrics)):
        raise ConfigError(
            f"{setting}, but none of {', '.join(metrics)} is of one class; leave it out, or measure f1 too"
        )
    ids = {"0": 0, "1": 1, **{name: number for number, name in enumerate(classes)}}
    if str(wanted) not in ids:
        raise ConfigError(f"{setting}, but the classes are 0 ({classes[0]!r}) and 1 ({classes[1]!r})")
    return ids[str(wanted)]


def has_positive(name: str) -> bool:
    """Whether a metric has a figure of the positive class, where there are two: a file's, of whatever name, has none
    that is known of.
    """
    return name.removeprefix(HUB) in OF_ONE_CLASS


def of_one_class(metrics: Sequence[str]) -> set[str]:
    """The figures of these metrics that are of one class where there are two, by all names that they may go by."""
    found = [(Measure(name, None, {}), OF_ONE_CLASS.get(name.removeprefix(HUB))) for name in metrics]
    return {name for measure, figure in found if figure for name in (figure, measure.names(figure))}


def greater_is_better(name: str, said: bool | None = None) -> bool:
    """Whether a greater figure of this name is better, where nobody `said` it: not if it is a loss or an error.

    The names of tasks do not count.
    """
    if said is not None:
        return said
    figure = name.rpartition("/")[2] if name.startswith(PREFIX) else name
    words = re.split(r"[^a-z]+", figure.lower())
    return not any(word in SMALLER_IS_BETTER or word.endswith(("loss", "error", "errors")) for word in words)


def metric_identity(name: str) -> str:
    """A metric's name, or the digest of the file that a path means, with those that it imports from beside it: another
    figure if their content changes.
    """
    if name in METRICS or name.startswith(HUB):
        return name
    digests = [digest_file(path).sha256 for path in with_imports(_find_file(name))]
    return fingerprint(digests) if len(digests) > 1 else digests[0]


def _load(name: str, task: Task, classes: int) -> Measure:
    """One metric. Raises `ConfigError` as `load_metrics` does."""
    plain = name.removeprefix(HUB)
    misfit = _misfit(plain, task, classes)
    if misfit is not None:
        raise ConfigError(f"metric {name!r} {misfit}")
    options = {"average": "macro"} if plain in AVERAGED and classes > 2 else {}
    if name.startswith(HUB):
        return Measure(name, _load_from_hub(plain), options)
    if name in FIGURES:
        return Measure(name, OwnMetric(FIGURES[name], TYPES[task]), options)
    path = _find_file(name)
    return Measure(path.stem, _load_file(path), options)


def _misfit(name: str, task: Task, classes: int) -> str | None:
    """Why a metric does not go with the task, if so; of a foreign one this is not known."""
    if METRICS.get(name, task) != task:
        fitting = ", ".join(each for each, other in METRICS.items() if other == task)
        return f"is for {METRICS[name]}, but the task is {task}; metrics for it are {fitting}"
    if name in ("glue/mrpc", "glue/qqp") and classes > 2:
        return f"is for two classes, but the data has {classes}; take accuracy and f1"
    return None


def _find_file(name: str) -> Path:
    """The file of a module given by path: the file itself, or FOLDER/FOLDER.py. Raises `ConfigError` if there is
    none.
    """
    path = Path(name).expanduser().resolve()
    if path.suffix == ".py" and path.is_file():
        return path
    if (script := path / f"{path.name}.py").is_file():
        return script
    if path.exists():
        raise ConfigError(
            f"metric {name!r}: {path} is no module of `evaluate`: neither a .py file nor a folder with {script.name}"
        )
    close = difflib.get_close_matches(name.lower(), METRICS, n=1)
    raise ConfigError(
        f"metric {name!r} is unknown{f'; did you mean {close[0]!r}?' if close else ''}: there are "
        f"{', '.join(METRICS)}, and the path of a module of `evaluate` or hub:NAME for the hub's are taken too"
    )


def _load_file(path: Path) -> Any:
    """The module of a file. Raises `ConfigError` if it cannot be loaded."""
    try:
        return _open(str(path))
    except (
        Exception
    ):  # the file's own fault, or that of evaluate's copy of it, cut short by a kill and then kept for ever
        for module in [module for module in sys.modules if module.startswith(f"evaluate_modules.metrics.{path.stem}.")]:
            del sys.modules[module]
    try:
        return _open(str(path), download_mode="force_redownload")
    except Exception as error:
        raise ConfigError(f"metric {path} cannot be loaded: {type(error).__name__}: {error}") from error


def _load_from_hub(name: str) -> Any:
    """The hub's module NAME, NAME/TASK of a benchmark, or OWNER/NAME. Raises `ConfigError` if it cannot be reached."""
    parts = name.split("/")
    if len(parts) == 1 or parts[0] in ("glue", "super_glue"):
        # Whose they are; with the owner `evaluate` does not look in the working directory.
        parts.insert(0, "evaluate-metric")
    try:
        return _open("/".join(parts[:2]), parts[2] if len(parts) > 2 else None)
    except Exception as error:  # network, HTTP and the module's own errors alike
        ours = f"; {name!r} without {HUB} needs no hub" if name in METRICS else ""
        raise ConfigError(
            f"metric {name!r} cannot be loaded from the hub{ours}: {type(error).__name__}: {error}"
        ) from error


def _open(path: str, configuration: str | None = None, **options: Any) -> Any:
    import evaluate  # takes seconds, and only who measures needs it

    # What is measured stays in memory; `evaluate` makes a folder for it all the same, which others would share.
    with tempfile.TemporaryDirectory(prefix="headrace-metrics-") as folder:
        return evaluate.load(path, configuration, cache_dir=folder, keep_in_memory=True, **options)


def _compute(measure: Measure) -> dict[str, float]:
    """The numbers that a metric gives. Raises `ConfigError` if it fails or gives none."""
    try:
        found = dict(measure.module.compute(**measure.options))
    except Exception as error:  # whatever a foreign module raises
        raise _failed(measure.name, error) from error
    figures = {key: float(value) for key, value in found.items() if isinstance(value, numbers.Real)}
    if not figures:
        raise ConfigError(f"metric {measure.name!r} gives no number, but {', '.join(found) or 'nothing'}")
    return figures


def _failed(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"metric {name!r} does not take these predictions and labels: {type(error).__name__}: {error}")


BY_LOSS = Criterion("loss", greater_is_better=False)


def criterion_of(options: SelectionConfig) -> Criterion:
    """What says which checkpoint is best."""
    return Criterion(options.best_by, greater_is_better(options.best_by, options.greater_is_better))


def describe_selection(options: SelectionConfig, harness: TrainedHarnessConfig | None) -> dict[str, Any]:
    """What decides which checkpoint of a language model is best, where that is not the loss: the figure, and the task
    that has it.

    Raises `ConfigError` if lm-eval is to measure it and is not installed, or files of the task are not there.
    """
    criterion = criterion_of(options)
    if criterion == BY_LOSS:
        return {}
    told: dict[str, Any] = {"best_by": criterion.figure, "greater_is_better": criterion.greater_is_better}
    if harness is not None and criterion.figure.startswith(PREFIX):
        from trainer.evaluation.harness_identity import describe_task, identify, installed_version

        task = criterion.figure.split("/")[1]
        identity = identify(harness.model_copy(update={"tasks": [task]}), installed_version())[task]
        told["task"] = {"every": harness.every, **describe_task(identity)}
    return told
