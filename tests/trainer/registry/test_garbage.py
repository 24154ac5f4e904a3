"""What nothing reaches is found and removed; what runs, champions and pins reach stays, and so does what is young or
used.
"""

import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.headrace import headrace
from tests.support import final_bytes, small_job
from tests.trainer.preparing import job_of, run, write_old
from tests.trainer.results import a_result
from tests.trainer.stocked_store import (
    NEW,
    OLD,
    add_encoded,
    add_run,
    add_shards,
    add_superseded,
    add_tokenizer,
    contents,
    found,
    keys,
)
from trainer.common.errors import ArtifactError, ConfigError, PipelineError, RunError, StorageError
from trainer.common.progress import silent
from trainer.data.shards import KIND
from trainer.data.tokenization import STARTED
from trainer.pipelines.any_kind import train
from trainer.records.lease import Lease
from trainer.records.sealed import write_sealed
from trainer.registry.promotion import promote, roll_back
from trainer.registry.references import pin, pinned, unpin
from trainer.store.artifact_files import find_damage
from trainer.store.local import LocalFiles
from trainer.store.manifest import MANIFEST, fingerprint, read_manifest
from trainer.store.storage import Store
from trainer.training.runtime import Runtime

UNREACHED = [f"encoded/lost-{OLD}", f"shards/lost-{OLD}", f"tokenizers/alone-{OLD}", f"tokenizers/lost-0-{OLD}"]


@pytest.fixture
def full(any_store: Store) -> Store:
    """A store with what runs reach in every way, and four artifacts that nothing reaches."""
    add_run(any_store, "pretrained", add_superseded(any_store, "used"))
    add_run(
        any_store, "tuned", add_encoded(any_store, "used"), start={"origin": "store", "key": "runs/pretrained/final"}
    )
    measured = a_result(
        {"validation": {}}, checkpoint="runs/pretrained/checkpoint-best", data=[add_superseded(any_store, "measured")]
    )
    write_sealed(any_store, "evaluations/checkpoint-best-1.json", measured.recorded())
    outside = a_result({"validation": {}}, checkpoint="/models/gpt", data=[add_superseded(any_store, "outside")])
    write_sealed(any_store, "evaluations/gpt-1.json", outside.recorded())
    add_run(any_store, "other", add_superseded(any_store, "other"))
    add_tokenizer(any_store, "other-0", **{"taken from": add_tokenizer(any_store, "taken")})
    pin(any_store, add_superseded(any_store, "pinned"))
    add_superseded(any_store, "lost")
    add_encoded(any_store, "lost")
    add_tokenizer(any_store, "alone")
    return any_store


def test_what_nothing_reaches_is_found_and_its_removal_frees_what_was_told(full: Store) -> None:
    before = contents(full)
    told = found(full)
    assert keys(told) == UNREACHED
    assert contents(full) == before, "a dry run changes nothing"
    assert found(full, remove=True) == told
    after = contents(full)
    gone = {key: data for key, data in before.items() if key not in after}
    assert {"/".join(key.split("/")[:2]) for key in gone} == set(UNREACHED)
    assert sum(map(len, gone.values())) == sum(each.size for each in told) > 0
    assert all(after[key] == before[key] for key in after)
    assert found(full) == []


def test_runs_go_only_if_they_are_old_and_neither_needed_nor_at_work(any_store: Store) -> None:
    add_run(any_store, "forgotten", add_superseded(any_store, "forgotten"))
    for name in ("base", "pinned", "first", "second", "rolled-back", "held"):
        add_run(any_store, name, add_encoded(any_store, name))
    fork = {"run": "runs/base", "checkpoint": "checkpoints/step-00000001"}
    pin(any_store, add_run(any_store, "fork", add_encoded(any_store, "kept-fork"), fork=fork))
    pin(any_store, "pinned")
    lost = add_run(any_store, "lost-base", add_encoded(any_store, "lost"))
    add_run(any_store, "a-lost-fork", add_encoded(any_store, "fork"), fork={**fork, "run": lost}, final=False)
    measured = a_result({"validation": {}}, checkpoint=f"{lost}/final", data=[add_superseded(any_store, "eval")])
    write_sealed(any_store, "evaluations/lost-1.json", measured.recorded())
    data = [add_superseded(any_store, "named")]
    named = a_result({"validation": {}}, checkpoint="lost-base", model=f"{lost}/final", data=data)
    write_sealed(any_store, "evaluations/lost-2.json", named.recorded())
    for name in ("first", "second", "rolled-back"):
        promote(any_store, "lm", f"runs/{name}", {}, "why")
    roll_back(any_store, "lm", "broke")
    with Lease(any_store, "runs/held"):
        assert not any(each.what == "run" for each in found(any_store))
        assert not any(each.what == "run" for each in found(any_store, runs_older_than_days=1))
        dry = found(any_store, runs_older_than_days=0)
        told = found(any_store, runs_older_than_days=0, remove=True)
    assert told == dry
    assert [each.key for each in told if each.what == "run"] == ["runs/a-lost-fork", "runs/forgotten", lost]
    assert set(keys(told)) - {"runs/a-lost-fork", "runs/forgotten", lost} == {
        f"encoded/fork-{OLD}", f"encoded/lost-{OLD}", f"shards/eval-{OLD}", f"shards/forgotten-{OLD}",
        f"shards/named-{OLD}", f"tokenizers/eval-0-{OLD}", f"tokenizers/forgotten-0-{OLD}", f"tokenizers/named-0-{OLD}",
    }  # fmt: skip
    left = {key.split("/")[1] for key in contents(any_store) if key.startswith("runs/")}
    assert left == {"base", "pinned", "first", "second", "rolled-back", "held", "fork"}
    assert found(any_store, remove=True) == []


