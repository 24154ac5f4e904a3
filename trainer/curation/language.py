"""The most likely language of each text and its probability, by py3langid's model: naive Bayes over byte n-grams.

The library reads byte by byte in Python. Here, compiled loops apply the same model, and add in the same order on every
machine.
"""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from trainer.curation.characters import Positions
from trainer.curation.loops import compiled
from trainer.curation.texts import Texts, starts_of

LANGUAGE = np.dtype([
    ("language", "S3"),  # ISO 639, of two or three letters
    ("language_probability", np.float32),
])  # fmt: skip

UNDETERMINED = b"und"
"""The language of a text in which the model finds no features, such as an empty one; its probability is 0."""


class Model(NamedTuple):
    """An automaton that reads bytes, the features that it finds, and their weights for each class."""

    moves: NDArray[np.uint32]
    """The next state after each byte, of shape [rows, 256]; several states may share a row."""
    row: NDArray[np.int64]
    """The row of each state."""
    feature: NDArray[np.int32]
    """The feature found when a state is reached; negative if none."""
    weights: NDArray[np.float32]
    """Log probabilities, of shape [features, classes]."""
    prior: NDArray[np.float32]


def language(texts: Texts) -> NDArray[np.void]:
    """The fields of `LANGUAGE` for each text."""
    model, classes = _load_model()
    written = (text.lower() if text.isupper() else text for text in texts.strings)  # as the model expects
    letters = [unicodedata.normalize("NFC", text).encode() for text in written]
    starts = starts_of(np.fromiter(map(len, letters), np.int64, len(letters)))
    scores, found = _score(np.frombuffer(b"".join(letters), np.uint8), starts, model)
    # Dividing by the square root of the length keeps the probabilities of long texts from saturating.
    scores /= np.sqrt(np.maximum(np.diff(starts), 1, dtype=np.float32))[:, None]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    languages, numbers = np.unique(classes, return_inverse=True)  # a language with two scripts has two classes
    probabilities = np.zeros((len(texts), len(languages)), np.float32)
    for number, of_class in zip(numbers, (scores / scores.sum(axis=1, keepdims=True)).T, strict=True):
        probabilities[:, number] += of_class
    measured = np.zeros(len(texts), LANGUAGE)
    measured["language"] = np.where(found, languages[probabilities.argmax(axis=1)], UNDETERMINED)
    measured["language_probability"] = np.where(found, probabilities.max(axis=1), 0)
    return measured


def languages() -> set[str]:
    """The codes of the languages that the model knows."""
    return {code.decode() for code in _load_model()[1].tolist()}


@cache
def _load_model() -> tuple[Model, NDArray[np.bytes_]]:
    """The model, and the language of each of its classes."""
    loaded = LanguageIdentifier.from_model_file(MODEL_FILE)
    model = Model(
        np.asarray(loaded.tk_nextmove, np.uint32).reshape(-1, 256),
        np.asarray(loaded.tk_row, np.int64),
        np.asarray(loaded.tk_output, np.int32),
        loaded.nb_ptc.astype(np.float32),
        loaded.nb_pc,
    )
    return model, np.array(loaded.nb_classes, "S3")


@compiled
def _score(
    letters: NDArray[np.uint8], starts: Positions, model: Model
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The score of each class, of shape [texts, classes], and whether any feature was found, of shape [texts]."""
    scores = np.empty((len(starts) - 1, len(model.prior)), np.float32)
    found = np.zeros(len(scores), np.bool_)
    times = np.zeros(len(model.weights), np.int32)
    features = np.empty(len(model.weights), np.int32)
    for text in range(len(scores)):
        state, count = 0, 0
        for at in range(starts[text], starts[text + 1]):
            state = model.moves[model.row[state], letters[at]]
            feature = model.feature[state]
            if feature >= 0:
                if times[feature] == 0:
                    features[count] = feature
                    count += 1
                times[feature] += 1
        own = scores[text]
        own[:] = model.prior
        found[text] = count > 0
        for feature in features[:count]:
            often, weights = np.log1p(np.float32(times[feature])), model.weights[feature]
            for each in range(len(own)):
                own[each] += often * weights[each]
            times[feature] = 0
    return scores, found
