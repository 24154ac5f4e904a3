"""The Slurm script: with stand-ins for Slurm's two commands, which start the ranks here and note what is queued
again.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

SCRIPT = ROOT / "deployments" / "slurm" / "headrace.sbatch"
SRUN = """#!/bin/sh
shift
worst=0
for id in 0 1; do
    SLURM_PROCID=$id SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NNODES=2 "$@" ||
        { ended=$?; [ $ended -gt $worst ] && worst=$ended; }
done
exit $worst
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then echo first; echo second; else echo "$@" >> "$QUEUED"; fi
"""
TRAINER = """#!/bin/sh
echo "$@" rank $RANK of $WORLD_SIZE, here $LOCAL_RANK of $LOCAL_WORLD_SIZE, at $MASTER_ADDR:$MASTER_PORT
exit $STATUS
"""


def submit(folder: Path, status: int, restarts: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with ranks that end with a status, in a job that Slurm has started again so often; also returns
    what was queued again so far.
    """
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("trainer", TRAINER)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHON": str(folder / "trainer"),
        "STATUS": str(status),
    }
    env |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "20007", "SLURM_RESTART_COUNT": str(restarts)}
    env["QUEUED"] = str(folder / "queued")
    ended = subprocess.run(
        ["bash", SCRIPT, "a b.yaml", "x=1"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    queued = folder / "queued"
    return ended, queued.read_text().splitlines() if queued.exists() else []


def test_each_rank_is_told_of_the_others(tmp_path: Path) -> None:
    ended, queued = submit(tmp_path, 0)
    assert (ended.returncode, queued) == (0, [])
    said = "-m trainer a b.yaml x=1 rank {} of 2, here 0 of 1, at first:20007"
    assert ended.stdout.splitlines()[:2] == [said.format(0), said.format(1)]


@pytest.mark.parametrize(("status", "again"), [(75, True), (2, False), (1, True), (137, True)])
def test_what_can_go_on_is_queued_again(status: int, again: bool, tmp_path: Path) -> None:
    ended, queued = submit(tmp_path, status, restarts=9)
    assert ended.returncode == status
    assert queued == (["requeue 20007"] if again else [])


@pytest.mark.parametrize(
    ("ends", "starts"),
    [
        ([1, 137, 1], 3),
        ([1, 137, 1, 1], 3),
        ([75, 75, 75, 75, 1], 5),
        ([1, 1, 1, 75, 1, 1, 1, 1], 7),
        ([1, 1, 1, 1, 1], 4),  # somebody has queued it again after three
    ],
)
def test_crashes_in_a_row_are_queued_again_three_times(ends: list[int], starts: int, tmp_path: Path) -> None:
    for restarts, status in enumerate(ends):
        _, queued = submit(tmp_path, status, restarts)
    assert len(queued) == starts


@pytest.mark.parametrize("last", [0, 2, 75])
def test_no_count_of_crashes_is_left(last: int, tmp_path: Path) -> None:
    for status in (1, last):
        submit(tmp_path, status)
    assert not list(tmp_path.glob("*.crashes"))


def test_a_crash_that_cannot_be_counted_is_not_queued_again(tmp_path: Path) -> None:
    (tmp_path / "headrace-20007.crashes").mkdir()
    ended, queued = submit(tmp_path, 1)
    assert (ended.returncode, queued) == (1, [])
    assert "headrace-20007.crashes is not writable" in ended.stdout