def test_the_young_and_the_newest_set_of_each_corpus_stay(empty_store: Store) -> None:
    for name in (NEW, "1" * 16, OLD):
        add_shards(empty_store, "code", name)
    add_tokenizer(empty_store, "young")
    for key, days in {f"code-{NEW}": 30, "code-1111111111111111": 20, f"code-{OLD}": 10}.items():
        age(Path(empty_store.url), f"shards/{key}", days)
        age(Path(empty_store.url), f"tokenizers/code-{key[5]}-{OLD}", days)
    assert keys(found(empty_store, older_than_days=7)) == [
        "shards/code-1111111111111111", f"shards/code-{NEW}", f"tokenizers/code-1-{OLD}", f"tokenizers/code-f-{OLD}",
    ]  # fmt: skip
    assert keys(found(empty_store, older_than_days=25)) == [f"shards/code-{NEW}", f"tokenizers/code-f-{OLD}"]


def test_while_shards_are_made_the_sets_of_their_corpus_and_all_tokenizers_stay(any_store: Store) -> None:
    for corpus in ("code", "docs"):
        add_superseded(any_store, corpus)
    add_tokenizer(any_store, "alone")
    any_store.write_json(f"shards/code-{'a' * 16}/{STARTED}", {})
    assert keys(found(any_store)) == [f"shards/docs-{OLD}"]


def test_a_set_that_is_begun_anew_once_it_is_removed_keeps_what_it_takes_from(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, delete = add_superseded(any_store, "code"), Store.delete

    def delete_and_begin(self: Store, name: str, first: str | None = None) -> None:
        delete(self, name, first)
        if name == key:
            self.write_json(f"{key}/{STARTED}", {})

    monkeypatch.setattr(Store, "delete", delete_and_begin)
    add_tokenizer(any_store, "alone")
    assert keys(found(any_store, remove=True)) == [key]


@pytest.mark.parametrize("begun", ["a run", "a pin", "its preparation"])
def test_what_comes_to_be_needed_while_it_is_removed_stays_whole(
    any_store: Store, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = add_superseded(any_store, "code")
    before, delete = contents(any_store), Store.delete

    def delete_and_begin(self: Store, name: str, first: str | None = None) -> None:
        delete(self, name, first)
        if name == f"{key}/{MANIFEST}":
            if begun == "a run":
                add_run(self, "new", key)
            elif begun == "a pin":
                self.write_bytes(f"pins/{key}", b"")
            else:
                self.write_json(f"{key}/{STARTED}", {})

    monkeypatch.setattr(Store, "delete", delete_and_begin)
    assert found(any_store, remove=True) == []
    after = contents(any_store)
    kept = {name: data for name, data in before.items() if begun != "its preparation" or name != f"{key}/{MANIFEST}"}
    assert {name: after.get(name) for name in before if name in after} == kept


@pytest.mark.deep
def test_bytes_that_sets_share_are_counted_when_the_last_of_them_goes(code: Path, tmp_path: Path) -> None:
    raw, store = tmp_path / "raw", Store(str(tmp_path / "store"))
    raw.mkdir()
    for path in code.iterdir():
        write_old(raw / path.name, path.read_text(encoding="utf-8"))
    sets = []
    for change in range(3):
        write_old(raw / "changed.py", "x = 1\n" * (change + 1))
        sets += [ref.key for ref in run(job_of(raw, Path(store.url))).shards]
    before = disk_bytes(store)
    told = found(store, remove=True)
    assert sorted(keys(told)) == sorted(sets[:2])
    assert before - disk_bytes(store) == sum(each.size for each in told)
    manifest = read_manifest(store, sets[2], KIND)
    assert manifest is not None and not find_damage(store, sets[2], manifest)
    assert sum(each.size for each in told) < manifest.size(), "most shards were taken over into the set that stays"


def leave_alone(name: str, store: Store) -> None:
    """Of a run, leave one file, as after an accident."""
    store.delete("runs/a")
    store.write_bytes(f"runs/a/{name}", b"{}")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda store: store.write_bytes("runs/a/config.json", b"{half"),
            "runs/a are not known.*/config.json is damaged",
        ),
        (
            lambda store: write_sealed(
                store, "runs/a/config.json", {"fingerprint": fingerprint({}), "identity": {}, "data": {}}
            ),
            "runs/a are not known.* config.json lists no inputs",
        ),
        (lambda store: store.delete("runs/a/config.json"), "runs/a are not known.* config.json is missing"),
        *(
            (partial(leave_alone, name), "runs/a are not known.* config.json is missing")
            for name in ("plan.json", "checkpoint-last", "final/manifest.json")
        ),
        (
            lambda store: store.write_bytes("runs/a/eval.json", b"{half"),
            "runs/a are not known.*/eval.json is damaged: .*; run the evaluation again, which rewrites it$",
        ),
        (lambda store: store.write_bytes("models/lm/champion", b"{half"), "champion is damaged: it is not valid JSON"),
        (
            lambda store: store.write_bytes("evaluations/x.json", b"[]"),
            "evaluations/x.json are not known.* it is not a JSON object",
        ),
        (
            lambda store: store.write_bytes(f"shards/code-{OLD}/{MANIFEST}", b"[]"),
            f"code-{OLD} are not known.* is damaged",
        ),
    ],
)
def test_where_it_is_not_known_what_is_needed_nothing_is_removed(
    empty_store: Store, spoil: Callable[[Store], None], message: str
) -> None:
    add_run(empty_store, "a", add_superseded(empty_store, "code"))
    add_encoded(empty_store, "lost")
    spoil(empty_store)
    before = contents(empty_store)
    with pytest.raises(PipelineError, match=message):
        found(empty_store, remove=True, runs_older_than_days=0)
    assert contents(empty_store) == before


