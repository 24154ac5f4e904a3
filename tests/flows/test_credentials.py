"""Credentials from a Prefect block: they reach the stages, and nothing else."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
from prefect.blocks.system import Secret
from prefect.variables import Variable
from prefect_aws import AwsClientParameters, AwsCredentials, MinIOCredentials, S3Bucket
from pydantic import SecretStr

from flows.command import main
from tasks.credentials import VARIABLE, use_credentials
from tests.processes import start_module
from tests.s3 import S3Server
from tests.support import small_values, write_config
from trainer.common.errors import ConfigError
from trainer.store.storage import Store


def blocks(key: str, secret: str, address: str) -> dict[str, Any]:
    where = AwsClientParameters(endpoint_url=address, verify=True, verify_cert_path=Path(certifi.where()))
    aws = AwsCredentials(
        aws_access_key_id=key,
        aws_secret_access_key=SecretStr(secret),
        region_name="us-east-1",
        aws_client_parameters=where,
    )
    minio = MinIOCredentials(
        minio_root_user=key, minio_root_password=SecretStr(secret), region_name="us-east-1", aws_client_parameters=where
    )
    return {"aws-credentials": aws, "minio-credentials": minio, "s3-bucket": S3Bucket(bucket_name="b", credentials=aws)}


@pytest.mark.parametrize("kind", ["aws-credentials", "minio-credentials", "s3-bucket"])
def test_each_kind_of_block_gives_what_aws_tools_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    blocks("the-key", "the-secret", "http://127.0.0.1:9")[kind].save(name)
    monkeypatch.setattr(
        os, "environ",
        {
            VARIABLE: f"{kind}/{name}", "AWS_SESSION_TOKEN": "of another", "AWS_PROFILE": "another",
            "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:8", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
        },
    )  # fmt: skip
    use_credentials()
    assert os.environ == {
        VARIABLE: f"{kind}/{name}", "AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_CA_BUNDLE": certifi.where(),
    }  # fmt: skip


def test_a_block_without_an_identity_is_not_mixed_with_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    AwsCredentials(region_name="us-east-1").save(name)
    monkeypatch.setattr(
        os,
        "environ",
        {VARIABLE: f"aws-credentials/{name}", "AWS_ACCESS_KEY_ID": "of another", "AWS_PROFILE": "another"},
    )
    use_credentials()
    assert os.environ == {VARIABLE: f"aws-credentials/{name}", "AWS_DEFAULT_REGION": "us-east-1"}


def test_a_block_that_is_missing_or_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "aws-credentials/nobody")
    with pytest.raises(
        ConfigError, match=r"HEADRACE_CREDENTIALS is 'aws-credentials/nobody', but this block does not exist"
    ):
        use_credentials()
    Secret(value=SecretStr("hush")).save("of-another-kind", overwrite=True)  # type: ignore[arg-type]
    monkeypatch.setenv(VARIABLE, "secret/of-another-kind")
    with pytest.raises(ConfigError, match=r"is a Secret; expected AwsCredentials") as caught:
        use_credentials()
    assert "hush" not in str(caught.value)


@pytest.fixture
def server_names(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server's variable specifies a block, but the environment does not."""
    monkeypatch.setenv("PREFECT_API_URL", server["PREFECT_API_URL"])
    monkeypatch.delenv(VARIABLE, raising=False)
    Variable.set(VARIABLE.lower(), "aws-credentials/nobody", overwrite=True)
    yield
    Variable.unset(VARIABLE.lower())


def test_what_looks_at_a_bucket_takes_the_block_that_the_server_names(
    server_names: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["list", "s3://nowhere/store"])
    assert end.value.code == 2
    assert "HEADRACE_CREDENTIALS is 'aws-credentials/nobody', but this block does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "CONFIG"), ("list", "STORE"), ("compare", "STORE", "a", "b"), ("lineage", "STORE", "a"),
        ("gc", "STORE"),
        ("pin", "STORE"), ("leftovers", "STORE"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_what_looks_at_a_bucket_takes_the_block(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "aws-credentials/nobody")
    config = write_config(tmp_path / "job.yaml", small_values(tmp_path, "s3://nowhere/store"))
    with pytest.raises(SystemExit) as end:
        main([{"STORE": "s3://nowhere/store", "CONFIG": str(config)}.get(word, word) for word in words])
    assert end.value.code == 2
    assert "HEADRACE_CREDENTIALS is 'aws-credentials/nobody', but this block does not exist" in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.slow
def test_a_flow_finds_its_store_with_a_block_alone_and_writes_the_secret_nowhere(
    raw: Path, s3: S3Server, server: dict[str, str], tmp_path: Path
) -> None:
    key, secret = s3.env["AWS_ACCESS_KEY_ID"], s3.env["AWS_SECRET_ACCESS_KEY"]
    blocks(key, secret, s3.address)["aws-credentials"].save("nightly", overwrite=True)
    store = Store(s3.new_store())
    config = write_config(tmp_path / "job.yaml", small_values(raw, store.url))
    env = {
        **server,
        **dict.fromkeys(s3.env, ""),
        VARIABLE: "aws-credentials/nightly",
        "HEADRACE_CACHE": str(tmp_path / "cache"),
    }
    ended = start_module(tmp_path / "said", "flows.data_to_model", config, env=env).wait(240)
    assert ended.status == 0, ended
    files = {entry.key: store.read_bytes(entry.key) for entry in store.walk()}
    assert any(name.endswith("report.html") for name in files)
    assert not [name for name, content in files.items() if secret.encode() in content or key.encode() in content]
    assert secret not in ended.stdout + ended.stderr
    assert key not in ended.stdout + ended.stderr
    listed = start_module(tmp_path / "listed", "flows.command", "list", store.url, env=env).wait(240)
    assert listed.status == 0 and "finished" in listed.stdout, listed
