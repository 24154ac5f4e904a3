"""The table of the whole proof: the output of each part is counted, and an unfinished part is a failure."""

import pytest

from tests import proof
from tests.proof import Outcome, judge


@pytest.mark.parametrize(
    ("said", "status", "outcome"),
    [
        ("x\nfaults 3, wrong 0\nfaults 4, wrong 0\n5 passed in 2 s", 0, Outcome(7, 0, True, 1)),
        ("faults 3, wrong 1\n", 1, Outcome(3, 1, True, 1)),
        ("tests/x.py faults 3, wrong 0\n.faults 4, wrong 0\n.\n2 passed", 0, Outcome(7, 0, True, 1)),
        ("12 passed, 3 deselected in 4.0 s", 0, Outcome(12, 0, True, 1)),
        ("2 failed, 10 passed in 4.0 s", 1, Outcome(12, 2, True, 1)),
        ("1 passed, 1 error in 4.0 s", 1, Outcome(2, 1, True, 1)),
        ("faults 3, wrong 0\nTraceback", 1, Outcome(3, 0, False, 1)),
        ("no tests ran", 5, Outcome(0, 0, False, 1)),
    ],
)
def test_what_a_part_says_is_counted(said: str, status: int, outcome: Outcome) -> None:
    assert judge(said, status, 1) == outcome


def test_each_part_is_a_row_and_one_that_breaks_off_fails_the_whole(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"power-cuts": Outcome(1234, 0, True, 2), "soak": Outcome(5, 0, False, 1)}
    monkeypatch.setattr(proof, "LOGS", tmp_path)
    monkeypatch.setattr(proof, "prove", lambda name, share: found[name])
    assert proof.main("0.5", "power-cuts") == 0
    assert proof.main("0.5", *found) == 1
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert rows[1] == [*["images", "of", "a", "store", "after", "a", "power", "cut"], "1,234", "0", "2.0"]
    assert rows[-2][-3:] == ["end:", "see", f"{tmp_path}/soak.log"]
    assert rows[-1] == ["in", "all", "1,239", "0"]
