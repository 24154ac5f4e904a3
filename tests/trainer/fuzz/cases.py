"""Which files are damaged, in what ways and how often, and what reads each of them."""

import random
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from tests.trainer.fuzz.damage import ANY_FILE, OF_CHAMPIONS, OF_LINES, OF_VALUES, suits

SEED = 20_260_501


class Kind(NamedTuple):
    """A kind of file: the keys that are of it, what reads it, in that order, how many cases there are, and of which
    damage.
    """

    name: str
    keys: str
    readers: str
    count: int
    ways: tuple[str, ...] = OF_VALUES


class Harm(NamedTuple):
    """A file, and a way to damage it."""

    key: str
    damage: str


class Case(NamedTuple):
    """What is damaged, one file or two, and what reads them."""

    number: int
    kind: str
    readers: str
    harms: tuple[Harm, ...]

    def draw(self, harm: Harm) -> random.Random:
        """Decides how one of the files is damaged."""
        return random.Random(f"{SEED}/{self.number}/{harm.key}/{harm.damage}")


RUN = "runs/(finished|stopped|tuned)"
KINDS = (
    Kind("tokenizers: manifest.json", r"tokenizers/.*/manifest\.json", "explain lineage measure prepare", 60),
    Kind("tokenizers: tokenizer.json", r"tokenizers/.*/tokenizer\.json", "measure prepare", 50),
    Kind("tokenizers: tokenizer_config.json", r"tokenizers/.*/tokenizer_config\.json", "measure prepare", 40),
    Kind("shards: manifest.json", r"shards/.*/manifest\.json", "compare explain lineage measure prepare", 100),
    Kind("shards: .bin, .idx and .sums", r"shards/.*\.(bin|idx|sums)", "measure verify", 160, ANY_FILE),
    Kind("shards: .bin and .sums, trained on", r"shards/.*/shard-.*\.(bin|sums)", "go_on again", 60, ANY_FILE),
    Kind("shards: shard-N.json", r"shards/.*/shard-\d+\.json", "verify", 70),
    Kind("shards: sources.json", r"shards/.*/sources\.json", "compare lineage verify", 70),
    Kind(
        "a set that was interrupted",
        r"shards/lines-.*/(shard-\d+\.json|started\.json|.*\.(bin|sums))",
        "interrupted",
        60,
    ),
    Kind(
        "decisions: manifest.json",
        r"decisions/.*/manifest\.json",
        "compare decisions explain lineage prepare report",
        80,
    ),
    Kind("decisions: pieces.json", r"decisions/.*/pieces\.json", "decisions explain prepare verify", 50),
    Kind("decisions: .npz", r"decisions/.*\.npz", "decisions prepare verify", 60, ANY_FILE),
    Kind("measures", r"measures/.*", "garbage decide", 80, ANY_FILE),
    Kind("cache: sources-*.json", r"cache/.*\.json", "explain prepare", 100),
    Kind("encoded: manifest.json", r"encoded/.*/manifest\.json", "score_anew prepare tune lineage", 60),
    Kind("encoded: .arrow", r"encoded/.*\.arrow", "score_anew prepare", 90, ANY_FILE),
    Kind("encoded: tokenizer files", r"encoded/.*/tokenizer.*\.json", "prepare tune", 50),
    Kind(
        "config.json of a run",
        rf"{RUN}/config\.json",
        "list compare garbage lineage evaluate score take tune report",
        110,
    ),
    Kind("plan.json", rf"{RUN}/plan\.json", "list compare explain take tune report", 90),
    Kind("environment.json", rf"{RUN}/environment\.json", "compare report", 60),
    Kind("metrics.jsonl", r"runs/(finished|tuned)/metrics\.jsonl", "list compare lineage draw", 100, OF_LINES),
    Kind("metrics.jsonl, to go on", r"runs/stopped/metrics\.jsonl", "compare finish", 60, OF_LINES),
    Kind("checkpoint-last, checkpoint-best", rf"{RUN}/checkpoint-(last|best)", "list evaluate take tune report", 100),
    Kind("epochs/*", r"runs/tuned/epochs/.*", "list tune report", 50),
    Kind("checkpoints: manifest.json", r"runs/finished/checkpoints/.*/manifest\.json", "evaluate take report", 60),
    Kind("checkpoints: other files", r"runs/finished/checkpoints/.*/(?!manifest).*", "evaluate take", 80),
    Kind("what an interrupted run goes on from", r"runs/stopped/(?!lease|environment|metrics).*", "finish", 150),
    Kind(
        "final: manifest.json",
        r"runs/(finished|tuned)/final/manifest\.json",
        "list gate lineage evaluate score report",
        70,
    ),
    Kind(
        "final: model files",
        r"runs/(finished|tuned)/final/(?!manifest|README).*",
        "gate lineage measure score_anew",
        100,
    ),
    Kind("final: lost and published anew", r"runs/finished/final/(?!README).*", "take", 30),
    Kind("final: README.md", r"runs/(finished|tuned)/final/README\.md", "lineage report", 40, ANY_FILE),
    Kind(
        "eval.json", r"runs/(finished|tuned)/eval\.json", "list compare gate garbage lineage evaluate score report", 110
    ),
    Kind("predictions/*.jsonl", r"runs/tuned/predictions/.*", "score", 60, OF_LINES),
    Kind("evaluations/*.json", r"evaluations/.*", "garbage evaluate", 70),
    Kind("models/*/champion", r"models/.*", "list gate garbage lineage", 110, OF_CHAMPIONS),
    Kind("what a champion is of", r"runs/another/(config|plan|eval|final/manifest)\.json", "list gate garbage", 50),
    Kind("lease.json", r"runs/stopped/lease\.json", "list garbage explain", 60),
    Kind("lease.json, to go on", r"runs/stopped/lease\.json", "finish", 24),
    Kind("pins and holds", r"pins/.*", "garbage prepare", 30, ANY_FILE),
    Kind("lineage.json", r"runs/(finished|tuned)/lineage\.json", "lineage report", 90),
    Kind("report.html", r"runs/(finished|tuned)/report\.html", "report", 40, ANY_FILE),
)


