"""The verdicts of Gopher's and C4's rules on real texts, against datatrove's filters.

    python -m benchmarks.curation_reference PYTHON

PYTHON is that of an environment of its own with `datatrove[processing]` and spaCy.
"""

import ast
import gzip
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LARGEST, OF_EACH = 50_000, 600
BATCH_BYTES = 2**20

AT_LEAST, AT_MOST = "at least", "at most"
RULES = {
    "quality": [
        ("words", AT_LEAST, 50, "gopher_short_doc"),
        ("words", AT_MOST, 100_000, "gopher_long_doc"),
        ("mean_word_length", AT_LEAST, 3, "gopher_below_avg_threshold"),
        ("mean_word_length", AT_MOST, 10, "gopher_above_avg_threshold"),
        ("hashes_per_word", AT_MOST, 0.1, "gopher_too_many_hashes"),
        ("ellipses_per_word", AT_MOST, 0.1, "gopher_too_many_ellipsis"),
        ("bullet_lines", AT_MOST, 0.9, "gopher_too_many_bullets"),
        ("ellipsis_lines", AT_MOST, 0.3, "gopher_too_many_end_ellipsis"),
        ("words_with_letter", AT_LEAST, 0.8, "gopher_below_alpha_threshold"),
        ("stop_words", AT_LEAST, 2, "gopher_enough_stop_words"),
    ],
    "repetition": [
        ("duplicate_paragraphs", AT_MOST, 0.3, "dup_para_frac"),
        ("duplicate_paragraph_characters", AT_MOST, 0.2, "dup_para_char_frac"),
        ("duplicate_lines", AT_MOST, 0.3, "dup_line_frac"),
        ("duplicate_line_characters", AT_MOST, 0.2, "dup_line_char_frac"),
        *[(f"top_{n}_gram_characters", AT_MOST, most, f"top_{n}_gram") for n, most in ((2, 0.2), (3, 0.18), (4, 0.16))],
        *[(f"duplicate_{n}_gram_characters", AT_MOST, 0.2 - 0.01 * n, f"duplicated_{n}_n_grams") for n in range(5, 11)],
    ],
    "c4": [
        ("lorem_ipsum_lines", AT_MOST, 0, "lorem_ipsum"),
        ("curly_bracket_lines", AT_MOST, 0, "curly_bracket"),
        ("sentences", AT_LEAST, 5, "too_few_sentences"),
    ],
}
"""Of each filter the fields and thresholds in the order in which it looks at them, and what it calls the reason."""

WAYS = {
    "own": "with its own words and sentences",
    "words": "given these words and sentences",
    "definitions": "given these symbols, lines and paragraphs as well",
}


def real_texts() -> Iterator[tuple[str, str]]:
    """Where each text comes from, and the text: sources, what packages say of themselves, manual pages in many languages."""
    library = [path for path in Path(sysconfig.get_path("stdlib")).rglob("*.py") if "site-packages" not in path.parts]
    yield from texts_of("standard library", library)
    yield from (("docstrings", text) for text in docstrings_of(library[::2]) if len(text) <= LARGEST)
    packages = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    notes = (path for root in packages for name in ("METADATA", "*.md", "*.rst", "*.txt") for path in root.rglob(name))
    yield from texts_of("site-packages' documents", notes)
    yield from texts_of("manual pages", Path("/usr/share/man").glob("man[1-8]/*.gz"))
    yield from texts_of("manual pages of other languages", Path("/usr/share/man").glob("*/man[1-8]/*.gz"))
    yield from texts_of("packages' documents", Path("/usr/share/doc").rglob("*"))


def docstrings_of(sources: Iterable[Path]) -> Iterator[str]:
    """The docstrings of each module, which are prose, as one text."""
    for path in sorted(sources):
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError):
            continue
        documented = (each for each in nodes if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef))
        if text := "\n\n".join(filter(None, map(ast.get_docstring, documented))):
            yield text


