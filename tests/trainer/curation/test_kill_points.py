"""Curation killed at every write point, before and after it, and started again; and started twice at once."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import fsspec
import pytest

from tests.killing import KILLED
from tests.processes import start_module, start_warm
from tests.proof import tell
from tests.support import digests, write_config
from tests.trainer.curating import curated_job, prose, write_documents
from trainer.store.private_folders import STAGING, sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = [pytest.param("local", marks=pytest.mark.deep), pytest.param("s3", marks=pytest.mark.long)]
KEY_POINTS = {
    "local": [
        "replace measures/one-#/signature-#/#-#-#.npz",
        "replace measures/pairs/#/sharing-#-#.npz",
        "replace measures/pairs/#/ngrams-#-#.npz",
        "replace measures/pairs/#/ngrams-#-#-#.npz",
        "replace measures/pairs/#/near-#.npz",
        "rename decisions/text-#",
    ],
    "s3": ["put_object measures/one-#/signature-#/#-#-#.npz", "put_object decisions/text-#/manifest.json"],
}  # fmt: skip
"""Killed at in the deeper tests; at all of them in the long ones."""

STRICTER = 620
"""Bytes that some of the documents have not."""

PAIRED = {"local": "replace measures/pairs/#/sharing-#-#.npz", "s3": "put_object measures/pairs/#/sharing-#-#.npz"}


class Place(NamedTuple):
    """A folder for one curation's files, its store, and the environment that reaches it."""

    folder: Path
    store: str
    env: dict[str, str]

    def config(self, raw: Path, least_bytes: int = 50) -> Path:
        curation = {
            "near": {},
            "filters": [{"kind": "length", "least_bytes": least_bytes}, {"kind": "gopher_repetition"}],
        }
        job = curated_job(Path("store"), {name: f"{raw}/{name}/*.jsonl" for name in ("one", "two")}, curation)
        values = job.model_dump(mode="json", exclude_unset=True) | {"store": self.store}
        return write_config(self.folder / f"job-{least_bytes}.yaml", values)

    def run(self, raw: Path, *killed: str, least_bytes: int = 50) -> int:
        """Curate in a process that may kill itself, or whose workers may; returns its status."""
        said, config = Path(mkdtemp(prefix="said-", dir=self.folder)), self.config(raw, least_bytes)
        armed = [self.store, self.folder / "points", *killed, "--", "tests.trainer.curate_once", config]
        return start_warm(said / "run", "tests.killing", *armed, env=self.env).wait().status

    def decisions(self) -> dict[str, str]:
        """The digests of what is decided; a manifest has a time."""
        copy = Path(self.store)
        if self.store.startswith("s3://"):
            copy = self.folder / "copy"
            fsspec.filesystem("s3").get(self.store, str(copy), recursive=True)
        return {
            name: digest
            for name, digest in digests(copy / "decisions").items()
            if name.endswith((".npz", "pieces.json"))
        }

    def points(self) -> list[str]:
        return (self.folder / "points").read_text().splitlines()

    def leftovers(self) -> list[str]:
        """What is there of processes that are gone, and is not swept away, as the next one to publish does."""
        folders = [
            folder for folder in (self.folder / "store" / STAGING, self.folder / "cache" / "work") if folder.is_dir()
        ]
        for folder in folders:
            sweep(folder)
        return [str(path) for folder in folders for path in folder.iterdir()]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    texts = [" ".join(prose(seed, 80)) for seed in range(40)]
    write_documents(tmp_path / "raw" / "one" / "a.jsonl", [*texts[:30], texts[3]])
    near = [f"{texts[5]} otherwise", " ".join(prose(33, 76)), " ".join(prose(34, 60))]
    write_documents(tmp_path / "raw" / "two" / "b.jsonl", [*texts[30:], texts[7], "few words", *near])
    return tmp_path / "raw"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def place_in(folder: Path, kind: str, request: pytest.FixtureRequest, like: Place | None = None) -> Place:
    """A new place; one on S3 has a cache of its own, with the compiled code of another one, which takes long to
    make.
    """
    folder.mkdir()
    if kind == "local":
        return Place(folder, str(folder / "store"), {})
    if like is not None:
        shutil.copytree(like.folder / "cache" / "compiled", folder / "cache" / "compiled")
    server = request.getfixturevalue("s3")
    return Place(folder, server.new_store(), {**server.env, "HEADRACE_CACHE": str(folder / "cache")})


@pytest.mark.parametrize("chosen", ["key", pytest.param("every", marks=pytest.mark.long)])
def test_killed_at_a_write_point_it_decides_the_same_and_leaves_nothing(
    raw: Path, tmp_path: Path, kind: str, chosen: str, request: pytest.FixtureRequest
) -> None:
    clean = place_in(tmp_path / "clean", kind, request)
    assert clean.run(raw) == 0
    expected = clean.decisions()
    assert expected and set(clean.points()) >= set(KEY_POINTS[kind]), sorted(set(clean.points()))
    points = KEY_POINTS[kind] if chosen == "key" else sorted(set(clean.points()))
    cases = [(when, point) for point in points if ".staging" not in point for when in ("before", "after")]
    places = [place_in(tmp_path / str(number), kind, request, clean) for number in range(len(cases))]

    def wrong(number: int) -> list[str]:
        when, point = cases[number]
        place = places[number]
        status = place.run(raw, when, point)
        if status == 0 or KILLED.format(when, point) not in place.points():
            return [f"{when} {point}: was not killed but ended with {status}"]
        problems = [] if (last := place.run(raw)) == 0 else [f"status {last}"]
        problems += [] if place.decisions() == expected else ["other decisions"]
        return [f"{when} {point}: {problem}" for problem in [*problems, *place.leftovers()]]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(wrong, range(len(cases))))
    tell(len(cases), sum(map(bool, found)))
    problems = [problem for each in found for problem in each]
    assert not problems, "\n".join(problems)


def test_two_at_once_decide_the_same(raw: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    alone, both = (place_in(tmp_path / name, kind, request) for name in ("alone", "both"))
    assert alone.run(raw) == 0
    config = both.config(raw)
    started = [
        start_module(both.folder / str(number), "tests.trainer.curate_once", config, env=both.env)
        for number in range(2)
    ]
    ended = [each.wait() for each in started]
    assert [each.status for each in ended] == [0, 0], ended
    assert both.decisions() == alone.decisions() and not both.leftovers()


def test_one_is_killed_beside_another_that_differs_in_a_threshold_and_both_decide_as_alone(
    raw: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    alone = place_in(tmp_path / "alone", kind, request)
    assert [alone.run(raw, least_bytes=least) for least in (50, STRICTER)] == [0, 0]
    both = place_in(tmp_path / "both", kind, request, alone)
    with ThreadPoolExecutor(2) as pool:
        killed = pool.submit(both.run, raw, "before", PAIRED[kind])
        other = pool.submit(both.run, raw, least_bytes=STRICTER)
    assert killed.result() != 0 == other.result() and KILLED.format("before", PAIRED[kind]) in both.points()
    assert both.run(raw) == 0
    assert both.decisions() == alone.decisions() and len(alone.decisions()) == 6
    assert not both.leftovers()
