"""A small Hugging Face hub on this machine with one model, for the requests of `huggingface_hub`."""

import hashlib
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.http_server import Answering, http_server

WEIGHTS = "model.safetensors"


@contextmanager
def serve_model(
    folder: Path, name: str, commit: str, changed: tuple[Path, str] | None = None, broken: bool = False
) -> Iterator[str]:
    """Serve a folder as the model of this name at one commit; yield the address for HF_ENDPOINT.

    `changed` is a folder with the model at another commit, which becomes the newest once the first one's weights have
    been fetched. Of a `broken` connection, the download of the weights breaks off.
    """
    commits = {each: _read(place) for place, each in [(folder, commit), *([changed] if changed else [])]}
    newest = [commit]

    class Hub(Answering):
        def do_GET(self) -> None:
            body, at, etag = self._find()
            headers = {"X-Repo-Commit": at, "ETag": f'"{etag}"'}
            if broken and self.command == "GET" and self.path.endswith(WEIGHTS):
                self.answer(200, b"", {**headers, "Content-Length": str(len(body or b""))})
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            self.answer(404 if body is None else 200, body or b"", headers)
            if changed is not None and self.command == "GET" and self.path.endswith(f"/{commit}/{WEIGHTS}"):
                newest[0] = changed[1]

        do_HEAD = do_GET

        def _find(self) -> tuple[bytes | None, str, str]:
            at = next((each for each in commits if each in self.path), newest[0])
            files = commits[at]
            if self.path.startswith(f"/api/models/{name}/tree/"):
                tree = [
                    {"type": "file", "path": file, "size": len(data), "oid": "0" * 40} for file, data in files.items()
                ]
                return json.dumps(tree).encode(), at, at
            if self.path.startswith(f"/api/models/{name}"):
                siblings = [{"rfilename": file} for file in files]
                return json.dumps({"id": name, "sha": at, "siblings": siblings}).encode(), at, at
            body = files.get(self.path.rpartition("/")[2]) if self.path.startswith(f"/{name}/resolve/{at}/") else None
            return body, at, hashlib.sha256(body or b"").hexdigest()

    with http_server(Hub) as address:
        yield address


def _read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def unreachable(*_: object, **__: object) -> None:
    """Takes the place of `huggingface_hub.snapshot_download`."""
    raise OSError("no network")
