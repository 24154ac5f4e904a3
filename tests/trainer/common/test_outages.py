"""What passes by itself, and what does not."""

import errno
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError, SSLError
from yarl import URL

from tests.processes import free_port
from tests.s3 import S3Server, fresh_clients
from trainer.common import transient
from trainer.common.errors import ConfigError, CorpusError, Preempted, StorageError
from trainer.common.stopping import check_stop, signal_handlers
from trainer.common.transient import exit_status, is_transient, retry_transient
from trainer.config.corpora import CorpusConfig
from trainer.data.sources import find_sources
from trainer.store.storage import Store


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.01)


def failing(times: int, error: Exception) -> Callable[[], str]:
    attempts = iter(range(times))

    def work() -> str:
        if next(attempts, None) is not None:
            raise error
        return "done"

    return work


def test_what_passes_is_tried_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(transient, "wait", paused.append)
    said: list[str] = []
    assert retry_transient(failing(9, StorageError("away", transient=True)), said.append) == "done"
    assert paused == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert said[0] == "away (retrying in 1.0 s, for at most 6 h 00 min)"


@pytest.mark.parametrize(
    "error",
    [
        StorageError("no"),
        OSError(errno.EACCES, "no"),
        OSError(errno.EIO, "no"),
        FileNotFoundError(errno.ENOENT, "no"),
        ValueError(),
    ],
)
def test_what_does_not_pass_is_raised_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        retry_transient(failing(1, error))


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_an_answer_that_breaks_off_passes_with_each_library_of_the_hub(library: str) -> None:
    assert is_transient(pytest.importorskip(library).RemoteProtocolError("peer closed connection"))


def test_it_is_given_up_when_patience_ends(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transient.PATIENCE, "0.5")
    begun = time.monotonic()
    with pytest.raises(StorageError) as failure:
        retry_transient(failing(10**9, StorageError("away", transient=True)))
    assert 0.5 <= time.monotonic() - begun < 5
    assert exit_status(failure.value) == 75


def test_each_outage_has_the_whole_patience(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transient.PATIENCE, "0.3")
    monkeypatch.setattr(transient, "ANOTHER", 0.2)
    lengths = iter([0.25, 0.01, 0.25, 0.01, 0.25, 0.01])

    def work() -> str:
        if (length := next(lengths, None)) is not None:
            time.sleep(length)
            raise StorageError("away", transient=True)
        return "done"

    assert retry_transient(work) == "done"


def test_what_was_waited_for_within_is_not_waited_for_again(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transient.PATIENCE, "0.3")
    monkeypatch.setattr(transient, "ANOTHER", 0.2)
    begun = time.monotonic()
    with pytest.raises(StorageError):
        retry_transient(lambda: retry_transient(failing(10**9, StorageError("away", transient=True))))
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("said", ["soon", "-1", "nan"])
def test_a_patience_that_is_no_time_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transient.PATIENCE, said)
    with pytest.raises(ConfigError, match=f"HEADRACE_PATIENCE is '{said}', expected a number of seconds"):
        retry_transient(lambda: None)


@pytest.mark.parametrize("times", [1, 10**9])
def test_who_waits_and_is_asked_to_stop_tries_once_more(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 30.0)
    begun, done = time.monotonic(), []
    with pytest.raises(Preempted if times == 1 else StorageError), signal_handlers():
        threading.Timer(0.5, os.kill, [os.getpid(), 15]).start()
        done.append(retry_transient(failing(times, StorageError("away", transient=True))))
        check_stop()
    assert done == ["done"] * (times == 1)
    assert time.monotonic() - begun < 5


def test_attempts_that_fail_after_long_work_are_not_repeated_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(transient, "ANOTHER", 0.02)
    attempts = 0

    def work() -> None:
        nonlocal attempts
        attempts += 1
        time.sleep(0.05)
        raise StorageError("full", transient=True)

    with pytest.raises(StorageError) as failure:
        retry_transient(work)
    assert attempts == transient.LONG_ATTEMPTS and failure.value.waited_for


