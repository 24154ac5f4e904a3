"""After a power cut, what was promised is there, nothing is half written, and the work goes on to the same end."""

import random
from pathlib import Path

import pytest

from tests.power_cuts.__main__ import main
from tests.power_cuts.cutting import Cuts, cut
from tests.power_cuts.planted import BUGS
from tests.power_cuts.trials import NOTES, TRIALS, Trial

pytestmark = pytest.mark.slow

MOST = 12
"""Images of a deed that it goes on from; `make power-cuts` takes more."""

SEEN_IN = {
    "removed_without_order": "garbage", "removed_for_now": "garbage", "records_not_synced": "pretraining",
    "removed_before_it_is_replaced": "promote",
}  # fmt: skip
"""The deed in which a bug shows; of the others, "publish"."""


def cuts_of(trial: Trial, common: Path, bug: str = "") -> Cuts:
    return cut(trial.record(common, bug), common / NOTES, random.Random(0))


def test_a_deed_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="there is no deed 'publsh'; did you mean 'publish'"):
        main(["1", "0", "publsh"])


@pytest.mark.parametrize(
    "deed", [name if name in ("publish", "old runs") else pytest.param(name, marks=pytest.mark.deep) for name in TRIALS]
)
def test_what_a_cut_leaves_of_a_deed_goes_on_to_the_same_end(deed: str, tmp_path: Path) -> None:
    trial = TRIALS[deed]
    cuts = cuts_of(trial, tmp_path)
    assert cuts.wrong == []
    expected = trial.outcome(tmp_path / "clean" / "store")
    assert all(expected.values())
    assert ("move 2" in expected) == (deed in ("promote", "roll back"))
    for each in random.Random(0).sample(cuts.all, min(MOST, len(cuts.all))):
        assert trial.judge(tmp_path, each.image, expected) == "", each.after


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=pytest.mark.deep) if bug == "records_not_synced" else bug for bug in BUGS]
)
def test_bugs_that_were_put_into_the_store_are_found(bug: str, tmp_path: Path) -> None:
    assert cuts_of(TRIALS[SEEN_IN.get(bug, "publish")], tmp_path, bug).wrong != []