KILLED = """
import os
from trainer.config.jobs import GarbageJob
from trainer.registry.garbage import collect
from trainer.store.storage import Store
delete = Store.delete
def dying(self, key, first=None):
    if key.endswith("/config.json"):
        os._exit(137)
    delete(self, key, first)
Store.delete = dying
list(collect(GarbageJob(store={url!r}, older_than_days=0, runs_older_than_days=30, remove=True)))
"""


def test_what_a_killed_removal_left_of_a_run_goes_with_the_next(empty_store: Store) -> None:
    run = add_run(empty_store, "a", add_superseded(empty_store, "code"))
    then = time.time() - 40 * 86400
    for path in Path(empty_store.path(run)).rglob("*"):
        os.utime(path, (then, then))
    killed = subprocess.run([sys.executable, "-c", KILLED.format(url=empty_store.url)], check=False)
    assert killed.returncode == 137 and set(empty_store.names(run)) == {"config.json", "lease.json"}
    assert run in keys(found(empty_store, runs_older_than_days=30, remove=True))
    assert empty_store.names("runs") == []


def test_what_cannot_be_removed_stops_no_other_removal(empty_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, free = add_encoded(empty_store, "a"), add_encoded(empty_store, "b")
    delete = LocalFiles.delete

    def refuse(files: LocalFiles, key: str, first: str | None = None) -> None:
        if key.startswith(stuck):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), key)
        delete(files, key, first)

    monkeypatch.setattr(LocalFiles, "delete", refuse)
    with pytest.raises(
        StorageError, match=f"cannot delete .*{stuck}.*: Permission denied; give this user write permission"
    ):
        found(empty_store, remove=True)
    assert empty_store.exists(f"{stuck}/{MANIFEST}")
    assert not empty_store.exists(f"{free}/{MANIFEST}")


def test_what_a_link_among_the_runs_leads_to_may_need_anything(empty_store: Store, tmp_path: Path) -> None:
    add_run(empty_store, "a", lost := add_encoded(empty_store, "pairs"))
    empty_store.delete("runs/a")
    assert empty_store.local is not None
    (tmp_path / "elsewhere").mkdir()
    (empty_store.local / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"runs/link is a symbolic link"):
        found(empty_store, remove=True)
    assert empty_store.exists(f"{lost}/{MANIFEST}")


def test_a_run_that_has_not_said_yet_what_it_reads_is_waited_for(any_store: Store) -> None:
    add_encoded(any_store, "lost")
    with Lease(any_store, "runs/new"), pytest.raises(RunError, match="runs/new is starting"):
        found(any_store, remove=True)
    assert keys(found(any_store)) == [f"encoded/lost-{OLD}"]