def answer(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")  # type: ignore[typeddict-item]


def http(status: int) -> aiohttp.ClientResponseError:
    url = URL("http://localhost/file")
    return aiohttp.ClientResponseError(aiohttp.RequestInfo(url, "GET", cast(Any, {}), url), (), status=status)


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (answer(503, "SlowDown"), True), (answer(500, "InternalError"), True), (answer(429, "TooManyRequests"), True),
        (answer(400, "IncompleteBody"), True), (answer(501, "NotImplemented"), False),
        (answer(403, "AccessDenied"), False),
        (http(502), True), (http(429), True), (http(401), False), (http(403), False), (http(410), False),
        (aiohttp.ClientPayloadError(), True), (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.InvalidURL("x:y"), False),
        (ReadTimeoutError(endpoint_url="x"), True), (SSLError(endpoint_url="x", error="certificate"), False),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), True), (socket.gaierror(socket.EAI_NONAME, "unknown"), False),
        (ConnectionResetError(), True), (TimeoutError(), True), (BrokenPipeError(errno.EPIPE, "pipe"), False),
        (OSError(errno.ESTALE, "stale"), True), (OSError(errno.EROFS, "read-only"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)  # fmt: skip
def test_what_libraries_say_is_told_apart(error: Exception, passing: bool) -> None:
    assert is_transient(error) is passing


def test_one_of_our_errors_says_itself_whether_it_passes() -> None:
    try:
        raise StorageError("no such bucket, it seems") from ConnectionResetError()
    except StorageError as error:
        assert not is_transient(error)


def test_what_passes_is_told_from_what_it_was_raised_from_and_crosses_processes() -> None:
    try:
        raise RuntimeError("a library's") from OSError(errno.ECONNRESET, "reset")
    except RuntimeError as error:
        assert is_transient(error)
    assert is_transient(pickle.loads(pickle.dumps(StorageError("away", transient=True))))
    assert not is_transient(pickle.loads(pickle.dumps(StorageError("wrong"))))


def test_a_full_disk_passes_and_a_folder_that_may_not_be_written_does_not(small_disk: Path, tmp_path: Path) -> None:
    store = Store(str(small_disk / "store"))
    store.write_bytes("runs/a", b"a" * 900_000)
    with pytest.raises(StorageError, match="No space left") as full:
        store.write_bytes("runs/b", b"b" * 900_000)
    assert full.value.transient
    assert [key.name for key in (small_disk / "store/runs").iterdir()] == ["a"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as wrong:
        Store(str(tmp_path / "file")).write_bytes("runs/a", b"a")
    assert not wrong.value.transient


@pytest.mark.deep
def test_an_s3_server_that_cannot_be_reached_passes_and_one_that_refuses_does_not(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(s3.new_store())
    store.write_bytes("runs/a", b"a")
    with pytest.raises(StorageError) as missing:
        Store("s3://no-such-bucket/store").write_bytes("runs/a", b"a")
    assert not missing.value.transient
    with monkeypatch.context() as patch, pytest.raises(StorageError) as refused, fresh_clients():
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        Store(store.url).read_bytes("runs/a")
    assert not refused.value.transient
    with monkeypatch.context() as patch, pytest.raises(StorageError) as away, fresh_clients():
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        Store(store.url).read_bytes("runs/a")
    assert away.value.transient


@pytest.mark.deep
def test_raw_files_on_a_server_that_is_away_are_no_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    corpus = CorpusConfig(name="far", paths=["s3://bucket/*.txt"], format="text")
    with pytest.raises(CorpusError, match="cannot be read") as failure, fresh_clients():
        find_sources(corpus)
    assert failure.value.transient


@pytest.mark.parametrize(("number", "passing"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)])
def test_a_host_that_no_name_server_knows_is_not_waited_for_and_a_name_server_that_is_away_is(
    number: int, passing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unresolved(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(number, "no address")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    for path in ("http://misspelt.invalid/a.txt", "http://misspelt.invalid/*.txt"):
        with pytest.raises(CorpusError, match=r"misspelt\.invalid/.*\.txt cannot be read: no address") as failure:
            find_sources(CorpusConfig(name="far", paths=[path], format="text"))
        assert failure.value.transient is passing
