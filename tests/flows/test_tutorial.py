"""The tutorial, done as it says, with few steps."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from tests.docs.pages import DOCS, Block, blocks_of
from tests.support import ROOT
from trainer.common.errors import EXIT_BAD_INPUT

FEW = [
    "training.max_steps=6",
    "training.warmup_steps=2",
    "training.evaluate_every=3",
    "training.save_every=3",
    "data.workers=1",
]
"""What is added to the commands that take the tutorial's job."""


class Reader:
    """Someone who does what the tutorial says, in a folder with a text in each of some files."""

    def __init__(self, folder: Path, server: dict[str, str]) -> None:
        self.folder, self.printed = folder, ""
        self._environment = {**os.environ, **server, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        (folder / "texts").mkdir()
        for name in sorted(topics):
            (folder / "texts" / f"{name.replace('/', '-')}.txt").write_text(topics[name], encoding="utf-8")

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.language == "yaml":
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._start(["-c", block.text], 0)
        elif block.title != "on a server":
            for line in block.text.splitlines():
                name, *words = shlex.split(line)
                if name == "headrace":
                    few = FEW if "books.yaml" in words and words[0] != "new" else []
                    self._start(["-m", "flows.command", *words, *few], EXIT_BAD_INPUT if block.title == "is refused" else 0)

    def _start(self, words: list[str], status: int) -> None:
        ended = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == status, f"{words}\n{ended.stdout}\n{ended.stderr}"
        self.printed = ended.stdout


@pytest.mark.slow
def test_the_tutorial_leads_to_a_champion(server: dict[str, str], tmp_path: Path) -> None:
    reader = Reader(tmp_path, server)
    for block in blocks_of(DOCS / "tutorial.md"):
        reader.follow(block)
    store = tmp_path / "data" / "store"
    assert (store / "models" / "books" / "champion").exists()
    assert len(list((store / "runs").glob("books-*/final/model.safetensors"))) == 2
    assert len(list((store / "tokenizers").iterdir())) == len(list((store / "shards").iterdir())) == 1
