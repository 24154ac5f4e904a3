"""Killed at every write point, before and after it, and started again: the same artifacts, and nothing left over."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest

from tests.depth import once
from tests.killing import KILLED
from tests.processes import start_warm
from tests.support import published, small_values, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Place(NamedTuple):
    """Where one job runs: a folder for its files, its store, and the environment that reaches that."""

    folder: Path
    store: str
    env: dict[str, str]
    sharding: str = "none"

    def run(self, raw: Path, when: str = "", point: str = "") -> int:
        """Run the whole job in a process that may kill itself; returns its status."""
        values = small_values(
            raw, self.store, run="one", training__max_steps=6, training__save_every=2, training__evaluate_every=3,
            training__keep_last=1, training__sharding=self.sharding,
        )  # fmt: skip
        config = write_config(self.folder / "job.yaml", values)
        said = self.folder / f"said-{len(list(self.folder.iterdir()))}"
        arguments = [self.store, self.folder / "points", *([when, point] if when else []), "--", "trainer.__main__", config]
        return start_warm(said, "tests.killing", *arguments, env=self.env).wait().status

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
    "sharded": [
        "replace runs/one/checkpoints/step-#/model-part-#-of-#-#.safetensors",
        "replace runs/one/checkpoints/step-#/state-#.json",
        "replace runs/one/checkpoints/step-#/manifest.json", "rename runs/one/final",
    ],
}  # fmt: skip
"""Killed at in every test run; at all of them in the long one."""

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
    "sharded": ["replace runs/one/checkpoints/step-#/optimizer-part-#-of-#-#.safetensors", "replace runs/one/checkpoint-last"],
}  # fmt: skip


@pytest.fixture(scope="module", params=[*once("local", "sharded"), pytest.param("s3", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def places(kind: str, request: pytest.FixtureRequest) -> Places:
    """Makes an empty store for a folder."""

    def make(folder: Path) -> Place:
        folder.mkdir(exist_ok=True)
        if kind != "s3":
            return Place(folder, str(folder / "store"), {}, "fsdp" if kind == "sharded" else "none")
        server = request.getfixturevalue("s3")
        return Place(folder, server.new_store(), {**server.env, "HEADRACE_CACHE": str(folder / "cache")})

    return make


@pytest.fixture(scope="module")
def clean(raw: Path, places: Places, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run that was not killed, with the names of the write points that it passed."""
    place = places(tmp_path_factory.mktemp("clean"))
    assert place.run(raw) == 0
    return place


def test_the_points_cover_every_kind_of_write(clean: Place, kind: str) -> None:
    points = set((clean.folder / "points").read_text().splitlines())
    assert points >= {*KEY_POINTS[kind], *OTHERS[kind]}, sorted(points)
    assert any(point.startswith(("replace shards/", "rename shards/", "put_object shards/")) for point in points)


@pytest.mark.parametrize(
    "chosen",
    [pytest.param("key", marks=pytest.mark.deep), pytest.param("every", marks=[pytest.mark.long, pytest.mark.timeout(7200)])],
)
def test_killed_at_a_write_point_it_ends_with_the_same_artifacts_and_nothing_left_over(
    raw: Path, clean: Place, kind: str, places: Places, tmp_path: Path, chosen: str
) -> None:
    expected = clean.published()
    points = KEY_POINTS[kind] if chosen == "key" else sorted({*(clean.folder / "points").read_text().splitlines()})
    cases = [(when, point) for point in points if ".staging" not in point for when in ("before", "after")]

    def wrong(number: int) -> list[str]:
        when, point = cases[number]
        place = places(tmp_path / str(number))
        status = place.run(raw, when, point)
        if status == 0 or KILLED.format(when, point) not in (place.folder / "points").read_text().splitlines():
            return [f"{when} {point}: was not killed but ended with {status}"]
        problems = [] if (last := place.run(raw)) == 0 else [f"status {last}"]
        found = place.published()
        problems += [name for name in {*expected, *found} if expected.get(name) != found.get(name)]
        return [f"{when} {point}: {problem}" for problem in [*problems, *place.leftovers()]]

    with ThreadPoolExecutor(2) as pool:
        problems = [problem for each in pool.map(wrong, range(len(cases))) for problem in each]
    assert not problems, "\n".join(problems)
