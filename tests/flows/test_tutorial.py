"""The tutorial's commands work, with fewer training steps."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from flows.command import FLOW_COMMANDS
from tests import ROOT
from tests.docs.pages import DOCS, Block, blocks_of
from tests.processes import Ended
from trainer.common.errors import EXIT_BAD_INPUT

FEW = [
    "training.max_steps=6", "training.warmup_steps=2", "training.evaluate_every=3", "training.save_every=3",
    "data.workers=1",
    "evaluation.max_windows=4", "evaluation.during_training=2",
]  # fmt: skip
"""What is added to the commands that take the tutorial's job."""


class Reader:
    """A reader who follows the tutorial in a folder with text files."""

    def __init__(self, server: dict[str, str], command: Callable[..., Ended]) -> None:
        self._command, self._has_run = command, False
        self._environment = {**os.environ, **server, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        texts = Path("texts")
        texts.mkdir()
        for name in sorted(topics)[:60]:
            (texts / f"{name.replace('/', '-')}.txt").write_text(topics[name], encoding="utf-8")

    def follow(self, block: Block) -> None:
        """Execute a block."""
        if block.language == "yaml":
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(block.text, {})
        elif block.title != "on a server":
            for line in block.text.splitlines():
                name, *words = shlex.split(line)
                if name == "headrace":
                    few = FEW if "books.yaml" in words and words[0] != "new" else []
                    assert self._start([*words, *few]) == (EXIT_BAD_INPUT if block.title == "is refused" else 0), line

    def _start(self, words: list[str]) -> int:
        """The exit status of a command; the first one that runs the pipeline is a new process."""
        if words[0] not in FLOW_COMMANDS or "--dry-run" in words or self._has_run:
            return self._command(*words).status
        self._has_run = True
        command = [sys.executable, "-m", "flows.command", *words]
        return subprocess.run(command, env=self._environment, check=False).returncode


@pytest.mark.deep
@pytest.mark.slow
def test_the_tutorial_leads_to_a_champion(
    server: dict[str, str], command: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(server, command)
    for block in blocks_of(DOCS / "tutorial.md"):
        reader.follow(block)
    store = Path("data/store")
    assert (store / "models" / "books" / "champion").exists()
    assert len(list((store / "runs").glob("books-*/final/model.safetensors"))) == 2
    assert len(list((store / "tokenizers").iterdir())) == len(list((store / "shards").iterdir())) == 1
