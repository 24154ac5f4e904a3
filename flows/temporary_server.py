"""A temporary Prefect server for commands without a configured server, loaded while the command itself loads.

Prefect would start such a server on the first client call, after everything else is loaded, and wait about five
seconds. Instead, the command starts `python -m flows.temporary_server SOCKET` first. That process exits immediately if
Prefect's settings contain a server or forbid a temporary one, and otherwise when the command ends for any reason.
"""

import atexit
import fcntl
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import OWN_SERVER
from trainer.common.errors import ConfigError, Preempted
from trainer.common.process import loading, same_code
from trainer.common.stopping import check_stop

if TYPE_CHECKING:
    from prefect.settings import Settings

API_URL = "PREFECT_API_URL"
PASSWORD = "PREFECT_API_AUTH_STRING"
SERVER_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
START_SETTING = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"

SERVER_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    # Blocks are registered when they are saved. Registering them at start, or checking whether they are registered,
    # would load all of prefect-aws.
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "0",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "0",  # sends no telemetry, and logs no error if it cannot
    "PREFECT_SERVER_API_MAX_PARAMETER_SIZE": "0",  # no limit: a job may list many thousands of paths
}
"""The settings that Prefect uses for its own temporary server, and four more."""

PRIVATE = 0o077
"""The umask of servers: their database holds the secrets of blocks, and beside them the key that decrypts them."""

START_LOCK = "headrace-start.lock"
"""The file in PREFECT_HOME that a server locks while it starts."""

START_SECONDS = 180.0
"""The server's time limit to start, unless Prefect's settings have one; Prefect's 20 s is too short on a busy machine.
"""

LOOK_SECONDS = 1.0
"""Interval between checks for a stop request while waiting for the server."""

END_SECONDS = 10.0
"""The server's time limit to end."""


def start_loading() -> "TemporaryServer | None":
    """Start loading a server, unless one is known to be configured; raise `ConfigError` if Prefect cannot be loaded."""
    _require_home()
    if os.environ.get(API_URL):
        return None
    if "prefect" in sys.modules:
        from prefect.settings import get_current_settings

        if not is_wanted(get_current_settings()):
            return None
    return TemporaryServer()


def _require_home() -> None:
    """Raise `ConfigError` for a user without a home folder: Prefect asks for it, even if PREFECT_HOME is set."""
    try:
        Path.home()
    except RuntimeError as error:
        raise ConfigError(
            f"the user with the number {os.getuid()} has no home folder, which Prefect needs: set HOME to a folder "
            "that this user may write"
        ) from error


class TemporaryServer:
    """A server that is being loaded, used if Prefect's settings contain none."""

    def __init__(self) -> None:
        # A server without a password answers every user of this machine, also with the secrets of blocks.
        self._password = f"headrace:{secrets.token_hex(16)}"
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            port = listening.getsockname()[1]
            self._process = subprocess.Popen(
                # -P: the current folder's modules do not come before Python's own.
                [sys.executable, "-P", "-m", "flows.temporary_server", str(listening.fileno())],
                stdin=subprocess.PIPE, pass_fds=[listening.fileno()], process_group=0,
                env={**same_code(), **SERVER_SETTINGS, SERVER_PASSWORD: self._password}, umask=PRIVATE,
            )  # fmt: skip
        self._url = f"http://127.0.0.1:{port}/api"
        os.environ |= past_proxies("127.0.0.1")  # before stages' worker starts: it fits one environment only
        # Registered before Prefect registers its flush of unsent data, so the server ends after that flush.
        atexit.register(self.end)

    def serve(self) -> None:
        """Wait until the server answers, then make this process's Prefect use it.

        Raises `ConfigError` if the server cannot start, and `Preempted` if it takes too long.
        """
        from prefect.context import refresh_global_settings_context
        from prefect.settings import get_current_settings

        settings = get_current_settings()
        if not is_wanted(settings):
            return
        self._wait(seconds_to_start(settings))
        os.environ |= {API_URL: self._url, PASSWORD: self._password, OWN_SERVER: "1"}
        refresh_global_settings_context()
        logging.getLogger("prefect.flow_runs").addFilter(_shows_no_pages)

    def _wait(self, seconds: float) -> None:
        import httpx

        end = time.monotonic() + seconds
        while True:
            check_stop()
            try:
                httpx.get(f"{self._url}/health", timeout=LOOK_SECONDS, trust_env=False).raise_for_status()
                return
            except httpx.TimeoutException:  # the socket is open and queues requests before the server is ready
                if time.monotonic() > end:
                    self._process.kill()
                    raise Preempted(
                        f"the temporary Prefect server did not answer within {seconds:g} s; the machine may be too "
                        f"busy. Run this again later, raise {START_SETTING}, or set {API_URL} to the address of a "
                        "running server"
                    ) from None
            except httpx.HTTPError as error:
                raise ConfigError(
                    f"the temporary Prefect server did not start: {error}; its own output is above. Check its "
                    f"database (in PREFECT_HOME, or as Prefect's settings say), or set {API_URL} to the address of a "
                    "running server"
                ) from None

    def end(self) -> None:
        """End the server, and wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def past_proxies(host: str) -> dict[str, str]:
    """Environment variables with which libraries reach a server on this machine directly, also if a proxy is set."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""  # urllib, too, prefers the first
    direct = given if given.strip() == "*" else ",".join(filter(None, [given, host]))  # urllib reads * only if alone
    return {"no_proxy": direct, "NO_PROXY": direct}


def seconds_to_start(settings: "Settings") -> float:
    """How long to wait for the server: as set in Prefect's settings, else `START_SECONDS`."""
    given = settings.server.ephemeral
    return given.startup_timeout_seconds if "startup_timeout_seconds" in given.model_fields_set else START_SECONDS


def is_wanted(settings: "Settings") -> bool:
    """Whether Prefect would start a temporary server."""
    return settings.api.url is None and settings.server.ephemeral.enabled


def main(arguments: list[str]) -> int:
    """Serve on a socket until standard input ends."""
    serving: list[Any] = []  # the server, once created
    threading.Thread(target=_stop_with_command, args=(serving,), daemon=True).start()
    with loading():
        from prefect.settings import get_current_settings

        settings = get_current_settings()
        if not is_wanted(settings):
            return 0
        import uvicorn
        from prefect.server.api.server import create_app

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                turn.close()

        server = Server(uvicorn.Config(create_app(), log_level="error", lifespan="on"))
    turn = turn_to_start(settings.home)
    serving.append(server)
    server.run(sockets=[socket.socket(fileno=int(arguments[0]))])
    return 0 if server.started else 1


def turn_to_start(home: Path) -> ExitStack:
    """Wait while another server of this PREFECT_HOME starts, then lock others out until `close` or this process's end.

    Prefect migrates the database at start; of two simultaneous migrations, one fails.
    """
    turn = ExitStack()
    with suppress(OSError):  # the folder is not writable, or its file system has no locks
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / START_LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        turn.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return turn


def _stop_with_command(serving: list[Any]) -> None:
    """Wait until the command ends; then stop serving, or exit immediately if the server was not created yet."""
    os.read(sys.stdin.fileno(), 1)
    if not serving:
        os._exit(0)
    serving[0].should_exit = True


def _shows_no_pages(record: logging.LogRecord) -> bool:
    """Filter out "View at" lines: this server has no pages, and ends with the run."""
    return not record.getMessage().startswith("View at ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
