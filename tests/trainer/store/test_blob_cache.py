"""The cache of remote files: it stays within its size, and what is in use stays."""

import errno
import hashlib
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.common.errors import ConfigError, StorageError, WrongContent
from trainer.store.blob_cache import BlobCache, Copy
from trainer.store.remedies import is_of_cache
from trainer.store.storage import Store


def content(number: int) -> bytes:
    return bytes([number]) * 100


def use(
    cache: BlobCache,
    number: int,
    download: Callable[[Path], object] | None = None,
    recheck: bool = False,
    beyond: bool = False,
) -> Path:
    """The name that the copy is given, by which it is in use."""
    data, target = content(number), cache.work / f"{number}-{uuid.uuid4().hex}"
    cache.work.mkdir(parents=True, exist_ok=True)
    sha256, download = hashlib.sha256(data).hexdigest(), download or (lambda path: path.write_bytes(data))
    cache.give(target, sha256, "1", len(data), download, recheck, beyond)
    return target


def get(cache: BlobCache, number: int, download: Callable[[Path], object] | None = None, recheck: bool = False) -> Path:
    """The copy itself, used and let go of."""
    target = use(cache, number, download, recheck)
    (path,) = (path for path in cache.work.parent.iterdir() if path.is_file() and path.samefile(target))
    target.unlink()
    return path


def kept(cache: BlobCache, folder: Path) -> list[int]:
    return sorted(path.read_bytes()[0] for path in folder.iterdir() if path.is_file() and path.stat().st_size == 100)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (path.stat().st_atime - seconds, path.stat().st_mtime))


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path, 300)


