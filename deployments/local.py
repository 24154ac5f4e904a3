"""Start or stop a Prefect server and a worker on this machine, with all flows deployed.

    python -m deployments.local up|down    (or `make up`, `headrace up`; `make down`, `headrace down`)

Both can be repeated; `up` updates what exists, and keeps what people changed on the server (deployments/registration.py
lists it). PREFECT_HOME (default: .prefect in the current folder) holds the database, the logs, and the process ids;
each has its own server, on its own port. The deployments' default jobs read data/raw and write data/store, both in the
current folder; if data/raw does not exist, sample corpora are written to it. Environment variables are the settings:

    LISTEN, PORT the server's address: 127.0.0.1, only this machine, and 4200. Other addresses require a password:
                 PREFECT_SERVER_API_AUTH_STRING=user:password
    DB           sqlite; postgres: start a database server; or your server's URL, as postgresql+asyncpg://...
    SCHEDULES    on: start the nightly and weekly runs, also if their schedules were deleted; off: do not; unset: keep
                 the present state, initially off
    NOTIFY       the Webhook block to call when a run fails or a gate is not met
    CREDENTIALS  the prefect-aws block with the store's credentials, as KIND/NAME
    PREFECT_SERVER_CORS_ALLOWED_ORIGINS    the sites whose pages may use the server: its own address

A running server keeps LISTEN, PORT, DB and the password that it was started with.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from deployments import address, postgres
from deployments.address import DEFAULTS, PASSWORD, Settings, answers, api, bad_setting, client, exports, is_taken
from deployments.registration import register
from flows.temporary_server import PRIVATE, past_proxies, turn_to_start
from samples import corpora
from trainer.common.errors import EXIT_PREEMPTED
from trainer.common.stopping import SIGNALS

CORS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
HOME = Path(os.environ.get("PREFECT_HOME") or ".prefect").expanduser().absolute()
DATABASE = HOME / "postgres"
LAST = HOME / "database"
"""Holds the last server's DB, without an address, which may hold a password."""
ADDRESS = "address"
"""Stands for an address in that file."""
OWN_FOLDER = str(Path(sys.executable).parent)
"""Where a worker must find `python3` first, by which it starts flow runs."""
INHERITED = ("AWS_", "CUDA_", "HEADRACE_", "HF_", "MLFLOW_", "OMP_", "RAY_", "TRACKIO_", "WANDB_")
"""How the names of variables begin that jobs read."""
SERVER_SECONDS = 120
SAMPLES = Path("data/raw")
UNLESS_SET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_WORKER_PREFETCH_SECONDS": "0",
}
"""Variables that turn off Prefect's telemetry, and make the worker look every two seconds for runs that are due: with
Prefect's ten, a run starts up to ten seconds late, and the process of a scheduled run waits up to ten seconds.
"""


def up() -> int:
    """Start the server and the worker if not running, deploy, and print their addresses; return the exit status."""
    objection = _objection()
    if objection is None:
        HOME.mkdir(parents=True, exist_ok=True)
        with turn_to_start(HOME):  # two at once would start two workers, of which `down` knows one
            objection = _objection()
            if objection is None:
                return _up(_settings(_started()))
    print(objection, file=sys.stderr)
    return 2


def _up(settings: Settings) -> int:
    url = api(settings)
    os.environ |= {"PREFECT_HOME": str(HOME), "PREFECT_API_URL": url, "PWD": os.getcwd()}  # prefect.yaml names PWD
    os.environ |= past_proxies(httpx.URL(url).host)
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)
    os.environ["PATH"] = own_path()
    if settings[PASSWORD]:
        os.environ["PREFECT_API_AUTH_STRING"] = settings[PASSWORD]
    if not answers(settings):
        if _running("server") is None:
            _start_server(settings)
        if not _wait_for_server(settings):
            did = (
                f"does not answer after {SERVER_SECONDS} s (`headrace down` stops it)"
                if _running("server")
                else "ended"
            )
            print(f"the server at {url} {did}; see {HOME / 'server.log'}", file=sys.stderr)
            return 1
    _write_samples()
    with client(settings) as asked:
        try:
            register(
                asked, os.environ.get("NOTIFY"), os.environ.get("CREDENTIALS"), address.SCHEDULED[address.SCHEDULES]
            )
        except httpx.HTTPStatusError as error:
            print(f"the server at {url} refuses what `headrace up` creates or updates: {error}", file=sys.stderr)
            return 1
        except httpx.TransportError as error:
            print(
                f"the server at {url} stopped answering while `headrace up` deployed ({error}); see "
                f"{HOME / 'server.log'}, and repeat `headrace up`",
                file=sys.stderr,
            )
            return 1
    worker = _running("worker")
    if worker is None:
        _start("worker", "--pool", "local", "--type", "process")
    elif kept := _kept_by(worker):
        print(
            f"the running worker keeps the {', '.join(kept)} that it was started with; `headrace down` and then "
            "`headrace up` start it with those of this shell\n"
        )
    print(f"server and UI   {url.removesuffix('/api')}\nlogs            {HOME / 'server.log'}, {HOME / 'worker.log'}")
    print(f"\n{exports(settings)}\nprefect deployment run data-to-model/pretrain")
    print("\n`headrace down` (or `make down`) stops both.")
    return 0