def test_pins_name_what_exists(any_store: Store) -> None:
    add_run(any_store, "a", add_encoded(any_store, "pairs"))
    assert pin(any_store, "a") == pin(any_store, "runs/a") == "runs/a"
    pin(any_store, f"encoded/pairs-{OLD}")
    assert pinned(any_store) == {"runs/a", f"encoded/pairs-{OLD}"}
    assert unpin(any_store, "a") == "runs/a"
    with pytest.raises(ConfigError, match=f"runs/a is not pinned; there are 'encoded/pairs-{OLD}'"):
        unpin(any_store, "a")
    with pytest.raises(RunError, match=r"there is no run 'b' in .*; there are 'a' \(`headrace list"):
        pin(any_store, "b")
    with pytest.raises(ArtifactError, match=rf"cannot pin .*; did you mean 'pairs-{OLD}'\?"):
        pin(any_store, f"encoded/pears-{OLD}")
    with pytest.raises(ConfigError, match="expected a run's name, or a key"):
        pin(any_store, "models/lm/champion")
    assert pinned(any_store) == {f"encoded/pairs-{OLD}"}


def test_the_beginning_of_a_runs_name_does_not_pin_or_unpin_it(empty_store: Store) -> None:
    add_run(empty_store, "exp-10", add_encoded(empty_store, "pairs"))
    with pytest.raises(RunError, match=r"there is no run 'exp-1' in .*; did you mean 'exp-10'"):
        pin(empty_store, "exp-1")
    pin(empty_store, "exp-10")
    with pytest.raises(ConfigError, match=r"runs/exp-1 is not pinned; did you mean 'runs/exp-10'"):
        unpin(empty_store, "exp-1")
    assert pinned(empty_store) == {"runs/exp-10"}


@pytest.mark.parametrize("deletions", [1, 4])
def test_a_run_whose_removal_was_interrupted_can_be_continued_or_removed(
    raw: Path, stocked: Path, runtime: Runtime, deletions: int
) -> None:
    store, job = Store(str(stocked)), small_job(raw, stocked, training__max_steps=2, training__save_every=1)
    key = train(job, silent()).key
    weights, delete, calls = final_bytes(stocked), Store.delete, 0

    def until(self: Store, name: str, first: str | None = None) -> None:
        nonlocal calls
        calls += not name.endswith("lease.json")
        if calls > deletions and not name.endswith("lease.json"):
            raise KeyboardInterrupt
        delete(self, name, first)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "delete", until)
        found(store, runs_older_than_days=0, remove=True)
    assert key in keys(found(store, runs_older_than_days=0))
    train(job, silent())
    assert final_bytes(stocked) == weights
    assert key in keys(found(store, runs_older_than_days=0, remove=True))
    assert store.names("runs") == []


def test_the_command_shows_removes_and_pins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path))
    add_encoded(store, "pairs")
    assert headrace("gc", store.url) == 0
    assert capsys.readouterr().out == "0 unreferenced folders, 0 bytes\n"
    age(tmp_path, f"encoded/pairs-{OLD}", 8)
    assert headrace("gc", store.url) == 0
    said = capsys.readouterr().out
    assert re.search(r"^1 unreferenced folder, \d+ bytes; --remove removes them$", said, re.MULTILINE)
    assert said.startswith("encoded") and f"encoded/pairs-{OLD}\n" in said
    assert headrace("pin", store.url, f"encoded/pairs-{OLD}") == 0
    assert headrace("gc", store.url, "--remove") == 0
    assert f"bytes: removed\npinned: encoded/pairs-{OLD}\n" in capsys.readouterr().out
    assert headrace("pin", store.url, f"encoded/pairs-{OLD}", "--remove") == 0
    assert headrace("gc", store.url, "--remove") == 0
    assert re.match(r"1 unreferenced folder, \d+ bytes: removed$", capsys.readouterr().out.splitlines()[-1])
    assert not (tmp_path / "encoded" / f"pairs-{OLD}").exists()
    assert headrace("gc", store.url, "--older-than", "-1") == 2
    assert "older_than_days" in capsys.readouterr().err


def age(store: Path, key: str, days: float) -> None:
    """Make an artifact look as if it had been made so many days ago."""
    for path in (store / key).rglob("*"):
        os.utime(path, (0, time.time() - days * 86400))


def disk_bytes(store: Store) -> int:
    """The bytes of all files of a local store, each counted once however many names it has."""
    files = [path.stat() for path in Path(store.url).rglob("*") if path.is_file()]
    return sum({each.st_ino: each.st_size for each in files}.values())
