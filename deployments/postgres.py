"""A local Postgres server for a Prefect server that many runs use at the same time; it listens on loopback only.

Needs Postgres's programs (Debian: package postgresql). PG_BIN is their folder if it is not the usual one.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PORT = os.environ.get("PGPORT", "5442")
ACCOUNT = "postgres"
"""The account for the programs if root starts them, because they refuse to run as root."""


def start(folder: Path) -> str:
    """Create the database if missing, start it if not running, and return its URL for Prefect."""
    data, password = folder / "data", folder / "password"
    if not (data / "PG_VERSION").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(16))
        _own(folder)
        _own(password)
        _run("initdb", "-D", data, "-U", "prefect", "-E", "UTF8", "--auth", "scram-sha-256", "--pwfile", password)
    if not running(folder):
        options = f"-p {PORT} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        _run("pg_ctl", "-D", data, "-l", folder / "log", "-o", options, "-w", "start")
    return f"postgresql+asyncpg://prefect:{password.read_text()}@127.0.0.1:{_port(data)}/postgres"


def stop(folder: Path) -> bool:
    """Stop the database; return whether it was running."""
    if not running(folder):
        return False
    _run("pg_ctl", "-D", folder / "data", "-m", "fast", "-w", "stop")
    return True


def running(folder: Path) -> bool:
    """Whether the folder's database is running."""
    data = folder / "data"
    return (data / "PG_VERSION").exists() and not _call("pg_ctl", "-D", data, "status").returncode


def _port(data: Path) -> str:
    """The database's port, from its pid file."""
    return (data / "postmaster.pid").read_text().splitlines()[3]


def _run(program: str, *arguments: object) -> None:
    """Run one of Postgres's programs; if it fails, print its output and exit."""
    ended = _call(program, *arguments)
    if ended.returncode:
        sys.exit(f"{program} failed:\n{ended.stdout}")


def _call(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = _program(program)
    root: dict[str, Any] = {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []} if os.geteuid() == 0 else {}
    # To a file, not a pipe: the server that pg_ctl starts would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        command = [path, *map(str, arguments)]
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", check=False, **root
        )
        output.seek(0)
        return subprocess.CompletedProcess(command, status.returncode, output.read())


def _program(name: str) -> str:
    """A program's path; Debian does not put the server's programs on PATH."""
    packaged = map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))
    folders = os.pathsep.join([os.environ.get("PG_BIN", ""), os.environ.get("PATH", ""), *packaged])
    found = shutil.which(name, path=folders)
    if found is None:
        sys.exit(
            f"DB=postgres needs Postgres's {name}, not found in {folders}: install it, or set PG_BIN to its folder"
        )
    return found


def _own(path: Path) -> None:
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        os.chown(path, account.pw_uid, account.pw_gid)
