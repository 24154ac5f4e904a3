"""After a power cut, what was promised is there, nothing is half written, and the work goes on to the same end."""

import random
from pathlib import Path

import pytest

from tests.power_cuts.images import Image, broken_promises, cut, half_written
from tests.power_cuts.planted import BUGS
from tests.power_cuts.recording import CONTENTS, Event
from tests.power_cuts.trials import NAMED, SAME, TRIALS, Trial

pytestmark = pytest.mark.slow

DRAWN = 4

MOST = {"pretraining": 40, "tuning": 20, "preferences": 20, "curation": 20}
"""Of the images of a job, so many are gone on from; `make power-cuts` takes more."""


def images_of(events: list[Event]) -> list[Image]:
    return [image for _, image in cut(events, random.Random(0), DRAWN)]


def at_fault(trial: Trial, common: Path) -> list[str]:
    """What is wrong by itself in any image of a deed."""
    events = trial.record(common)
    half = [each for image in images_of(events) for each in half_written(image, common / "notes" / CONTENTS)]
    return [*broken_promises(events), *half]


@pytest.mark.parametrize(
    "deed", [name if name == "old runs" else pytest.param(name, marks=pytest.mark.deep) for name in TRIALS]
)
def test_what_a_cut_leaves_of_a_deed_goes_on_to_the_same_end(deed: str, tmp_path: Path) -> None:
    trial = TRIALS[deed]
    events = trial.record(tmp_path)
    assert broken_promises(events) == []
    images = images_of(events)
    assert [half for image in images for half in half_written(image, tmp_path / "notes" / CONTENTS)] == []
    expected = trial.outcome(tmp_path / "clean" / "store")
    tried = random.Random(0).sample(images, min(MOST.get(deed, 20), len(images)))
    verdicts = [trial.judge(tmp_path, image, expected) for image in tried]
    assert set(verdicts) <= {SAME, NAMED}, [verdict for verdict in verdicts if verdict not in (SAME, NAMED)]
    assert SAME in verdicts


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_that_were_put_into_the_store_are_found(bug: str, tmp_path: Path) -> None:
    deed = "garbage" if bug == "removed_without_order" else "publish"
    assert at_fault(TRIALS[deed], tmp_path / "sound") == []
    assert at_fault(TRIALS[deed].with_bug(bug), tmp_path / "planted") != []
