"""`make up` and `make down` with a test's own home and port, and functions that query the started server and worker."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.client.base import PrefectHttpxSyncClient

from tests import ROOT
from tests.processes import free_port

OWN = {"LISTEN": "localhost", "DB": "sqlite+aiosqlite:///own.db"}
"""Settings of a server that are not the defaults."""


class Local:
    """The commands; `settings` are their environment variables, such as DB."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.home, port = folder / "home", str(free_port())
        self.address = f"http://127.0.0.1:{port}/api"
        self.env = {**os.environ, "PREFECT_HOME": str(self.home), "PORT": port, "DO_NOT_TRACK": "1", **settings}
        self.env.pop("PREFECT_API_URL", None)

    def say(self, command: str, **settings: str) -> str:
        """Run one of the commands, which must succeed; return its output."""
        ended = self.python("-m", "deployments.local", command, **settings)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def python(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter from the project's folder with the same environment."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**self.env, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Prefect command."""
        return self.python("-m", "prefect", "--no-prompt", *arguments, PREFECT_API_URL=self.address)

    def names(self, kind: str) -> list[str]:
        """The names of all objects of a kind on the server."""
        return sorted(each["name"] for each in self.post(f"{kind}/filter", {}))

    def post(self, path: str, body: dict[str, Any] | list[dict[str, Any]]) -> Any:
        """Send a request to the server's API."""
        return self.ask("POST", path, json=body)

    def ask(self, method: str, path: str, **request: Any) -> Any:
        """Send a request, and retry while the server is busy; return the answer, if any."""
        with PrefectHttpxSyncClient(base_url=self.address, timeout=60) as client:
            answer = client.request(method, f"/{path}", **request)
        return answer.json() if answer.content else None

    def schedules(self) -> list[bool]:
        """Whether each schedule is active."""
        return [schedule["active"] for each in self.post("deployments/filter", {}) for schedule in each["schedules"]]

    def worker(self) -> int:
        """The worker's process id."""
        return int((self.home / "worker.pid").read_text())


@contextmanager
def posing(what: str, local: Local, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that simulates a server or a worker which `up` started."""
    local.home.mkdir()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", what]
    with subprocess.Popen(command, env={**local.env, **env}, stdin=subprocess.PIPE) as process:
        (local.home / f"{what}.pid").write_text(str(process.pid))
        yield process
