"""The Prefect server of a command that is told of none: Prefect's own, which is loaded while the command loads itself.

Prefect starts such a server when a client first asks for it, when all else is loaded, and waits some five seconds. Here a
process is started at the command's first moment: `python -m flows.temporary_server SOCKET`. It ends at once if Prefect's
settings name a server or forbid a temporary one, and otherwise as soon as the command has ended, however that was.
"""

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn
    from prefect.settings import Settings

API_URL = "PREFECT_API_URL"

SERVER_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    # Blocks are registered when they are saved; doing it beforehand loads all of prefect-aws.
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "0",
}
"""As Prefect sets for its temporary server, and one more."""


def start_loading() -> "TemporaryServer | None":
    """Start loading a server, unless a server is known to be named."""
    if API_URL in os.environ:
        return None
    if "prefect" in sys.modules:
        from prefect.settings import get_current_settings

        if not is_wanted(get_current_settings()):
            return None
    return TemporaryServer()


class TemporaryServer:
    """A server that is being loaded, to be used if Prefect's settings name none."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            port = listening.getsockname()[1]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.temporary_server", str(listening.fileno())],
                stdin=subprocess.PIPE, pass_fds=[listening.fileno()], process_group=0,
            )  # fmt: skip
        self._url = f"http://127.0.0.1:{port}/api"
        atexit.register(self._end)  # before Prefect registers the sending of what it has not sent yet: so it comes after that

    def serve(self) -> None:
        """Have this process's Prefect use it, once it answers. Raises `RuntimeError` if it ends before that."""
        import httpx
        from prefect.context import refresh_global_settings_context
        from prefect.settings import get_current_settings

        settings = get_current_settings()
        if not is_wanted(settings):
            return
        try:
            httpx.get(f"{self._url}/health", timeout=settings.server.ephemeral.startup_timeout_seconds).raise_for_status()
        except httpx.HTTPError as error:
            raise RuntimeError(f"the temporary Prefect server did not start: {error}; its own message stands above") from error
        os.environ[API_URL] = self._url
        refresh_global_settings_context()
        logging.getLogger("prefect.flow_runs").addFilter(_shows_no_pages)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def is_wanted(settings: "Settings") -> bool:
    """Whether Prefect would start a temporary server."""
    return settings.api.url is None and settings.server.ephemeral.enabled


def main(arguments: list[str]) -> int:
    """Serve on a socket until standard input ends."""
    from trainer.common.loading import loading

    with loading():
        from prefect.settings import get_current_settings

        if not is_wanted(get_current_settings()):
            return 0
        os.environ.update(SERVER_SETTINGS)
        import uvicorn
        from prefect.server.api.server import create_app

        app = create_app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    threading.Thread(target=_stop_with, args=(server,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=int(arguments[0]))])
    return 0


def _shows_no_pages(record: logging.LogRecord) -> bool:
    """Leave out where a run can be viewed: this server has no pages, and ends with the run."""
    return not record.getMessage().startswith("View at ")


def _stop_with(server: "uvicorn.Server") -> None:
    sys.stdin.buffer.read()
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
