"""Processes that are started without standard streams."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

WITHOUT_STREAMS = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable]


def test_what_is_written_to_a_closed_stream_reaches_no_file(tmp_path: Path) -> None:
    program = (
        "import os, sys; from trainer.common.streams import open_closed_streams; open_closed_streams();"
        "numbers = [os.open(f'{sys.argv[1]}/{n}', os.O_WRONLY | os.O_CREAT) for n in range(3)];"
        "print('a'); print('b', file=sys.stderr); os.write(2, b'c'); os.system('echo d; echo e >&2');"
        "sys.exit(3 if min(numbers) > 2 and not sys.stdin.read() else 4)"
    )
    ended = subprocess.run([*WITHOUT_STREAMS, "-c", program, str(tmp_path)], cwd=ROOT, timeout=60)
    assert ended.returncode == 3
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"0": b"", "1": b"", "2": b""}


@pytest.mark.parametrize("words", [["list"], ["list", "--json"]])
def test_a_command_needs_no_standard_streams(tmp_path: Path, words: list[str]) -> None:
    command = [*WITHOUT_STREAMS, "-m", "flows.command", *words, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0


@pytest.mark.deep
@pytest.mark.parametrize("module", ["trainer", "trainer.predict", "flows.data_to_model"])
def test_a_program_without_standard_streams_reports_bad_input_by_its_status(tmp_path: Path, module: str) -> None:
    command = [*WITHOUT_STREAMS, "-m", module, str(tmp_path / "missing.yaml")]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 2