TWO = "two files at once"
PAIRS = 120


def make_cases(store: Path) -> list[Case]:
    """All cases, in a fixed order."""
    keys = sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())
    cases: list[Case] = []
    for kind in KINDS:
        fitting = [key for key in keys if re.fullmatch(kind.keys, key) and not re.search(r"/(logs|tensorboard)/", key)]
        assert fitting, kind
        ways = cycle(kind.ways)
        draw = random.Random(f"{SEED}/{kind.name}")
        for key in draw.choices(fitting, k=kind.count):
            harm = Harm(key, next(way for way in ways if suits(way, key)))
            cases.append(Case(len(cases), kind.name, kind.readers, (harm,)))
    return [*cases, *_pairs(cases)]


def _pairs(cases: list[Case]) -> Iterator[Case]:
    """Two of the cases at once, by chance, which a reader has in common; all readers of both read them."""
    draw = random.Random(f"{SEED}/{TWO}")
    for number in range(len(cases), len(cases) + PAIRS):
        one = draw.choice(cases)
        others = [case for case in cases if _shares(one, case)]
        other = draw.choice(others)
        readers = dict.fromkeys([*one.readers.split(), *other.readers.split()])
        # While the manifest can be read.
        harms = sorted((*one.harms, *other.harms), key=lambda harm: harm.damage != "reseal")
        yield Case(number, TWO, " ".join(readers), tuple(harms))


def _shares(one: Case, other: Case) -> bool:
    return one.harms[0].key != other.harms[0].key and not set(one.readers.split()).isdisjoint(other.readers.split())


def sample(cases: list[Case], count: int) -> list[Case]:
    """A fixed choice of cases: some of each kind, as many as its share."""
    chosen = [cases[int(place * len(cases) / count)] for place in range(count)]
    missing = {case.kind: case for case in reversed(cases)}
    for case in chosen:
        missing.pop(case.kind, None)
    return sorted([*chosen[: count - len(missing)], *missing.values()])
