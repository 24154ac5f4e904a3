"""The lm-eval task of `make harness`."""

from pathlib import Path

import pytest

from samples.tasks import main
from tests.support import read_rows
from trainer.config.evaluation import HarnessConfig
from trainer.evaluation.harness_identity import identify


@pytest.mark.deep
def test_each_question_has_four_lines_of_which_one_is_right(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    asked, solved = (read_rows(tmp_path / name) for name in ("questions.jsonl", "solved.jsonl"))
    for question in (*asked, *solved):
        assert len(set(question["choices"])) == 4 and 0 <= question["answer"] < 4
    assert not {each["id"] for each in asked} & {each["id"] for each in solved}
    told = identify(HarnessConfig(tasks=["next_line"], include_path=str(tmp_path)), "1")["next_line"]
    assert {Path(file.path).name: file.asked for file in told.data} == {"questions.jsonl": True, "solved.jsonl": False}