def texts_of(origin: str, paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Texts of files that are not large, spread over all of them."""
    files = sorted(path for path in paths if path.is_file())
    for path in files[:: max(len(files) // OF_EACH, 1)]:
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        except (OSError, EOFError, UnicodeDecodeError):
            continue
        if 0 < len(text) <= LARGEST:
            yield origin, text


def measure(texts: list[str]) -> tuple[dict[str, list[str]], list[list[str]], dict[str, int]]:
    """The reason for which each rule drops each text, or none; the words of each; sentences of each good line."""
    from benchmarks.measure import say
    from trainer.curation.c4 import c4
    from trainer.curation.quality import quality
    from trainer.curation.repetition import repetition
    from trainer.curation.texts import Texts

    functions: dict[str, Callable[[Texts], Any]] = {"quality": quality, "repetition": repetition, "c4": c4}
    size = sum(len(text.encode()) for text in texts) / 1e6
    for _ in range(2):  # the second time all is compiled
        started = time.thread_time()
        reasons: dict[str, list[str]] = {name: [] for name in functions}
        measured = []
        for batch in map(Texts, batches([text.encode() for text in texts])):
            measured.append((batch, {name: function(batch) for name, function in functions.items()}))
        spent = time.thread_time() - started
    say("speed, all three filters, one processor", f"{size / spent:.1f} MB/s")
    words = []
    for batch, fields in measured:
        for name, found in fields.items():
            reasons[name] += [reason(row, RULES[name]) for row in found]
        first, end, starts = (getattr(batch.words, name).tolist() for name in ("first", "end", "starts"))
        points = "".join(batch.strings)
        words += [[points[first[at] : end[at]] for at in range(*own)] for own in pairwise(starts)]
    lines = sorted({without_citations(line.strip()) for text in texts for line in text.splitlines()})
    sentences = c4(Texts([line.encode() for line in lines]))["sentences"].tolist()
    return reasons, words, dict(zip(lines, sentences, strict=True))


def batches(documents: list[bytes]) -> Iterator[list[bytes]]:
    """Documents in lists of about a mebibyte."""
    batch: list[bytes] = []
    for document in documents:
        batch.append(document)
        if sum(map(len, batch)) >= BATCH_BYTES:
            yield batch
            batch = []
    yield batch


def without_citations(line: str) -> str:
    """What the peer splits into sentences."""
    return re.sub(r"\[\d*]|\[edit]|\[citation needed]", "", line)


def reason(row: Any, rules: list[tuple[str, str, float, str]]) -> str:
    """What the first rule says that a text does not pass."""
    for field, kind, threshold, name in rules:
        if row[field] < threshold if kind == AT_LEAST else row[field] > threshold:
            return name
    return ""


def with_datatrove(folder: Path) -> None:
    """Run the peer's filters on the texts of a file, in all ways, and write their reasons."""
    import datatrove.pipeline.filters.c4_filters as c4
    import datatrove.pipeline.filters.gopher_quality_filter as quality
    import datatrove.pipeline.filters.gopher_repetition_filter as repetition
    from datatrove.data import Document
    from datatrove.utils.text import split_into_words

    given = json.loads((folder / "texts.json").read_text())
    texts, words, sentences = given["texts"], dict(zip(given["texts"], given["words"], strict=True)), given["sentences"]
    filters = {
        "quality": quality.GopherQualityFilter(), "repetition": repetition.GopherRepetitionFilter(), "c4": c4.C4QualityFilter(),
    }  # fmt: skip
    found = {"seconds": 0.0}
    for way in WAYS:
        if way == "words":
            quality.split_into_words = repetition.split_into_words = lambda text, language: words[text]
            c4.split_into_sentences = lambda line, language: [line] * sentences[line]
        if way == "definitions":
            quality.PUNCTUATION_SET = Symbols()
            filters["repetition"]._line_splitter = SimpleNamespace(
                split=lambda text: [line for line in text.splitlines() if line]
            )
            filters["repetition"].paragraph_exp = SimpleNamespace(split=paragraphs)
        else:
            split_into_words("What is loaded at the first use is not timed.")
        started = time.thread_time()
        reasons = {name: [peers_reason(each.filter(Document(text, ""))) for text in texts] for name, each in filters.items()}
        found[way] = reasons
        found["seconds"] = found["seconds"] or time.thread_time() - started
    (folder / "reasons.json").write_text(json.dumps(found))


class Symbols:
    """All characters that are neither letter, number nor mark."""

    def __contains__(self, character: str) -> bool:
        return unicodedata.category(character)[0] not in "LMN"


def paragraphs(text: str) -> list[str]:
    """What stands between empty lines, however lines end."""
    return [each for each in re.split("\n{2,}", "\n".join(text.splitlines())) if each.strip("\n")]


def peers_reason(verdict: Any) -> str:
    """The reason for which a text is dropped, or none."""
    if isinstance(verdict, tuple):
        return str(verdict[1])
    return "" if verdict else "dropped"


def main(python: str) -> None:
    """Compare the verdicts, and name what differs."""
    from benchmarks.measure import say

    found = dict((text, origin) for origin, text in real_texts())
    texts = list(found)
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"curation: Gopher's and C4's rules against datatrove's filters, {len(texts):,} real texts of {size:.1f} MB")
    for origin, count in Counter(found.values()).items():
        say(f"texts, {origin}", f"{count:,}")
    ours, words, sentences = measure(texts)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        (folder / "texts.json").write_text(json.dumps({"texts": texts, "words": words, "sentences": sentences}))
        subprocess.run([python, "-m", "benchmarks.curation_reference", "datatrove", name], check=True)
        theirs = json.loads((folder / "reasons.json").read_text())
    say("speed, datatrove's filters, one processor", f"{size / theirs['seconds']:.2f} MB/s")
    for way, told in WAYS.items():
        print(f"datatrove {told}")
        for rules, reasons in ours.items():
            compare(rules, reasons, theirs[way][rules], list(found.values()), exactly=way == "definitions")


def compare(rules: str, ours: list[str], theirs: list[str], origins: list[str], exactly: bool) -> None:
    """Say how many verdicts are the same, and between which reasons the others differ."""
    from benchmarks.measure import say

    pairs = list(zip(ours, theirs, strict=True))
    say(f"{rules}: dropped here, dropped there", f"{sum(map(bool, ours)):,}, {sum(map(bool, theirs)):,}")
    same = [bool(own) == bool(other) for own, other in pairs]
    say(f"{rules}: same verdict", percent(same), "100.00 %" if exactly else "")
    say(f"{rules}: same verdict and reason", percent([own == other for own, other in pairs]), "100.00 %" if exactly else "")
    if all(same):
        return
    for origin in dict.fromkeys(origins):
        say(f"    same verdict, {origin}", percent([each for each, of in zip(same, origins, strict=True) if of == origin]))
    for (own, other), count in Counter(pair for pair in pairs if bool(pair[0]) != bool(pair[1])).most_common(6):
        say(f"    {own or 'kept'} here, {other or 'kept'} there", f"{count:,}")


def percent(flags: list[bool]) -> str:
    return f"{100 * sum(flags) / len(flags):.2f} %"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "datatrove":
        with_datatrove(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        sys.exit(__doc__)
