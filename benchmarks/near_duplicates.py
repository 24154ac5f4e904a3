"""Near duplicates dropped from real and synthetic text, and how many of them are below both thresholds.

    python -m benchmarks.near_duplicates [FOLDER ...]

A FOLDER is a corpus: its UTF-8 text files and manual pages, one document each. Three synthetic corpora have documents
that resemble each other without being duplicates: tests that differ in a constant, functions with the same license
header, and product pages.
"""

import random
import re
import string
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainer.common.progress import silent
from trainer.config.jobs import PrepareJob
from trainer.curation.deciding import EXACT, NEAR
from trainer.data.decisions import open_decisions, read_decisions
from trainer.records.steps import here
from trainer.store.storage import Store

TEXT = re.compile(r"\.(pyi?|txt|md|rst|html?|[ch]|[1-9][a-z]*\.gz)$")

LICENCE = """# Licensed under the Example License, Version 2 (the License); you may not use this file except in
# compliance with the License. You may obtain a copy of the License from its owner. Unless required by
# law or agreed to in writing, software distributed under the License is distributed on an "AS IS"
# BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the License for
# the specific language governing permissions and limitations under it.
"""

PAGE = """{name}. Welcome to our shop, where every order of more than fifty is sent free of charge to all places in the
country. Read what other customers say about {name} before you choose. Size {size}, weight {weight} grams, article
number {number}. {words}. All prices hold the tax. You may send it back within thirty days if it is not what you wanted.
Our service answers your questions from Monday to Friday between nine and five. Subscribe to our letter and never miss
another offer of the week.
"""


def words(draw: random.Random, count: int) -> str:
    """Made-up words."""
    return " ".join("".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))) for _ in range(count))


def tests(draw: random.Random) -> Iterator[str]:
    """Tests that differ in a constant."""
    for number in range(2000):
        value = draw.randrange(10**9)
        body = f"    result = parse({value})\n    assert result.value == {value}\n    assert result.valid\n"
        yield f"def test_{number}():\n{body}"


def functions(draw: random.Random) -> Iterator[str]:
    """Small functions with the same license header."""
    for _ in range(2000):
        name, one, other, called, constant = words(draw, 5).split()
        body = f'    """{words(draw, 8).capitalize()}."""\n    return {one} * {called}({other}, {constant})\n'
        yield f"{LICENCE}\n\ndef {name}({one}, {other}):\n{body}"


def pages(draw: random.Random) -> Iterator[str]:
    """Product pages of one template."""
    for number in range(20_000):
        name = words(draw, 2)
        size, weight = draw.randrange(10, 99), draw.randrange(100, 9999)
        yield PAGE.format(name=name, size=size, weight=weight, number=number, words=words(draw, draw.randint(12, 30)))


def texts(folder: Path) -> list[Path]:
    """The text files in a folder."""
    return sorted(
        path for path in folder.rglob("*") if TEXT.search(path.name) and path.is_file() and path.stat().st_size
    )


def measure(name: str, corpus: dict[str, object], store: Path) -> None:
    """Curate a corpus and print a row of the table."""
    data = {"corpora": [{"name": "it", **corpus}], "tokenizer": {"vocab_size": 300}, "workers": 2}
    curation: dict[str, dict[str, object]] = {"exact": {}, "near": {}}
    job = PrepareJob.model_validate({"store": str(store), "data": {**data, "curation": curation}})
    near = job.data.curation.near if job.data.curation else None
    assert near is not None
    key = here(silent())("curate", job).key
    reasons = [None, *read_decisions(Store(job.store), key).details["reasons"]]
    found = open_decisions(Store(job.store), key, "it")
    exact, alike = (found.reasons == reasons.index(reason) for reason in (EXACT, NEAR))
    pairs = alike[found.duplicates]
    similar, contained = (
        found.similarity[pairs] >= near.least_similarity,
        found.contained[pairs] >= near.least_contained,
    )
    print(
        f"| {name} | {len(found.reasons):,} | {exact.sum():,} | {alike.sum():,} | {(~similar & contained).sum():,} | "
        f"{(~similar & ~contained).sum():,} |", flush=True
    )  # fmt: skip


def main(folders: list[str]) -> int:
    """Print the table."""
    print("| corpus | documents | exact duplicates | near duplicates | of these only by containment | below both |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for number, (name, make) in enumerate((("tests", tests), ("functions", functions), ("product pages", pages))):
            path = Path(place, f"{number}.txt")
            path.write_text("%%\n".join(make(random.Random(number))), encoding="utf-8")
            measure(name, {"paths": [str(path)], "separator": "%%"}, Path(place, name))
        for folder in folders:
            paths = [str(path) for path in texts(Path(folder))]
            measure(
                folder,
                {"paths": paths, "format": "source", "max_bad_records": len(paths)},
                Path(place, folder.replace("/", "-")),
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
