"""What each class counts in the loss of training."""

import difflib
from collections.abc import Mapping, Sequence

from trainer.common.errors import ConfigError
from trainer.config.labelled import BALANCED, ClassWeights


def find_class_weights(wanted: ClassWeights, classes: Sequence[str], counts: Mapping[str, int] | None) -> list[float]:
    """The weight of each class, by its id; `counts` are the examples, or words that are seen, that train has of each, or None
    while that is not known.

    Balanced ones are examples / (classes x examples of the class), as scikit-learn's `compute_class_weight` has it. Of weights
    by name, a class that is not named counts 1. Raises `ConfigError` for the name of no class, and if a class that is to be
    balanced has no example.
    """
    if wanted != BALANCED:
        _check_names(wanted, classes)
        return [wanted.get(name, 1.0) for name in classes]
    if counts is None:
        return [1.0] * len(classes)
    if absent := [name for name in classes if not counts[name]]:
        raise ConfigError(
            f"training.class_weights is {BALANCED}, but nothing that is trained on has the class {absent[0]!r}; give the "
            "weights by the names of the classes"
        )
    examples = sum(counts[name] for name in classes)
    return [examples / (len(classes) * counts[name]) for name in classes]


def _check_names(wanted: Mapping[str, float], classes: Sequence[str]) -> None:
    if unknown := [name for name in wanted if name not in classes]:
        close = difflib.get_close_matches(unknown[0], classes, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"training.class_weights names {unknown[0]!r}, but the classes are {', '.join(map(repr, classes[:12]))}"
            f"{' …' if len(classes) > 12 else ''}{hint}"
        )
