"""Which head a model has, by how `transformers` ends the name of its architecture; free of heavy imports."""

from collections.abc import Iterable

OF_TEXTS, OF_WORDS = "ForSequenceClassification", "ForTokenClassification"
"""A head that classifies a text as a whole, and one that classifies each token."""

MASKED = "ForMaskedLM"
"""A head that tells hidden tokens."""


def classifies(architectures: Iterable[str] | None) -> bool:
    """Whether a model classifies anything, by the architectures that its configuration names."""
    return any(name.endswith((OF_TEXTS, OF_WORDS)) for name in architectures or ())


def classifies_words(architectures: Iterable[str] | None) -> bool:
    """Whether a model has a label for each token."""
    return any(name.endswith(OF_WORDS) for name in architectures or ())


def continues_text(architectures: Iterable[str] | None) -> bool:
    """Whether a model may be one that continues text: it neither classifies nor tells hidden tokens."""
    return not any(name.endswith((OF_TEXTS, OF_WORDS, MASKED)) for name in architectures or ())
