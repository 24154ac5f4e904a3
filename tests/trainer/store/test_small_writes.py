"""Small files that go to a remote store as they are: leases and records."""

import pytest

from tests.s3 import S3Server
from trainer.common.errors import StorageError
from trainer.store import storage
from trainer.store.remote import RemoteObjects
from trainer.store.storage import SENT_AT_ONCE, Store


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("this was not to be asked for")


def test_what_a_process_has_replaced_it_replaces_again_with_one_request(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.new_store()
    store = Store(url)
    assert store.create("a", b"1")
    assert store.swap("a", b"1", b"2")
    with monkeypatch.context() as patch:
        patch.setattr(RemoteObjects, "_head", refuse)
        patch.setattr(RemoteObjects, "read", refuse)
        assert store.swap("a", b"2", b"3")
    assert store.read_bytes("a") == b"3"


def test_what_another_process_has_replaced_since_is_not_replaced(s3: S3Server) -> None:
    url = s3.new_store()
    store = Store(url)
    store.create("a", b"1")
    assert store.swap("a", b"1", b"2")
    Store(url).write_bytes("a", b"other")
    assert not store.swap("a", b"2", b"3")
    assert store.read_bytes("a") == b"other"
    assert store.swap("a", b"other", b"3")
    Store(url).delete("a")
    assert not store.swap("a", b"3", b"4")
    assert not store.exists("a")


def test_a_page_is_one_to_browsers(s3: S3Server) -> None:
    store = Store(s3.new_store())
    store.write_bytes("runs/a/report.html", b"<p>")
    assert isinstance(store.files, RemoteObjects)
    assert store.files._head("runs/a/report.html")["ContentType"] == "text/html"


def test_small_files_need_no_room_on_this_machine(remote_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "PrivateFolder", full)
    remote_store.write_bytes("a", b"1")
    assert remote_store.swap("a", b"1", b"2")
    assert remote_store.create("b", b"3")
    assert remote_store.read_bytes("a") == b"2"
    with pytest.raises(StorageError, match="No space left"):
        remote_store.write_bytes("c", bytes(SENT_AT_ONCE + 1))
