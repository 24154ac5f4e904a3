"""The cache of remote files: it stays within its size, and what is in use stays."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.common.errors import ConfigError, StorageError, WrongContent
from trainer.store.blob_cache import BlobCache


def content(number: int) -> bytes:
    return bytes([number]) * 100


def get(cache: BlobCache, number: int, download: Callable[[Path], object] | None = None, check: bool = False) -> Path:
    data = content(number)
    sha256, download = hashlib.sha256(data).hexdigest(), download or (lambda path: path.write_bytes(data))
    return cache.get(sha256, "1", len(data), download, check)


def kept(cache: BlobCache, folder: Path) -> list[int]:
    return sorted(path.read_bytes()[0] for path in folder.iterdir() if path.stat().st_size == 100)


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
    (tmp_path / "work").mkdir()
    for number in (1, 2, 3):
        path = get(cache, number)
        age(path, 10 - number)
        if number != 2:
            os.link(path, tmp_path / "work" / str(number))
    get(cache, 4)
    assert kept(cache, tmp_path) == [1, 3, 4]


def test_no_room_is_an_error_that_says_what_to_do(cache: BlobCache, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for number in (1, 2, 3):
        os.link(get(cache, number), tmp_path / "work" / str(number))
    with pytest.raises(StorageError, match=r"no room for 100 bytes .* 300 of its 300 are in use; raise HEADRACE_CACHE_BYTES"):
        get(cache, 4)
    (tmp_path / "work" / "2").unlink()
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
    (tmp_path / "work").mkdir()
    for number in (1, 2, 3):
        os.link(get(cache, number), tmp_path / "work" / str(number))
    (tmp_path / "work" / "1").write_bytes(content(9))
    assert get(cache, 1).read_bytes() == content(1)
    assert (tmp_path / "work" / "1").read_bytes() == content(9), "whoever reads it goes on"


def test_a_copy_that_is_looked_at_and_right_is_not_downloaded_again(cache: BlobCache) -> None:
    get(cache, 1)
    assert get(cache, 1, pytest.fail, check=True).read_bytes() == content(1)


def test_wrong_content_is_refused_and_not_kept(cache: BlobCache, tmp_path: Path) -> None:
    with pytest.raises(WrongContent):
        get(cache, 1, lambda path: path.write_bytes(content(2)))
    assert kept(cache, tmp_path) == []


def test_the_size_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "50GB")
    with pytest.raises(ConfigError, match="must be a number of bytes"):
        BlobCache.of_this_machine()


def beyond(cache: BlobCache, number: int) -> Path:
    data = content(number)
    return cache.get(hashlib.sha256(data).hexdigest(), "1", len(data), lambda path: path.write_bytes(data), beyond=True)


def test_what_may_go_beyond_the_limit_does_not_count_while_it_is_in_use(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 200)
    (tmp_path / "work").mkdir()
    large = [beyond(cache, number) for number in (1, 2, 3)]
    for path in large:
        os.link(path, tmp_path / "work" / path.name)
    assert get(cache, 4) and get(cache, 5)
    cache.trim()
    assert kept(cache, tmp_path) == [1, 2, 3, 4, 5]
    assert get(cache, 1) == beyond(cache, 1), "it is there already, and is not fetched twice"
    for path in large:
        (tmp_path / "work" / path.name).unlink()
        age(path, 100)
    cache.trim()
    assert kept(cache, tmp_path) == [4, 5]


def test_what_goes_beyond_the_limit_and_is_let_go_of_stays_where_it_fits(cache: BlobCache, tmp_path: Path) -> None:
    beyond(cache, 1)
    cache.trim()
    assert kept(cache, tmp_path) == [1]
    for number in (2, 3, 4):
        get(cache, number)
    assert kept(cache, tmp_path) == [2, 3, 4]


def test_what_the_disk_has_no_room_for_is_refused_and_removes_nothing(cache: BlobCache, tmp_path: Path) -> None:
    get(cache, 1)
    with pytest.raises(
        StorageError, match=r"no room for 9,\S+ bytes on the disk of the cache .* set HEADRACE_CACHE to a folder"
    ):
        cache.get("f" * 64, "1", 9 * 10**18, pytest.fail, beyond=True)
    assert kept(cache, tmp_path) == [1]
    assert cache.room_beyond() > 100
