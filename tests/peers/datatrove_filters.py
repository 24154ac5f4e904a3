"""datatrove's verdicts on the texts of a file: `python -m tests.peers.datatrove_filters FOLDER`, with its own Python.

It reads FOLDER/texts.json and writes FOLDER/reasons.json. It imports nothing else from this project.
"""

import json
import re
import sys
import time
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

OWN, WORDS, DEFINITIONS = "own", "words", "definitions"
WAYS = {
    OWN: "with its own words and sentences",
    WORDS: "given these words and sentences",
    DEFINITIONS: "given these symbols, lines and paragraphs as well",
}
"""The inputs that datatrove gets from headrace, step by step, to attribute differences."""


def main(folder: Path) -> None:
    """Run the filters in all ways, and write their reasons for dropping texts."""
    from datatrove.pipeline.filters.c4_filters import C4QualityFilter
    from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
    from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter
    from datatrove.utils.text import split_into_words

    given = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    filters = {
        "gopher_quality": GopherQualityFilter(),
        "gopher_repetition": GopherRepetitionFilter(),
        "c4": C4QualityFilter(),
    }
    split_into_words("What is loaded at the first use is not timed.")
    started = time.thread_time()
    found: dict[str, Any] = {OWN: reasons(filters, given["texts"])}
    found["seconds"] = time.thread_time() - started
    give_words(given)
    found[WORDS] = reasons(filters, given["texts"])
    give_definitions(filters["gopher_repetition"])
    found[DEFINITIONS] = reasons(filters, given["texts"])
    (folder / "reasons.json").write_text(json.dumps(found), encoding="utf-8")


def reasons(filters: dict[str, Any], texts: list[str]) -> dict[str, list[str]]:
    """By filter, its reason for dropping each text, or none."""
    from datatrove.data import Document

    return {name: [reason(each.filter(Document(text, ""))) for text in texts] for name, each in filters.items()}


def reason(verdict: Any) -> str:
    if isinstance(verdict, tuple):
        return str(verdict[1])
    return "" if verdict else "dropped"


def give_words(given: dict[str, Any]) -> None:
    """From now on, use the file's words and its number of sentences per line."""
    import datatrove.pipeline.filters.c4_filters as c4
    import datatrove.pipeline.filters.gopher_quality_filter as quality
    import datatrove.pipeline.filters.gopher_repetition_filter as repetition

    words, sentences = dict(zip(given["texts"], given["words"], strict=True)), given["sentences"]
    quality.split_into_words = repetition.split_into_words = lambda text, language: words[text]
    c4.split_into_sentences = lambda line, language: [line] * sentences[line]


def give_definitions(repetition: Any) -> None:
    """From now on, use headrace's definitions of symbols, lines and paragraphs."""
    import datatrove.pipeline.filters.gopher_quality_filter as quality

    quality.PUNCTUATION_SET = Symbols()
    repetition._line_splitter = SimpleNamespace(split=lambda text: [line for line in text.splitlines() if line])
    repetition.paragraph_exp = SimpleNamespace(split=paragraphs)


class Symbols:
    """All characters that are not letters, numbers or marks."""

    def __contains__(self, character: str) -> bool:
        return unicodedata.category(character)[0] not in "LMN"


def paragraphs(text: str) -> list[str]:
    """Texts between empty lines, with any line ends; one empty text if all lines are empty."""
    return [each for each in re.split("\n{2,}", "\n".join(text.splitlines())) if each.strip("\n")] or [""]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
