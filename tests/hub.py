"""A small Hugging Face hub on this machine with one model, for the requests of `huggingface_hub`."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WEIGHTS = "model.safetensors"


@contextmanager
def serve_model(folder: Path, name: str, commit: str, changed: tuple[Path, str] | None = None) -> Iterator[str]:
    """Serve a folder as the model of this name at one commit; yield the address for HF_ENDPOINT.

    `changed` is a folder with the model at another commit, which becomes the newest once the first one's weights have
    been fetched.
    """
    commits = {each: _read(place) for place, each in [(folder, commit), *([changed] if changed else [])]}
    newest = [commit]

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)
            if changed is not None and self.path.endswith(f"/{commit}/{WEIGHTS}"):
                newest[0] = changed[1]

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, with_body: bool) -> None:
            body, at, etag = self._find()
            self.send_response(404 if body is None else 200)
            body = body or b""
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", at)
            self.send_header("ETag", f'"{etag}"')
            self.end_headers()
            if with_body:
                self.wfile.write(body)

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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def unreachable(*_: object, **__: object) -> None:
    """Takes the place of `huggingface_hub.snapshot_download`."""
    raise OSError("no network")
