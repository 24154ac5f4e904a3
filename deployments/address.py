"""The server's settings, the addresses that follow from them, and whether something answers there."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import httpx

from flows.temporary_server import SERVER_PASSWORD

PASSWORD = SERVER_PASSWORD
Settings = Mapping[str, str]
DEFAULTS: Settings = {"LISTEN": "127.0.0.1", "PORT": "4200", "DB": "sqlite", PASSWORD: ""}
"""A new server's settings unless the environment sets others."""
DATABASES = ("postgresql+asyncpg://", "sqlite+aiosqlite:")
"""How the addresses of databases begin that Prefect can use."""
SCHEDULES = os.environ.get("SCHEDULES", "")
SCHEDULED = {"on": True, "off": False, "": None}
"""The values of SCHEDULES, and whether scheduled runs are started; None keeps the present state."""


def bad_setting(settings: Settings) -> str | None:
    """Why no server can have one of the settings, and what to do; None if all are valid."""
    port, database = settings["PORT"], settings["DB"]
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        return f"PORT={port}: expected a whole number from 1 to 65535; unset it for {DEFAULTS['PORT']}"
    if not (_is_loopback(settings["LISTEN"]) or settings[PASSWORD]):
        return (
            f"LISTEN={settings['LISTEN']} would let users of other machines run code on this one: set a password, "
            "PREFECT_SERVER_API_AUTH_STRING=user:password, or unset LISTEN"
        )
    if settings[PASSWORD] and ":" not in settings[PASSWORD]:
        return f"{PASSWORD} has no colon: expected user:password"
    if database not in ("sqlite", "postgres") and not database.startswith(DATABASES):
        return (
            f"DB={database.partition(':')[0]}: expected sqlite, postgres, or the address of a database, as "
            "postgresql+asyncpg://user:password@host/name"
        )
    if SCHEDULES not in SCHEDULED:
        return (
            f"SCHEDULES={SCHEDULES}: expected on (start the nightly and weekly runs) or off; unset it to keep the "
            "present state"
        )
    return None


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def api(settings: Settings) -> str:
    """The address of the server from this machine."""
    host = settings["LISTEN"]
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        host = "127.0.0.1" if address.is_unspecified else f"[{host}]" if address.version == 6 else host
    return f"http://{host}:{settings['PORT']}/api"


def exports(settings: Settings) -> str:
    """What a shell needs to use the server; secrets are not shown."""
    password = "\nexport PREFECT_API_AUTH_STRING=user:password  # that of the server" if settings[PASSWORD] else ""
    return f"export PREFECT_API_URL={api(settings)}{password}"


def client(settings: Settings) -> httpx.Client:
    """Prefect's own client, which retries if the server is busy (503: its database is locked)."""
    from prefect.client.base import PrefectHttpxSyncClient  # reads the variables set by `up`

    return PrefectHttpxSyncClient(
        base_url=api(settings), timeout=60, auth=auth(settings), raise_on_all_errors=False, trust_env=False
    )  # not through a proxy


def auth(settings: Settings) -> tuple[str, str] | None:
    if not (given := settings[PASSWORD]):
        return None
    user, _, password = given.partition(":")
    return user, password


def answers(settings: Settings) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{api(settings)}/health", timeout=30, auth=auth(settings), trust_env=False).is_success
    return False


def is_taken(settings: Settings) -> bool:
    """Whether a program accepts connections at the server's address."""
    address = httpx.URL(api(settings))
    with suppress(OSError), socket.create_connection((address.host, address.port or 80), timeout=30):
        return True
    return False
