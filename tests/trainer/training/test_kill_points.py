"""Killed at every write point, before and after it, and started again: the same artifacts, and nothing left over."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest

from tests.depth import once
from tests.killing import KILLED
from tests.processes import rank_envs, start_warm
from tests.proof import tell
from tests.support import published, write_config
from tests.trainer.small_jobs import chatting, classes, preferring, pretraining

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Place(NamedTuple):
    """Where one job runs: a folder for its files, the values of the job, the environment that reaches its store, and
    ranks that divide its model.

    None is a run of one rank that holds it whole.
    """

    folder: Path
    values: dict[str, Any]
    env: dict[str, str]
    sharding: int | None = None

    @property
    def store(self) -> str:
        return str(self.values["store"])

    def run(self, when: str = "", point: str = "") -> int:
        """Run the whole job, in processes of which one may kill itself; returns that one's status, or one that is not
        0.
        """
        config = write_config(self.folder / "job.yaml", self.values)
        said = self.folder / f"said-{len(list(self.folder.iterdir()))}"
        ranks = self.sharding or 1
        killed = ranks - 1 if "-part-" in point else 0  # the others write nothing but their parts

        def armed(rank: int) -> list[object]:
            chosen = [when, point] if when and rank == killed else []
            return [self.store, self.folder / "points", *chosen, "--", "trainer.__main__", config]

        if ranks == 1:
            return start_warm(said, "tests.killing", *armed(0), env=self.env).wait().status
        running = [
            start_warm(said / str(rank), "tests.killing", *armed(rank), env={**self.env, **env})
            for rank, env in enumerate(rank_envs(ranks))
        ]
        statuses = [rank.wait().status for rank in running]
        return statuses[killed] or max(statuses, key=abs)

    def leftovers(self) -> list[str]:
        """Staged files, and those of processes that are gone."""
        folders = (self.folder / "store" / ".staging", self.folder / "cache" / "work")
        return [str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()]

    def published(self) -> dict[str, Any]:
        """What the store holds, as far as it does not depend on the time."""
        if not self.store.startswith("s3://"):
            return published(Path(self.store), self.store)
        copy = self.folder / "copy"
        fsspec.filesystem("s3").get(self.store, str(copy), recursive=True)
        return published(copy, self.store)


Places = Callable[[Path], Place]

KEY_POINTS = {
    "local": ["rename runs/one/checkpoints/step-#", "replace runs/one/checkpoint-last", "rename runs/one/final"],
    "s3": ["put_object runs/one/checkpoints/step-#/manifest.json", "put_object runs/one/final/manifest.json"],
    "s3, sharded": [
        "put_object runs/one/checkpoints/step-#/model-part-#-of-#-#.safetensors",
        "put_object runs/one/checkpoints/step-#/state-#.json", "put_object runs/one/checkpoints/step-#/manifest.json",
    ],
    "sharded": [
        "replace runs/one/checkpoints/step-#/model-part-#-of-#-#.safetensors",
        "replace runs/one/checkpoints/step-#/state-#.json",
        "replace runs/one/checkpoints/step-#/manifest.json", "rename runs/one/final",
    ],
}  # fmt: skip
"""Killed at in the deeper tests, with prepared data; at all of them, from the text on, in the long ones."""

OTHERS = {
    "local": [
        "rename tokenizers/bpe-#", "replace runs/one/config.json", "replace runs/one/checkpoint-best",
        "replace runs/one/report.html", "replace runs/one/eval.json", "link runs/one/lease.json",
        "unlink runs/one/checkpoints/step-#/manifest.json", "unlink runs/one/lease.json",
    ],
    "s3": [
        "put_object runs/one/config.json", "put_object runs/one/checkpoints/step-#/model.safetensors",
        "put_object runs/one/checkpoint-last", "put_object runs/one/report.html", "put_object runs/one/eval.json",
        "put_object runs/one/lease.json",
    ],
    "s3, sharded": [
        "put_object runs/one/checkpoints/step-#/optimizer-part-#-of-#-#.safetensors",
        "put_object runs/one/checkpoint-last",
    ],
    "sharded": ["replace runs/one/checkpoints/step-#/optimizer-part-#-of-#-#.safetensors",
    "replace runs/one/checkpoint-last"],
}  # fmt: skip


for name in ("s3, sharded", "sharded"):
    KEY_POINTS[f"{name} by two"], OTHERS[f"{name} by two"] = KEY_POINTS[name], OTHERS[name]

TUNING = {"fine-tuning": classes, "instruction tuning": chatting, "preference tuning": preferring}
"""Kinds that encode their data; others prepare shards."""

for name, data in zip(TUNING, ("pairs", "chats", "preferences"), strict=True):
    KEY_POINTS[name] = [f"rename encoded/{data}-#"]
    KEY_POINTS[f"s3, {name}"] = [f"put_object encoded/{data}-#/manifest.json"]

KINDS = [
    *once("local", "sharded by two"),
    *(
        pytest.param(kind, marks=pytest.mark.long)
        for kind in ("sharded", "s3", "s3, sharded by two", *TUNING, *(f"s3, {kind}" for kind in TUNING))
    ),
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def places(kind: str, request: pytest.FixtureRequest) -> Places:
    """Makes an empty store for a folder."""

    def make(folder: Path) -> Place:
        folder.mkdir(exist_ok=True)
        ranks = (2 if "by two" in kind else 1) if "sharded" in kind else None
        server = request.getfixturevalue("s3") if kind.startswith("s3") else None
        job = TUNING.get(kind.removeprefix("s3, "), pretraining)(
            run="one", training__epochs=None, training__max_steps=6, training__save_every=2, training__evaluate_every=3,
            training__keep_last=1, training__sharding="none" if ranks is None else "fsdp",
        )  # fmt: skip
        values = job(request.getfixturevalue, server.new_store() if server else folder / "store")
        env = {**server.env, "HEADRACE_CACHE": str(folder / "cache")} if server else {}
        return Place(folder, values, env, ranks)

    return make


@pytest.fixture(scope="module")
def clean(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run that was not killed, with the names of the write points that it passed."""
    place = places(tmp_path_factory.mktemp("clean"))
    assert place.run() == 0
    return place


