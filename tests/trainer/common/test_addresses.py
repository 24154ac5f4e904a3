"""Addresses with credentials are told from others, and shown without them."""

from pathlib import Path

import pytest

from tests.depth import once
from tests.processes import start_module
from tests.support import small_values, write_config
from trainer.common.addresses import check_address, redacted
from trainer.common.errors import Preempted
from trainer.config.evaluation import EvaluationConfig
from trainer.config.models import ModelConfig

STORE = "s3://AKIA:h0pe@bucket/prefix"

SECRETS = [
    "s3://AKIA:h0pe/less+key@bucket/prefix",
    "https://reader:h0pe@host/file.jsonl",
    "https://h0pe@host/file.jsonl",
    "simplecache::s3://AKIA:h0pe@bucket/prefix",
    "https://b.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Credential=AKh0pe&X-Amz-Signature=h0pe&x=1",
    "https://storage.googleapis.com/b/a?X-Goog-Signature=h0pe",
    "https://account.blob.core.windows.net/c/a?sv=2024&sig=h0pe",
    "https://host/a?token=h0pe-h0pe-h0pe-h0pe#there",
    "https://host/a?auth=h0pe-h0pe-h0pe-h0pe",
    "s3://AKIA:h0pe@bucket/a b",
    "HTTPS://h0pe@host/a",
    "https://user:h0pe@h0pe@host/a",
    "https://www.dropbox.com/a?rlkey=h0pe",
    "https://host/a?authkey=h0pe",
    "https://host/a?x%2DAmz%2DSignature=h0pe",
    "zip://a.csv::s3://AKIA:h0pe@bucket/a.zip",
    "https://host/a?api_key=h0pe",
    "https://host/a#access_token=h0pe",
    "https://host/a?X-Amz-Security-Token=h0pe",
    "https://host/a?pass=h0pe",
    "https://host/a?jwt=h0pe",
    "https://host/a?code=h0pe-h0pe-h0pe-h0pe",
    "https://host/a;jsessionid=h0pe",
    "https://host/a?AWSAccessKeyId=AKh0pe&Signature=h0pe&Expires=1",
]

PLAIN = [
    "s3://bucket/prefix", "s3://bucket/part-?.jsonl", "http://host:8080/a@b/c", "abfs://container@account.dfs.core.windows.net/a",
    "hf://datasets/owner/name@main/a.jsonl", "sftp://user@host/a", "https://host/a?version=3&page=2", "/a/b:c@d", "a@b",
    "",
    "https://host:443?x=1", "memory://a/b",
    "github://org:repo@main/x", "zip://a.csv::abfs://c@account/x", "http://[::1]:9000/a@b", "file://C:/x@y",
    "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/my/a@b", "ftp://anonymous:anonymous@h/x",
    "https://host/a?key=validation", "https://host/a?auth=none", "https://host/a?page_token=2",
    "https://host/a?pageToken=CAUQAA12345678901234", "https://host/a?next_token=CAUQAA12345678901234",
    "git+https://git@github.com/a/b", "https://host/a?code=python", "https://host/page#section=2",
]  # fmt: skip


@pytest.mark.parametrize("address", SECRETS)
def test_an_address_with_credentials_is_refused_and_shown_without_them(address: str) -> None:
    with pytest.raises(ValueError, match="holds credentials, which would be recorded with the results") as refused:
        check_address(address)
    assert "h0pe" not in str(refused.value)
    assert redacted(f"it says '{address}' and {address}").count("***") >= 2
    assert "h0pe" not in redacted(f'({address}), "{address}"')


@pytest.mark.parametrize("address", PLAIN)
def test_other_addresses_are_taken_as_they_are(address: str) -> None:
    check_address(address)
    assert redacted(address) == address


def test_a_text_that_is_no_address_is_taken() -> None:
    check_address("Connect to postgres://user:password@localhost like this:")


def test_texts_of_a_job_may_hold_any_address() -> None:
    job = EvaluationConfig(prompts=["https://user:password@host"])
    assert job.prompts == ["https://user:password@host"]


def test_the_keys_of_a_mapping_are_no_place_for_credentials_either() -> None:
    with pytest.raises(ValueError, match="holds credentials"):
        ModelConfig(config={"https://user:h0pe@host": 1})


def test_a_stop_tells_no_credentials() -> None:
    assert str(Preempted(f"{STORE} is away")) == "s3://***@bucket/prefix is away"


def test_a_long_word_is_read_once() -> None:
    text = f"{'ACGT' * 500_000} s3://AKIA:h0pe@bucket"  # takes an hour if it is read again from each letter
    assert redacted(text).endswith("ACGT s3://***@bucket")
    check_address(text)


@pytest.mark.parametrize(
    ("module", "words"),
    once(
        ("trainer", ["{config}", f"store={STORE}"]),
        ("trainer", ["{config}", 'data.corpora.0.paths=["https://host/a.txt?X-Amz-Signature=h0pe"]']),
        ("flows.command", ["run", "{config}", f"store={STORE}", "--dry-run"]),
        ("flows.command", ["run", "{config}", "--store", STORE]),
        ("flows.command", ["gc", STORE]),
        ("flows.command", ["lineage", STORE, "run"]),
    ),
)
def test_credentials_are_said_and_written_nowhere(module: str, words: list[str], raw: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, tmp_path / "store"))
    environment = {"PREFECT_HOME": str(tmp_path / "prefect"), "HEADRACE_CACHE": str(tmp_path / "cache")}
    given = [word.format(config=config) for word in words]
    ended = start_module(tmp_path / "said", module, *given, env=environment).wait()
    says = "without dashes: store=s3://***@bucket/prefix" if "--store" in words else "holds credentials"
    assert ended.status == 2 and says in ended.stderr, ended
    assert "h0pe" not in ended.stdout + ended.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"h0pe" in path.read_bytes()]