def test_the_least_recently_used_copies_make_room(cache: BlobCache, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        age(get(cache, number), 10 - number)
    get(cache, 1)
    get(cache, 4)
    assert kept(cache, tmp_path) == [1, 3, 4]


def test_a_copy_with_a_second_name_is_in_use_and_stays(cache: BlobCache, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        age((get if number == 2 else use)(cache, number), 10 - number)
    get(cache, 4)
    assert kept(cache, tmp_path) == [1, 3, 4]


def test_a_copy_that_is_given_while_others_make_room_is_counted(
    cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes room has looked at what is in use, and somebody begins to use what is about to go."""
    for number in (1, 2, 3):
        age(get(cache, number), 10 - number)
    given: list[Path] = []
    beside = threading.Thread(target=lambda: given.append(use(cache, 1)))
    evict = BlobCache._evict

    def late(found: list[Copy], lacking: int) -> bool:
        if not beside.ident:
            beside.start()
            beside.join(0.5)
        return evict(found, lacking)

    monkeypatch.setattr(BlobCache, "_evict", staticmethod(late))
    get(cache, 4)
    beside.join(10)
    assert [path.stat().st_nlink for path in given] == [2]


def test_no_room_is_an_error_that_says_what_to_do(cache: BlobCache, tmp_path: Path) -> None:
    used = [use(cache, number) for number in (1, 2, 3)]
    with pytest.raises(
        StorageError, match=r"has no space for 100 bytes: 300 of its 300 are in use; raise HEADRACE_CACHE_BYTES"
    ):
        get(cache, 4)
    used[1].unlink()
    assert get(cache, 4).read_bytes() == content(4)


def test_downloads_at_the_same_time_stay_within_the_limit(cache: BlobCache, tmp_path: Path) -> None:
    at_once, refused = threading.Barrier(3), []

    def slow(path: Path) -> None:
        at_once.wait(10)
        path.write_bytes(content(int(threading.current_thread().name)))
        at_once.wait(10)

    def one(number: int) -> None:
        get(cache, number, slow)

    threads = [threading.Thread(target=one, args=(number,), name=str(number)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    at_once.wait(10)
    get(cache, 3)
    try:
        get(cache, 4)  # 3 goes: what is being downloaded has its room already
    except StorageError as error:
        refused.append(error)
    at_once.wait(10)
    for thread in threads:
        thread.join()
    assert not refused
    assert kept(cache, tmp_path) == [1, 2, 4]


def test_a_download_that_was_killed_gives_its_room_back(cache: BlobCache, tmp_path: Path) -> None:
    left = tmp_path / f"{'a' * 64}-{'b' * 16}.{'c' * 12}.250"
    left.write_bytes(b"half")
    get(cache, 1)
    assert not left.exists()


def test_a_download_that_was_killed_does_not_stand_in_its_own_way(cache: BlobCache, tmp_path: Path) -> None:
    path = get(cache, 1)
    left = path.with_name(f"{path.name}.{'c' * 12}.250")
    path.rename(left)
    assert get(cache, 1).exists()
    assert not left.exists()


def test_a_copy_that_has_changed_is_replaced_and_stands_in_nobodys_way(cache: BlobCache, tmp_path: Path) -> None:
    used, *_ = [use(cache, number) for number in (1, 2, 3)]
    used.write_bytes(content(9))
    assert get(cache, 1).read_bytes() == content(1)
    assert used.read_bytes() == content(9), "whoever reads it goes on"


def test_a_copy_that_is_looked_at_and_right_is_not_downloaded_again(cache: BlobCache) -> None:
    get(cache, 1)
    assert get(cache, 1, pytest.fail, recheck=True).read_bytes() == content(1)


def test_wrong_content_is_refused_and_not_kept(cache: BlobCache, tmp_path: Path) -> None:
    with pytest.raises(WrongContent):
        get(cache, 1, lambda path: path.write_bytes(content(2)))
    assert kept(cache, tmp_path) == kept(cache, cache.work) == []


def test_the_size_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "50GB")
    with pytest.raises(ConfigError, match="expected a number of bytes"):
        BlobCache.of_this_machine()


def test_what_may_go_beyond_the_limit_does_not_count_while_it_is_in_use(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 200)
    large = [use(cache, number, beyond=True) for number in (1, 2, 3)]
    assert get(cache, 4) and get(cache, 5)
    cache.trim()
    assert kept(cache, tmp_path) == [1, 2, 3, 4, 5]
    assert use(cache, 1, pytest.fail).samefile(large[0]), "it is there already, and is not fetched twice"
    for path in cache.work.iterdir():
        age(path, 100)
        path.unlink()
    cache.trim()
    assert kept(cache, tmp_path) == [4, 5]


def test_under_a_lowered_limit_that_the_copies_in_use_exceed_all_others_go(cache: BlobCache, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (get if number == 2 else use)(cache, number)
    BlobCache(tmp_path, 100).trim()
    assert kept(cache, tmp_path) == [1, 3]


def test_what_goes_beyond_the_limit_and_is_let_go_of_stays_where_it_fits(cache: BlobCache, tmp_path: Path) -> None:
    use(cache, 1, beyond=True).unlink()
    cache.trim()
    assert kept(cache, tmp_path) == [1]
    for number in (2, 3, 4):
        get(cache, number)
    assert kept(cache, tmp_path) == [2, 3, 4]


def test_what_the_disk_has_no_room_for_is_refused_and_removes_nothing(cache: BlobCache, tmp_path: Path) -> None:
    get(cache, 1)
    with pytest.raises(
        StorageError, match=r"the disk of the cache .* 9,\S+ are needed; .* set HEADRACE_CACHE to a folder"
    ):
        cache.give(tmp_path / "any", "f" * 64, "1", 9 * 10**18, pytest.fail, beyond=True)
    assert kept(cache, tmp_path) == [1]
    assert cache.room_beyond() > 100


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "home" / "cache"))
    store = Store(f"memory://{uuid.uuid4().hex}")
    store.write_bytes("a", b"a")
    told = f"Not a directory: {tmp_path}/home.*; set HEADRACE_CACHE to a folder that this user can write to$"
    with pytest.raises(StorageError, match=told):
        store.fetch("a", hashlib.sha256(b"a").hexdigest())
    with pytest.raises(StorageError, match=told), store.staging():
        pass
    with pytest.raises(FileNotFoundError):
        store.read_bytes("b")


def test_a_file_that_the_disk_of_the_cache_has_no_room_for_is_not_said_to_be_written(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(small_disk))
    store = Store(f"memory://{uuid.uuid4().hex}")
    store.files.write(bytes(2**21), "a")  # type: ignore[union-attr]
    with pytest.raises(StorageError, match=f"cannot read memory:.*/a: No space left .* free at {small_disk}"):
        store.fetch("a")


@pytest.mark.parametrize(
    ("number", "name", "of_cache"),
    [
        (errno.EACCES, "copy", True), (errno.ENOENT, "..", True), (errno.ENOENT, "copy", False),
        (errno.ESTALE, "copy", False), (errno.EMFILE, "copy", False), (errno.EACCES, "../other", False),
    ],
)  # fmt: skip
def test_only_a_cache_that_cannot_be_created_or_written_is_one_to_replace(
    number: int, name: str, of_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    assert is_of_cache(OSError(number, "", os.path.normpath(tmp_path / "cache" / name))) is of_cache
