"""What only looks at a store says so if there is none."""

import re
from pathlib import Path

import pytest

from tests.depth import once
from tests.headrace import headrace
from tests.processes import free_port
from tests.s3 import S3Server, fresh_clients
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED
from trainer.store.storage import Store


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("gc", []), ("gc", ["--remove"]), ("pin", ["x"]), ("leftovers", []), ("list", []), ("compare", ["a", "b"]),
    ],
)  # fmt: skip
def test_a_store_that_is_not_there_is_told_and_not_made(
    command: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headrace(command, str(tmp_path / "none"), *options) == EXIT_BAD_INPUT
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"\nStorageError: there is no store at {tmp_path / 'none'}; check the path\n")
    assert not (tmp_path / "none").exists()


def test_an_empty_bucket_is_no_store(remote_store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert headrace("gc", remote_store.url) == EXIT_BAD_INPUT
    assert f"there is no store at {remote_store.url}; check the path" in capsys.readouterr().err
    remote_store.write_bytes("shards/x/part", b"x")
    assert headrace("gc", remote_store.url) == 0


@pytest.mark.deep
@pytest.mark.parametrize(
    ("command", "options"),
    once(("gc", []), ("leftovers", []), ("list", []), ("compare", ["a", "b"]), ("lineage", ["a"])),
)  # fmt: skip
def test_a_server_that_is_away_is_no_bad_input(
    command: str,
    options: list[str],
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch, fresh_clients():
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        assert headrace(command, s3.new_store(), *options) == EXIT_PREEMPTED
    assert re.match("\nStorageError: cannot .*Could not connect", capsys.readouterr().err)
