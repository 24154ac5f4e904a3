"""Killed at every write point, before and after it, and started again: the same artifacts, and nothing left over."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.killing import name_point
from tests.processes import start_warm
from tests.support import digests, only_run, small_values, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TIMED = {"manifest.json", "metrics.jsonl", "report.html", "README.md", "lineage.json", "environment.json"}
"""Files that hold times; manifests are compared without them."""


def values(raw: Path, store: Path) -> dict[str, Any]:
    return small_values(
        raw, store, run="one", training__max_steps=6, training__save_every=2, training__evaluate_every=3, training__keep_last=1
    )


def run(folder: Path, raw: Path, when: str = "", point: str = "") -> int:
    """Run the whole job in a process that may kill itself; returns its status."""
    config = write_config(folder / "job.yaml", values(raw, folder / "store"))
    said = folder / f"said-{len(list(folder.iterdir()))}"
    arguments = [folder / "store", folder / "points", *([when, point] if when else []), "--", "trainer.__main__", config]
    return start_warm(said, "tests.killing", *arguments).wait().status


def published(store: Path) -> dict[str, Any]:
    """What the store holds, as far as it does not depend on the time: bytes by name, manifests without their times."""
    found: dict[str, Any] = {
        name: digest
        for name, digest in digests(store).items()
        if Path(name).name not in TIMED and not name.startswith(("cache/", f"{only_run(store)}/tensorboard"))
    }
    for path in store.rglob("config.json"):
        found[str(path.relative_to(store))] = path.read_text().replace(str(store), "STORE")
    for path in store.rglob("manifest.json"):
        manifest = json.loads(path.read_text())
        files = {record["name"]: record["sha256"] for record in manifest["files"] if record["name"] not in TIMED}
        found[str(path.relative_to(store))] = (manifest["kind"], manifest["fingerprint"], manifest["details"], files)
    return found


@pytest.fixture(scope="module")
def clean(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not killed, with the names of the write points that it passed."""
    folder = tmp_path_factory.mktemp("clean")
    assert run(folder, raw) == 0
    return folder


def test_the_points_cover_every_kind_of_write(clean: Path) -> None:
    points = set((clean / "points").read_text().splitlines())
    for wanted in (
        "rename tokenizers/bpe-#", "replace runs/one/config.json", "rename runs/one/checkpoints/step-#",
        "replace runs/one/checkpoint-last", "replace runs/one/checkpoint-best", "rename runs/one/final",
        "replace runs/one/report.html", "replace runs/one/eval.json", "link runs/one/lease.json",
        name_point("unlink", "/s", "/s/runs/one/checkpoints/step-2/manifest.json"),
    ):  # fmt: skip
        assert wanted in points, sorted(points)
    assert any(point.startswith("replace shards/") or point.startswith("rename shards/") for point in points)


KEY_POINTS = [
    "rename tokenizers/bpe-#", "replace runs/one/config.json", "rename runs/one/checkpoints/step-#",
    "replace runs/one/checkpoint-last", "replace runs/one/checkpoint-best", "rename runs/one/final",
    "unlink runs/one/lease.json",
]  # fmt: skip


@pytest.mark.parametrize("chosen", ["key", pytest.param("every", marks=pytest.mark.long)])
def test_killed_at_a_write_point_it_ends_with_the_same_artifacts_and_nothing_left_over(
    raw: Path, clean: Path, tmp_path: Path, chosen: str
) -> None:
    expected = published(clean / "store")
    points = KEY_POINTS if chosen == "key" else sorted({*(clean / "points").read_text().splitlines()})
    cases = [(when, point) for point in points if ".staging" not in point for when in ("before", "after")]

    def wrong(number: int) -> list[str]:
        when, point = cases[number]
        folder = tmp_path / str(number)
        folder.mkdir()
        if run(folder, raw, when, point) == 0:
            return [f"{when} {point}: was not killed"]
        problems = [] if (last := run(folder, raw)) == 0 else [f"status {last}"]
        found = published(folder / "store")
        problems += [name for name in {*expected, *found} if expected.get(name) != found.get(name)]
        staging = folder / "store" / ".staging"
        problems += [str(path) for path in (staging.iterdir() if staging.is_dir() else [])]
        return [f"{when} {point}: {problem}" for problem in problems]

    with ThreadPoolExecutor(2) as pool:
        problems = [problem for each in pool.map(wrong, range(len(cases))) for problem in each]
    assert not problems, "\n".join(problems)