def down() -> int:
    """Stop the worker, whose runs save a checkpoint first, then the server; return the exit status."""
    if (objection := _anothers_process()) is not None:
        print(objection, file=sys.stderr)
        return 2
    # While the worker waits for its last runs, it would start others, such as those rescheduled by the watchdog.
    # Another folder's server may answer at the port: only the server started here has this worker's pool.
    settings = _started()
    if settings and _running("worker") is not None and answers(settings):
        with suppress(httpx.HTTPError), client(settings) as asked:  # the server is stopped also if it cannot do this
            asked.patch("/work_pools/local", json={"is_paused": True})
    stopped = []
    for name in ("worker", "server"):
        process = _running(name)
        if process is not None:
            _stop(process)
            stopped.append(name)
            print(f"stopped the {name}")
        _pid_file(name).unlink(missing_ok=True)
    if postgres.stop(DATABASE):
        stopped.append("database")
        print("stopped the database")
    if not stopped:
        print(f"nothing was running that was started with PREFECT_HOME={HOME}")
    return 0


def _objection() -> str | None:
    """Why `up` must not go on, and what to do; None if it may."""
    started = _started()
    settings = _settings(started)
    return (
        _anothers_process() or bad_setting(settings) or _unwritable()
        or _other_server(started, settings) or _other_worker(settings)
    )  # fmt: skip


def _anothers_process() -> str | None:
    """Why this user cannot stop or update what runs; None if nothing of another user does."""
    for name in ("worker", "server"):
        with suppress(psutil.Error):
            process = _running(name)
            if process is not None and os.geteuid() not in (0, process.uids().real):
                return (
                    f"the {name} of PREFECT_HOME={HOME} (process {process.pid}) was started by the user "
                    f"{process.username()}, who must also update or stop it; for a server of your own, set "
                    "PREFECT_HOME to another folder, and PORT"
                )
    return None


def _unwritable() -> str | None:
    if not _is_writable(HOME):
        return f"PREFECT_HOME={HOME} cannot be written: set it to a folder that this user may write"
    if _lacks_samples() and not _is_writable(SAMPLES.absolute()):
        return (
            f"{SAMPLES.absolute()}, for the sample corpora, cannot be written: use another current folder, in which "
            "this user may write"
        )
    return None


def _other_server(started: Settings, settings: Settings) -> str | None:
    """Why the server cannot be started or used with these settings; None if it can."""
    if different := _differences(started, settings):
        return (
            f"the running server was started with {' and '.join(different)}: stop it first with `headrace down`, or "
            "unset these variables"
        )
    last = _last_database()
    if not started and not os.environ.get("DB") and last not in ("", "sqlite"):
        again = "DB=postgres" if last == "postgres" else "DB to its address"
        return (
            "the last server here had another database than sqlite, with its schedules, blocks and runs: set "
            f"{again} again, or DB=sqlite to use the other one"
        )
    if _running("server") is None and is_taken(settings):
        return (
            f"port {settings['PORT']} is taken by a server or program that was not started with PREFECT_HOME={HOME}: "
            "set PORT to a free port, or PREFECT_HOME to the folder of the running server"
        )
    return None


def _other_worker(settings: Settings) -> str | None:
    """Why the running worker would not run what is deployed; None if it would, or there is none."""
    with suppress(psutil.Error):
        worker = _running("worker")
        if worker is None:
            return None
        theirs, stop = worker.environ(), "stop it first with `headrace down`"
        if theirs.get("PATH", "").split(os.pathsep)[0] != OWN_FOLDER:
            return (
                f"the running worker was started by another version or environment, and would not find this one: {stop}"
            )
        # Its server was killed, and this one has another address or password.
        if (url := theirs.get("PREFECT_API_URL")) != api(settings):
            return f"the running worker asks the server at {url} for runs, not {api(settings)}: {stop}"
        if settings[PASSWORD] and theirs.get("PREFECT_API_AUTH_STRING") != settings[PASSWORD]:
            return f"the running worker was started with another {PASSWORD}: {stop}"
    return None


def _is_writable(folder: Path) -> bool:
    """Whether this user may write in a folder, or create it."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def own_path() -> str:
    """PATH with this interpreter's folder first."""
    return os.pathsep.join([OWN_FOLDER, os.environ.get("PATH", os.defpath)])


