"""An S3 server that says no: one message with the operation, the bucket and the key, and no secret."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import pytest

from tests.depth import once
from tests.faults import Faults, faulty
from tests.s3 import S3Server
from tests.support import small_job
from trainer.common.errors import CorpusError, StorageError
from trainer.common.progress import silent
from trainer.config.corpora import CorpusConfig
from trainer.data.raw_files import open_bytes, reading
from trainer.data.sources import find_sources
from trainer.kinds.pretraining.preflight import preflight
from trainer.registry.lineage import check_file
from trainer.store import remote
from trainer.store.probes import check_writable
from trainer.store.storage import Store


@pytest.fixture
def environment(s3: S3Server) -> Iterator[pytest.MonkeyPatch]:
    """To change what new connections are made from; those made by the test are forgotten with the changes."""
    forget = fsspec.get_filesystem_class("s3").clear_instance_cache
    with pytest.MonkeyPatch.context() as patch:
        forget()
        yield patch
    forget()


@pytest.fixture
def faults(s3: S3Server, environment: pytest.MonkeyPatch) -> Iterator[Faults]:
    """What the server does to the requests of new connections."""
    with faulty(s3.address, share=0, latency=0) as (address, faults):
        environment.setenv("AWS_ENDPOINT_URL", address)
        yield faults


def test_a_bucket_that_is_missing_is_named(s3: S3Server) -> None:
    store = Store("s3://no-such-bucket/store")
    with pytest.raises(StorageError, match=r"cannot write s3://no-such-bucket/store/\.staging/.*create the bucket"):
        check_writable(store)
    assert store.read_json("runs/one/config.json") is None


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def forget_keys(environment: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        environment.delenv(name)


def provide_keys(environment: pytest.MonkeyPatch, folder: Path, program: str | None) -> None:
    """Let a program provide the credentials; it is missing if it is None."""
    if program is not None:
        (folder / "provider").write_text(f"#!/bin/sh\n{program}\n")
        (folder / "provider").chmod(0o755)
    (folder / "config").write_text(f"[default]\ncredential_process = {folder}/provider\n")
    environment.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))


@pytest.mark.parametrize("name", KEYS)
def test_credentials_that_are_wrong_are_said_to_be_and_not_shown(
    name: str, s3: S3Server, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(name, "wrong-and-secret")
    store = Store(s3.new_store())
    said = r"cannot (write|read|look for) s3://headrace/\w+/a/b: .*check the credentials"
    operations = (lambda: store.write_bytes("a/b", b"x"), lambda: store.read_bytes("a/b"), lambda: store.exists("a/b"))
    for operation in operations:
        with pytest.raises(StorageError, match=said) as raised:
            operation()
        assert "wrong-and-secret" not in str(raised.value)
        assert s3.env["AWS_SECRET_ACCESS_KEY"] not in str(raised.value)


def test_credentials_that_are_missing_are_asked_for_by_the_store_and_for_raw_files(
    s3: S3Server, environment: pytest.MonkeyPatch
) -> None:
    forget_keys(environment)
    with pytest.raises(StorageError, match=r"cannot write s3://.*AWS_ACCESS_KEY_ID"):
        Store(s3.new_store()).write_bytes("a", b"x")
    with pytest.raises(CorpusError, match=r"Unable to locate credentials; .*AWS_ACCESS_KEY_ID.* may list and read"):
        find_sources(CorpusConfig(name="raw", paths=[f"{s3.new_store()}/*.txt"]))


SLOW = "AWS_ACCESS_KEY_ID"
"""Refused only after all of the libraries' attempts."""

SETTINGS = {
    "AWS_ENDPOINT_URL": ("127.0.0.1:9000", r"Invalid endpoint: 127\.0\.0\.1:9000; .*begins with http:// or https://"),
    "AWS_PROFILE": ("nobody", r"profile \(nobody\) could not be found; .*AWS_PROFILE"),
    "AWS_DEFAULT_REGION": ("us east", r"'us east' doesn't match .*; .*AWS_DEFAULT_REGION"),
    "AWS_ACCESS_KEY_ID": ("ends-in-a-line-break\n", "control character"),
    "AWS_SECRET_ACCESS_KEY": ("wrong", "check the credentials"),
}


@pytest.mark.parametrize(
    "name", [*(name for name in SETTINGS if name != SLOW), pytest.param(SLOW, marks=pytest.mark.deep)]
)
def test_settings_of_s3_that_are_wrong_are_said_to_be_for_the_store_and_raw_files(
    name: str, s3: S3Server, environment: pytest.MonkeyPatch
) -> None:
    value, said = SETTINGS[name]
    environment.setenv(name, value)
    with pytest.raises(StorageError, match=rf"cannot write s3://headrace/.*{said}") as of_store:
        check_writable(Store(s3.new_store()))
    corpus = CorpusConfig(name="raw", paths=[f"{s3.new_store()}/*.txt"])
    with pytest.raises(CorpusError, match=rf"s3://headrace/.* cannot be read: .*{said}") as of_raw:
        find_sources(corpus)
    assert not of_store.value.transient and not of_raw.value.transient


