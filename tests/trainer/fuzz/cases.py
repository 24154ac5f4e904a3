"""Which files are damaged, in what ways and how often, and what reads each of them."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.trainer.fuzz.damage import BYTES, DAMAGES

SEED = 20_260_501


class Kind(NamedTuple):
    """A kind of file: the keys that are of it, what reads it, in that order, and how many cases there are."""

    name: str
    keys: str
    readers: str
    count: int
    values: bool = True


class Case(NamedTuple):
    """One file damaged in one way."""

    number: int
    kind: Kind
    key: str
    damage: str

    @property
    def draw(self) -> random.Random:
        return random.Random(f"{SEED}/{self.number}/{self.key}/{self.damage}")


RUN = "runs/(finished|stopped|tuned)"
KINDS = (
    Kind("tokenizers: manifest.json", r"tokenizers/.*/manifest\.json", "explain lineage measure prepare", 60),
    Kind("tokenizers: tokenizer.json", r"tokenizers/.*/tokenizer\.json", "measure prepare", 50),
    Kind("tokenizers: tokenizer_config.json", r"tokenizers/.*/tokenizer_config\.json", "measure prepare", 40),
    Kind("shards: manifest.json", r"shards/.*/manifest\.json", "compare explain lineage measure prepare", 100),
    Kind("shards: .bin and .idx", r"shards/.*\.(bin|idx)", "measure prepare", 160, values=False),
    Kind("shards: .bin, trained on as it is", r"shards/.*/shard-.*\.bin", "go_on", 24, values=False),
    Kind("shards: shard-N.json", r"shards/.*/shard-\d+\.json", "prepare", 70),
    Kind("shards: sources.json", r"shards/.*/sources\.json", "compare lineage prepare", 70),
    Kind("a set that was interrupted", r"shards/lines-.*/(shard-\d+\.json|started\.json|.*\.bin)", "interrupted", 60),
    Kind("cache: sources-*.json", r"cache/.*\.json", "explain prepare", 100),
    Kind("encoded: manifest.json", r"encoded/.*/manifest\.json", "score_anew prepare tune lineage", 60),
    Kind("encoded: .arrow", r"encoded/.*\.arrow", "score_anew prepare", 90, values=False),
    Kind("encoded: tokenizer files", r"encoded/.*/tokenizer.*\.json", "prepare tune", 50),
    Kind("config.json of a run", rf"{RUN}/config\.json", "list compare garbage lineage evaluate score report", 110),
    Kind("plan.json", rf"{RUN}/plan\.json", "list compare explain take tune report", 90),
    Kind("environment.json", rf"{RUN}/environment\.json", "compare report", 60),
    Kind("metrics.jsonl", r"runs/(finished|tuned)/metrics\.jsonl", "list compare lineage draw", 90),
    Kind("checkpoint-last, checkpoint-best", rf"{RUN}/checkpoint-(last|best)", "list evaluate take tune report", 100),
    Kind("epochs/*", r"runs/tuned/epochs/.*", "list tune report", 50),
    Kind("checkpoints: manifest.json", r"runs/finished/checkpoints/.*/manifest\.json", "evaluate take report", 60),
    Kind("checkpoints: other files", r"runs/finished/checkpoints/.*/(?!manifest).*", "evaluate take", 80),
    Kind("what an interrupted run goes on from", r"runs/stopped/(?!lease|environment).*", "finish", 150),
    Kind("final: manifest.json", r"runs/(finished|tuned)/final/manifest\.json", "list gate lineage evaluate score report", 70),
    Kind("final: model files", r"runs/(finished|tuned)/final/(?!manifest|README).*", "gate lineage measure score_anew", 100),
    Kind("final: lost and published anew", r"runs/finished/final/(?!README).*", "take", 30),
    Kind("final: README.md", r"runs/(finished|tuned)/final/README\.md", "lineage report", 40, values=False),
    Kind("eval.json", r"runs/(finished|tuned)/eval\.json", "list compare gate garbage lineage evaluate score report", 110),
    Kind("predictions/*.jsonl", r"runs/tuned/predictions/.*", "score", 60, values=False),
    Kind("evaluations/*.json", r"evaluations/.*", "garbage evaluate", 70),
    Kind("models/*/champion", r"models/.*", "list gate garbage lineage", 80),
    Kind("lease.json", r"runs/stopped/lease\.json", "list garbage explain", 60),
    Kind("lease.json, to go on", r"runs/stopped/lease\.json", "finish", 24),
    Kind("pins and holds", r"pins/.*", "garbage prepare", 30, values=False),
    Kind("lineage.json", r"runs/(finished|tuned)/lineage\.json", "lineage report", 90),
    Kind("report.html", r"runs/(finished|tuned)/report\.html", "report", 40, values=False),
)


def make_cases(store: Path) -> list[Case]:
    """All cases, in a fixed order."""
    keys = sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())
    cases: list[Case] = []
    for kind in KINDS:
        fitting = [key for key in keys if re.fullmatch(kind.keys, key) and not re.search(r"/(logs|tensorboard)/", key)]
        assert fitting, kind
        ways = _ways(kind)
        draw = random.Random(f"{SEED}/{kind.name}")
        cases += [Case(len(cases) + n, kind, draw.choice(fitting), next(ways)) for n in range(kind.count)]
    return cases


def sample(cases: list[Case], count: int) -> list[Case]:
    """A fixed choice of cases: some of each kind, as many as its share."""
    chosen = [cases[int(place * len(cases) / count)] for place in range(count)]
    missing = {case.kind.name: case for case in reversed(cases)}
    for case in chosen:
        missing.pop(case.kind.name, None)
    return sorted([*chosen[: count - len(missing)], *missing.values()])


def _ways(kind: Kind) -> Iterator[str]:
    """Each way in turn; values are changed more often than bytes, where there are any."""
    ways = list(BYTES) if not kind.values else [*DAMAGES, "change", "reseal", "reseal", "flip"]
    while True:
        yield from ways
