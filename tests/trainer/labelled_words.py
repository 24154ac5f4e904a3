"""Real words with a label each, found on any machine, and small jobs on them: names and code in lines of
documentation.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import write_rows
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.raw_files import docstrings, one_line
from trainer.config.files import validate_job
from trainer.config.labelled import FinetuneJob

CLASSES = ["O", "B-CODE", "I-CODE", "B-NAME", "I-NAME"]
MOST_WORDS = 24
SPLITS = ("train",) * 4 + ("validation", "test")


def label_words(words: Sequence[str]) -> list[str]:
    """A label for each word, by its form: words of code and capital names, each in runs."""
    kinds = ["CODE" if re.search(r"[_()]|\w\.\w", w) else "NAME" if w[:1].isupper() else "O" for w in words]
    before = ["O", *kinds]
    return [k if k == "O" else f"{'I' if k == last else 'B'}-{k}" for k, last in zip(kinds, before, strict=False)]


def word_rows(count: int) -> list[dict[str, Any]]:
    """Records with an id, words and their labels."""
    texts = [re.findall(r"[\w.()]+|[^\w\s]", text)[:MOST_WORDS] for text in one_line(docstrings(count))]
    return [{"id": f"w{n}", "tokens": words, "ner_tags": label_words(words)} for n, words in enumerate(texts) if words]


def write_words(folder: Path, count: int = 240) -> Path:
    """train.jsonl, validation.jsonl and the unlabelled test.jsonl."""
    for split in dict.fromkeys(SPLITS):
        rows = [row for n, row in enumerate(word_rows(count)) if SPLITS[n % len(SPLITS)] == split]
        kept = [{k: v for k, v in row.items() if k != "ner_tags" or split != "test"} for row in rows]
        write_rows(folder / f"{split}.jsonl", kept)
    return folder


def word_values(words: Path, store: Path | str, model: Path | str, **changes: Any) -> dict[str, Any]:
    """A job on these words as plain values, with changes."""
    columns = {"data__text_columns": ["tokens"], "data__label_column": "ner_tags", "data__classes": CLASSES}
    return finetune_values(words, store, model, **{"data__task": "tokens", **columns, **changes})


def word_job(words: Path, store: Path | str, model: Path | str, **changes: Any) -> FinetuneJob:
    """The same, validated."""
    return validate_job(FinetuneJob, word_values(words, store, model, **changes), "test")
