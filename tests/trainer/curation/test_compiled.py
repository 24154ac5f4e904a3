"""Compiled code is kept for later processes, and what becomes of where it is kept changes no result."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from tests.disks import fill
from tests.trainer.curation_texts import encoded, texts
from trainer.curation import c4, gopher, language, loops
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


MEETS = """
import sys, time
from pathlib import Path
from numba.core import caching
from trainer.curation import loops, texts

meeting, text = Path(sys.argv[1]), sys.argv[2].encode()
load = caching.IndexDataCacheFile._load_index

def load_and_meet(self):
    found = load(self)
    if "find_normalized_words" in self._index_name and sys._getframe(1).f_code.co_name == "save":
        (meeting / sys.argv[2]).touch()
        until = time.monotonic() + 3
        while len(list(meeting.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    return found

caching.IndexDataCacheFile._load_index = load_and_meet
print(texts.Texts([text]).normalized_words().hashes.tolist())
"""
READS_BOTH = """
from trainer.curation import loops, texts
print([texts.Texts([text.encode()]).normalized_words().hashes.tolist() for text in ("one", "öne")])
print(sum(loops.find_normalized_words.stats.cache_hits.values()))
"""


@pytest.mark.deep
def test_code_that_two_processes_compile_for_different_texts_at_once_is_not_exchanged(tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    env = {**os.environ, "HEADRACE_CACHE": str(tmp_path / "cache")}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", MEETS, str(tmp_path / "meeting"), text], env=env, stdout=subprocess.PIPE, text=True
        )
        for text in ("one", "öne")
    ]
    said = [process.communicate()[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    later = subprocess.run([sys.executable, "-c", READS_BOTH], env=env, capture_output=True, text=True)
    assert later.returncode == 0, later.stderr
    assert later.stdout.splitlines() == [f"[{said[0]}, {said[1]}]", "2"]


@pytest.mark.deep
def test_code_that_was_lost_or_left_empty_zeroed_or_cut_off_is_compiled_anew(told: str, tmp_path: Path) -> None:
    ended(start(tmp_path))
    files = sorted(tmp_path.rglob("*.nb?"))
    assert {path.suffix for path in files} == {".nbi", ".nbc"}
    for number, path in enumerate(files):
        raw = path.read_bytes()
        path.write_bytes([b"", bytes(len(raw)), raw[:-1].rstrip(b".")][number % 3])
    assert ended(start(tmp_path)) == (f"{told} 0", "")
    assert ended(start(tmp_path)) == (f"{told} 1", "")


def test_where_the_disk_has_no_room_for_it_every_process_compiles(told: str, small_disk: Path) -> None:
    fill(small_disk)
    found, errors = ended(start(small_disk))
    assert found == f"{told} 0" and errors.count("HEADRACE_CACHE") == errors.count("No space left on device") == 1


def test_without_a_folder_that_can_be_written_every_process_compiles(told: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    found, errors = ended(start(tmp_path / "file"))
    assert found == f"{told} 0" and "HEADRACE_CACHE" in errors and "Not a directory" in errors


@pytest.mark.deep
@pytest.mark.parametrize("shared", ["folder", "parent", "group"])
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_code_that_other_users_can_change_is_not_loaded(shared: str, told: str, tmp_path: Path) -> None:
    ended(start(tmp_path))
    (folder,) = (tmp_path / "compiled").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    if shared == "group":
        folder.parent.chmod(0o770)
    else:
        os.chown(folder if shared == "folder" else folder.parent, 65534, -1)
    found, errors = ended(start(tmp_path))
    assert found == f"{told} 0" and errors.count("other users can change this folder") == 1
    assert "set HEADRACE_CACHE to a folder of your own" in errors


@pytest.mark.deep
def test_loops_are_compiled_once_whatever_the_texts_and_those_over_characters_for_ascii_as_well() -> None:
    for documents in ([], [b""], encoded(texts())):
        batch = of_texts.Texts(documents)
        of_texts.shingles(batch, 5)
        for measure in (gopher.quality, gopher.repetition, c4.c4, language.language):
            measure(batch)
    known = [loop for module in (loops, gopher, c4, language) for loop in vars(module).values()]
    compiled = [loop for loop in known if isinstance(loop, numba.core.registry.CPUDispatcher)]
    assert len(compiled) > 20
    for loop in compiled:
        as_wide = {str(types).replace("uint8", "uint32") for types in loop.signatures}  # ASCII comes as bytes
        assert len(as_wide) <= 1, (loop.__name__, loop.signatures)