OUTDATED = '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "2020-01-01T00:00:00Z"}'
PROVIDERS = {
    "missing": (None, "No such file or directory"),
    "garbage": ("echo Please log in.", "Expecting value"),
    "failing": ("echo The vault is locked. >&2; exit 1", "The vault is locked"),
    "outdated": (f"echo '{OUTDATED}'", "still expired"),
}


@pytest.mark.parametrize("kind", [*PROVIDERS, "no token"])
def test_a_bucket_whose_credentials_cannot_be_provided_does_not_look_empty(
    kind: str, s3: S3Server, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = s3.new_store()
    Store(url).write_bytes("a/b", b"text")
    forget_keys(environment)
    if kind == "no token":
        environment.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        environment.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/any")
        said = "No such file or directory"
    else:
        program, said = PROVIDERS[kind]
        provide_keys(environment, tmp_path, program)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    store = Store(url)
    asked = [
        lambda: store.exists("a/b"), lambda: store.names("a"), lambda: store.read_json("a/b"),
        lambda: list(store.walk()), lambda: store.write_bytes("a/c", b"x"), lambda: store.create("a/c", b"x"),
        lambda: store.delete("a"), lambda: check_file({"path": f"{url}/a/b", "sha256": "0123"}),
        *(lambda path=path: find_sources(CorpusConfig(name="raw", paths=[f"{url}/{path}"])) for path in ("a/b", "*/*")),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(
            (StorageError, CorpusError), match=rf"^[^\n]*: Error when retrieving credentials from [^\n]*{said}"
        ) as raised:
            ask()
        assert "check what provides the credentials" in str(raised.value) and raised.value.transient


def test_credentials_that_are_valid_but_cannot_be_renewed_yet_are_used_in_silence(
    s3: S3Server, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = s3.new_store()
    Store(url).write_bytes("a/b", b"text")
    soon = (datetime.now(UTC) + timedelta(minutes=13)).isoformat()  # renewed from 15 minutes before the end on
    found = {"Version": 1, "AccessKeyId": s3.env["AWS_ACCESS_KEY_ID"], "Expiration": soon}
    found["SecretAccessKey"] = s3.env["AWS_SECRET_ACCESS_KEY"]
    forget_keys(environment)
    provide_keys(environment, tmp_path, f"echo '{json.dumps(found)}'\nmv $0 $0.gone")
    command = [
        sys.executable,
        "-c",
        f"from trainer.store.storage import Store; print(Store({url!r}).read_bytes('a/b'))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("b'text'\n", "")
    assert not (tmp_path / "provider").exists()


def test_whoever_may_not_write_there_is_told_so(s3: S3Server, environment: pytest.MonkeyPatch) -> None:
    url = s3.new_store()
    Store(url).write_bytes("a/b", b"x")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    for name, value in s3.reader.items():
        environment.setenv(name, value)
    store = Store(url)
    assert store.read_bytes("a/b") == b"x"
    for operation in (
        lambda: store.write_bytes("a/b", b"y"),
        lambda: store.create("a/c", b"y"),
        lambda: check_writable(store),
    ):
        with pytest.raises(
            StorageError, match=rf"cannot write {url}/.*that they may read, write, list and delete there"
        ):
            operation()
    assert store.read_bytes("a/b") == b"x"


def test_credentials_that_expire_are_said_to_be(s3: S3Server, faults: Faults) -> None:
    store = Store(s3.new_store())
    store.write_bytes("a/b", b"x")
    faults.always = "expired"
    for operation in (
        lambda: store.write_bytes("a/b", b"y"),
        lambda: store.read_bytes("a/b"),
        lambda: store.names("a"),
    ):
        with pytest.raises(
            StorageError, match=r"cannot (write|read|list) s3://.*/a.* expired.*; check the credentials"
        ):
            operation()


def test_a_deletion_of_which_the_server_refuses_each_object_is_said_to_fail(s3: S3Server, faults: Faults) -> None:
    store = Store(s3.new_store())
    names = [f"{number}.bin" for number in range(3)]
    for name in names:
        store.write_bytes(f"a/{name}", b"x")
    faults.always = "no deletion"
    with pytest.raises(StorageError, match=r"cannot delete s3://.*/a: Access Denied; check the credentials"):
        store.delete("a")
    faults.always = None
    assert store.names("a") == names
    store.delete("a")
    assert not store.names("a")


@pytest.mark.parametrize(("fate", "hint"), [("skewed", "this machine's clock"), ("elsewhere", "AWS_DEFAULT_REGION")])
def test_a_wrong_clock_and_a_wrong_region_are_named(fate: str, hint: str, s3: S3Server, faults: Faults) -> None:
    store = Store(s3.new_store())
    raw = CorpusConfig(name="raw", paths=[store.path("a.txt")])
    faults.always = fate
    for operation in (lambda: check_writable(store), lambda: store.read_bytes("a/b"), lambda: store.names("a")):
        with pytest.raises(StorageError, match=rf"cannot (write|read|list) s3://.*; .*{hint}") as raised:
            operation()
        assert "credentials" not in str(raised.value)
    for operation in (lambda: store.exists("a/b"), lambda: find_sources(raw)):
        with pytest.raises((StorageError, CorpusError), match=hint):  # to HEAD the server gives no code
            operation()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.deep
def test_a_redirect_without_a_region_is_an_error_that_lasts(s3: S3Server, faults: Faults) -> None:
    store = Store(s3.new_store())
    raw = CorpusConfig(name="raw", paths=[f"{store.url}/*.txt"])
    faults.always = "redirected"
    said = r"s3://.*: the server redirects requests, and names no region; .*AWS_DEFAULT_REGION and AWS_ENDPOINT_URL"
    for operation in (lambda: store.names("a"), lambda: store.exists("a/b"), lambda: find_sources(raw)):
        with pytest.raises((StorageError, CorpusError), match=said) as raised:
            operation()
        assert not raised.value.transient
        del raised
        gc.collect()  # connections that botocore's recursion does not close


@pytest.mark.parametrize(
    ("fate", "said"),
    [("ignore conditions", "ignores conditional writes; "), ("no conditions", r"refuses conditional writes \(.*\); ")],
)
def test_a_server_that_would_let_two_processes_write_one_run_is_refused_before_any_work(
    fate: str, said: str, raw: Path, s3: S3Server, faults: Faults
) -> None:
    store = Store(s3.new_store())
    check_writable(store)
    faults.always = fate
    with pytest.raises(StorageError, match=rf"the server of {store.url} {said}.*If-None-Match and If-Match") as raised:
        preflight(small_job(raw, store.url), silent())
    assert not raised.value.transient
    assert list(store.walk()) == []


def test_a_raw_file_in_an_archive_of_the_bucket_is_said_to_be(s3: S3Server, faults: Faults) -> None:
    path = f"{s3.new_store()}/raw.txt"
    fsspec.filesystem("s3").pipe_file(path, b"text")
    (source,) = find_sources(CorpusConfig(name="raw", paths=[path]))
    faults.always, faults.only = "archived", b"GET "
    with (
        pytest.raises(CorpusError, match=r"storage class; restore the object from its archive"),
        reading(source.path),
        open_bytes(source.path) as file,
    ):
        file.read()


def test_an_answer_that_is_shorter_than_requested_is_not_taken_for_a_raw_file(s3: S3Server, faults: Faults) -> None:
    path, text = f"{s3.new_store()}/raw.txt", b"a line of text\n" * 10_000
    fsspec.filesystem("s3").pipe_file(path, text)
    (source,) = find_sources(CorpusConfig(name="raw", paths=[path]))
    with open_bytes(source.path) as file:
        assert file.read() == text
    faults.always = "short"
    with (
        pytest.raises(CorpusError, match=r"150000 bytes from 0 were requested, 75000 arrived") as raised,
        reading(source.path),
        open_bytes(source.path) as file,
    ):
        file.read()
    assert raised.value.transient


@pytest.mark.parametrize("method", ["create", "_replace"])
def test_a_server_must_heed_both_conditions(method: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(s3.new_store())
    monkeypatch.setattr(store.files, method, lambda *_: True)
    with pytest.raises(StorageError, match="ignores conditional writes"):
        check_writable(store)


def test_a_check_that_fails_for_a_while_leaves_nothing(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(s3.new_store())

    def fail(*_: object) -> bool:
        raise ConnectionError("the network is down")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="the network is down") as raised:
        patch.setattr(store.files, "create", fail)
        check_writable(store)
    assert raised.value.transient and list(store.walk()) == []


@pytest.mark.deep
@pytest.mark.parametrize("fate", once("slow down", "internal error", "reset", "half", "silence"))
def test_a_server_that_never_answers_well_is_given_up_after_a_while(
    fate: str, s3: S3Server, environment: pytest.MonkeyPatch, faults: Faults
) -> None:
    options = {"retries": {"mode": "standard", "max_attempts": 2}, "read_timeout": 0.2}
    environment.setitem(remote.S3_OPTIONS, "config_kwargs", options)
    store = Store(s3.new_store())
    faults.always = fate
    with pytest.raises(StorageError, match=r"cannot read s3://headrace/\w+/a/b: "):
        store.read_bytes("a/b")
    assert 2 < faults.counts[fate] <= 3 * remote.ROUNDS**2, "it is tried again, and not for ever"