@pytest.mark.deep
def test_the_points_cover_every_kind_of_write(clean: Place, kind: str) -> None:
    points = set((clean.folder / "points").read_text().splitlines())
    assert points >= {*KEY_POINTS[kind], *OTHERS.get(kind, ())}, sorted(points)
    if not kind.endswith("tuning"):
        assert any(point.startswith(("replace shards/", "rename shards/", "put_object shards/")) for point in points)


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param("key", marks=pytest.mark.deep),
        pytest.param("every", marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
def test_killed_at_a_write_point_it_ends_with_the_same_artifacts_and_nothing_left_over(
    clean: Place, kind: str, places: Places, tmp_path: Path, chosen: str
) -> None:
    expected = clean.published()
    points = KEY_POINTS[kind] if chosen == "key" else sorted({*(clean.folder / "points").read_text().splitlines()})
    cases = [(when, point) for point in points if ".staging" not in point for when in ("before", "after")]

    def wrong(number: int) -> list[str]:
        when, point = cases[number]
        place = places(tmp_path / str(number))
        if chosen == "key" and not place.env and "corpora" in place.values["data"]:
            for name in ("tokenizers", "shards"):
                shutil.copytree(f"{clean.store}/{name}", f"{place.store}/{name}")
        status = place.run(when, point)
        if status == 0 or KILLED.format(when, point) not in (place.folder / "points").read_text().splitlines():
            return [f"{when} {point}: was not killed but ended with {status}"]
        problems = [] if (last := place.run()) == 0 else [f"status {last}"]
        found = place.published()
        problems += [name for name in {*expected, *found} if expected.get(name) != found.get(name)]
        return [f"{when} {point}: {problem}" for problem in [*problems, *place.leftovers()]]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(wrong, range(len(cases))))
    tell(len(cases), sum(map(bool, found)))
    problems = [problem for each in found for problem in each]
    assert not problems, "\n".join(problems)
