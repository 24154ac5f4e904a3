"""A Prefect server and a worker on this machine, with everything deployed: `make up`, and `make down` to stop them.

    python deployments/local.py up|down

Both can be repeated: what is there is kept and brought up to date. The server listens on this machine alone; PORT chooses its
port (4200). PREFECT_HOME holds its database, the logs of both, and the worker's process id.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import yaml

HOST, PORT = "127.0.0.1", os.environ.get("PORT", "4200")
API = f"http://{HOST}:{PORT}/api"
HOME = Path(os.environ.get("PREFECT_HOME", Path("~/.prefect").expanduser()))
HERE = Path(__file__).parent
SERVER_SECONDS = 120


def up() -> int:
    """Start what does not run, deploy, and say where it is. Returns the exit status."""
    HOME.mkdir(parents=True, exist_ok=True)
    os.environ["PREFECT_API_URL"] = API
    if not _answers():
        _prefect("server", "start", "--background", "--host", HOST, "--port", PORT)
        if not _wait_for_server():
            print(f"no server answers at {API} after {SERVER_SECONDS} s; `prefect server start` says why", file=sys.stderr)
            return 1
    _prefect("work-pool", "create", "--type", "process", "--overwrite", "local")
    _prefect("deploy", "--all", "--prefect-file", str(HERE / "prefect.yaml"))
    _automate()
    if _worker() is None:
        _start_worker()
    print(f"server and UI   http://{HOST}:{PORT}\nworker          process {_worker()}, log {HOME / 'worker.log'}")
    print(f"\nexport PREFECT_API_URL={API}\nprefect deployment run data-to-model/local\n\n`make down` stops both.")
    return 0


def down() -> int:
    """Stop the worker, whose runs save and stop, and then the server."""
    pid = _worker()
    if pid is not None:
        for each in _family(pid):  # a worker that is told to stop waits for its runs
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGTERM)
        while _alive(pid):
            time.sleep(0.2)
        print("stopped the worker")
    _pid_file().unlink(missing_ok=True)
    if _answers():
        _prefect("server", "stop")
        print("stopped the server")
    return 0


def _automate() -> None:
    """Create the automations, or update those that there are."""
    with httpx.Client(base_url=API, timeout=30) as client:
        for automation in yaml.safe_load((HERE / "automations.yaml").read_text())["automations"]:
            values = {"enabled": True, **automation}
            found = client.post("/automations/filter", json={"automations": {"name": {"any_": [automation["name"]]}}}).json()
            path = f"/automations/{found[0]['id']}" if found else "/automations/"
            client.request("PUT" if found else "POST", path, json=values).raise_for_status()


def _start_worker() -> None:
    """In a session of its own, so that it outlives this command."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "local", "--type", "process"]
    with open(HOME / "worker.log", "ab") as log:
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _pid_file().write_text(str(worker.pid))


def _worker() -> int | None:
    """The process id of the worker, if it runs."""
    with suppress(FileNotFoundError, ValueError):
        pid = int(_pid_file().read_text())
        return pid if _alive(pid) else None
    return None


def _alive(pid: int) -> bool:
    """Whether it is a worker that runs: process ids are used again."""
    with suppress(OSError):
        return b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _family(pid: int) -> list[int]:
    """A process and all below it, the lowest first: trainers save before the flows that started them end."""
    below: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            below += [int(child) for child in (task / "children").read_text().split()]
    return [*(member for child in below for member in _family(child)), pid]


def _pid_file() -> Path:
    return HOME / "worker.pid"


def _answers() -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{API}/health", timeout=2).is_success
    return False


def _wait_for_server() -> bool:
    end = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < end:
        if _answers():
            return True
        time.sleep(0.5)
    return False


def _prefect(*arguments: str) -> None:
    """Run a command of Prefect's; if it fails, say what it said and end."""
    said = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments], capture_output=True, text=True, check=False
    )
    if said.returncode:
        sys.exit(f"prefect {' '.join(arguments)} failed:\n{said.stdout}{said.stderr}")


if __name__ == "__main__":
    commands = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(commands[sys.argv[1]]())
