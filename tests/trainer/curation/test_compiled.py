"""Compiled code is kept for later processes, and what becomes of where it is kept changes no result."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from tests.trainer.curation_texts import encoded, texts
from trainer.curation import c4, language, loops
from trainer.curation import gopher as quality
from trainer.curation import gopher as repetition
from trainer.curation import texts as of_texts

ONE_LINE = """
from trainer.curation import loops, texts
print(texts.Texts([b"one line"]).lines.hashes.tolist(), sum(loops.find_lines.stats.cache_hits.values()))
"""


def start(cache: Path | str) -> "subprocess.Popen[str]":
    env = {**os.environ, "HEADRACE_CACHE": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", ONE_LINE], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: "subprocess.Popen[str]") -> tuple[str, str]:
    told, errors = process.communicate()
    assert process.returncode == 0, errors
    return told.strip(), errors


@pytest.fixture(scope="module")
def told() -> str:
    return str(of_texts.Texts([b"one line"]).lines.hashes.tolist())


@pytest.mark.deep
def test_processes_that_begin_at_once_compile_the_same_and_later_ones_nothing(told: str, tmp_path: Path) -> None:
    for found, errors in map(ended, [start(tmp_path) for _ in range(3)]):
        assert found.startswith(told) and not errors
    assert ended(start(tmp_path)) == (f"{told} 1", "")


@pytest.mark.deep
def test_code_that_was_lost_or_left_empty_is_compiled_anew(told: str, tmp_path: Path) -> None:
    ended(start(tmp_path))
    files = sorted(tmp_path.rglob("*.nb?"))
    assert {path.suffix for path in files} == {".nbi", ".nbc"}
    for path in files:
        path.write_bytes(b"")
    assert ended(start(tmp_path)) == (f"{told} 0", "")
    assert ended(start(tmp_path)) == (f"{told} 1", "")


def test_without_a_folder_that_can_be_written_every_process_compiles(told: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    found, errors = ended(start(tmp_path / "file"))
    assert found == f"{told} 0" and "HEADRACE_CACHE" in errors and "Not a directory" in errors


@pytest.mark.deep
def test_loops_are_compiled_once_whatever_the_texts_and_those_over_characters_for_ascii_as_well() -> None:
    for documents in ([], [b""], encoded(texts())):
        batch = of_texts.Texts(documents)
        of_texts.shingles(batch, 5)
        for measure in (quality.quality, repetition.repetition, c4.c4, language.language):
            measure(batch)
    known = [loop for module in (loops, quality, repetition, c4, language) for loop in vars(module).values()]
    compiled = [loop for loop in known if isinstance(loop, numba.core.registry.CPUDispatcher)]
    assert len(compiled) > 20
    for loop in compiled:
        as_wide = {str(types).replace("uint8", "uint32") for types in loop.signatures}  # ASCII comes as bytes
        assert len(as_wide) <= 1, (loop.__name__, loop.signatures)