def _write_samples() -> None:
    """Write the sample corpora if their folder does not exist; an existing folder may hold the user's files."""
    if _lacks_samples():
        corpora.main([str(SAMPLES)])
    elif not (SAMPLES / "planted" / "evaluation.txt").exists():  # it is written last
        print(
            f"{SAMPLES} exists without the sample corpora and is left unchanged; the deployments' default jobs need "
            f"them: `python -m samples.corpora {SAMPLES}` writes them, overwriting files of the same names"
        )


def _lacks_samples() -> bool:
    return not (SAMPLES.exists() or SAMPLES.is_symlink())


def _settings(started: Settings) -> Settings:
    """The settings of DEFAULTS: from the environment, else from the running server, else the defaults."""
    return {**DEFAULTS, **started, **_given(os.environ)}


def _differences(started: Settings, settings: Settings) -> list[str]:
    """The running server's settings that differ from those of this command; secrets are not shown."""
    return [
        f"{name}={started[name]}, not {value}" if name in ("LISTEN", "PORT") else
        f"{'another' if started[name] else 'no'} {name}"
        for name, value in settings.items()
        if started and started[name] != value
    ]  # fmt: skip


def _kept_by(worker: psutil.Process) -> list[str]:
    """Names of variables that flow runs inherit from the worker and that differ from those of this command."""
    with suppress(psutil.Error):
        theirs, ours = worker.environ(), os.environ
        return sorted(
            name
            for name in theirs.keys() | ours.keys()
            if name.startswith(INHERITED) and theirs.get(name) != ours.get(name)
        )
    return []


def _started() -> Settings:
    """The running server's settings, from its process's environment; empty if none runs."""
    server = _running("server")
    with suppress(psutil.Error):
        return {**DEFAULTS, **_given(server.environ())} if server is not None else {}
    return {}


def _last_database() -> str:
    with suppress(FileNotFoundError):
        return LAST.read_text(encoding="utf-8")
    return ""


def _given(environment: Mapping[str, str]) -> Settings:
    return {name: environment[name] for name in DEFAULTS if environment.get(name)}


def _start_server(settings: Settings) -> None:
    variables = {
        # Relative, so that the UI works under whatever address the browser uses.
        "PREFECT_SERVER_UI_API_URL": os.environ.get("PREFECT_SERVER_UI_API_URL", "/api"),
        # Else the pages of any site that a browser shows may send requests to the server and read its answers.
        CORS: os.environ.get(CORS, api(settings).removesuffix("/api")),
        # On disk, so that a process still holds its turn (tasks/turns.py) after the server restarts.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    database = settings["DB"]
    if database != "sqlite":
        url = postgres.start(DATABASE) if database == "postgres" else database
        variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = url
    LAST.write_text(database if database in ("sqlite", "postgres") else ADDRESS, encoding="utf-8")
    _start("server", "--host", settings["LISTEN"], "--port", settings["PORT"], **variables)


def _start(name: str, *arguments: str, **variables: str) -> None:
    """Start a server or a worker in a new session, so that it outlives this command."""
    command = [sys.executable, "-P", "-m", "prefect", name, "start", *arguments]  # -P: as in flows/commands/services.py
    # Prefect stops a worker with SIGINT, which the worker would inherit as ignored from a script's background job.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(HOME / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=PRIVATE if name == "server" else -1,
            env={**os.environ, **variables},
        )
    try:
        _pid_file(name).write_text(str(process.pid))
    except OSError:  # `down` would not know it
        process.kill()
        process.wait()
        raise


def _running(name: str) -> psutil.Process | None:
    """The server or worker started here, if it runs; checks the command, because process ids are reused."""
    with suppress(OSError, ValueError, psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(int(_pid_file(name).read_text()))
        return process if name in process.cmdline() else None
    return None


def _stop(process: psutil.Process) -> None:
    """Stop a process's descendants, deepest first, wait for them, and then stop the process: trainers save before the
    flows that started them end, and the worker, which could end them while they report, reports that they have ended.
    """
    for family in ([*reversed(process.children(recursive=True))], [process]):
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGTERM)
        while any(map(_lives, family)):
            time.sleep(0.1)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # a container may have no process that removes dead ones
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _pid_file(name: str) -> Path:
    return HOME / f"{name}.pid"


def _wait_for_server(settings: Settings) -> bool:
    """Wait until the server answers; return whether it does before it ends."""
    end = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < end and _running("server") is not None:
        if answers(settings):
            return True
        time.sleep(0.5)
    return False


COMMANDS = {"up": up, "down": down}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked by `headrace up` during the imports
        sys.exit(COMMANDS[sys.argv[1]]())
    except KeyboardInterrupt:
        print(f"\ninterrupted; `headrace {sys.argv[1]}` can be repeated", file=sys.stderr)
        sys.exit(EXIT_PREEMPTED)
    except OSError as error:
        sys.exit(f"`headrace {sys.argv[1]}` failed: {error}; it can be repeated once that is solved")
