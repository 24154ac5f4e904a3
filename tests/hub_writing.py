"""A small Hugging Face hub on this machine that accepts commits from `huggingface_hub`."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_server import Answering, http_server

TOKEN = "hf_token"


@dataclass
class Hub:
    """The hub's address, and what it received: repositories with their files, and sizes of objects sent by LFS."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    trouble: list[int] = field(default_factory=list)
    """The statuses of the next commits' answers, before one that succeeds."""
    of_cards: list[tuple[int, bytes]] = field(default_factory=list)
    """The next answers to a check of a card, before it is taken."""


@contextmanager
def taking_commits() -> Iterator[Hub]:
    """Serve a hub with the single user `me`; files ending in .safetensors are sent by LFS."""
    hub = Hub()

    class Handler(Answering):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._answer(401, {"error": "Invalid credentials in Authorization header"})
            path = self.path.partition("?")[0]
            if path == "/api/validate-yaml":
                assert json.loads(body)["content"].startswith("---\n"), "the model card begins with its front matter"
                if hub.of_cards:
                    return self.answer(*hub.of_cards.pop(0))
                return self._answer(200, {"errors": [], "warnings": []})
            if path == "/api/repos/create":
                return self._create(json.loads(body))
            repo = "/".join(path.replace("/api/models", "").split("/")[1:3]).removesuffix(".git")
            if path.endswith("/info/lfs/objects/batch"):
                return self._answer(
                    200, {"transfer": "basic", "objects": [self._object(each) for each in json.loads(body)["objects"]]}
                )
            if "/preupload/" in path:
                return self._answer(200, {"files": [self._mode(each) for each in json.loads(body)["files"]]})
            if "/commit/" in path:
                return self._commit(repo, body)
            return self._answer(404, {"error": f"nothing at {path}"})

        def do_GET(self) -> None:
            _, _, _, owner, name, *rest = self.path.partition("?")[0].split("/")
            if rest != ["tree", "main"]:
                return self._answer(404, {"error": f"nothing at {self.path}"})
            files = hub.repos[f"{owner}/{name}"].items()
            return self._answer(
                200, [{"type": "file", "path": path, "size": len(data), "oid": ""} for path, data in files]
            )

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            oid = self.path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == oid
            hub.objects[oid] = body
            self._answer(200, {})

        def _create(self, asked: dict[str, Any]) -> None:
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if not name.startswith("me/"):
                return self._answer(403, {"error": "You don't have the rights to create a model under this namespace"})
            if name in hub.repos:
                return self._answer(409, {"url": f"{hub.url}/{name}"})
            hub.repos[name] = {}
            if asked.get("visibility") == "private" or asked.get("private"):
                hub.private.add(name)
            return self._answer(200, {"url": f"{hub.url}/{name}"})

        def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
            mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
            return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}

        def _object(self, asked: dict[str, Any]) -> dict[str, Any]:
            return {**asked, "actions": {"upload": {"href": f"{hub.url}/objects/{asked['oid']}"}}}

        def _commit(self, repo: str, body: bytes) -> None:
            if hub.trouble:
                return self._answer(hub.trouble.pop(0), {"error": "not now"})
            files = dict(hub.repos[repo])
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    hub.messages.append(value["summary"])
                elif line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            hub.repos[repo] = files
            oid = hashlib.sha1(body).hexdigest()
            url = f"{hub.url}/{repo}/commit/{oid}"
            return self._answer(200, {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

        def _answer(self, status: int, told: dict[str, Any] | list[dict[str, Any]]) -> None:
            self.answer(status, json.dumps(told).encode(), {"Content-Type": "application/json"})

    with http_server(Handler) as hub.url:
        yield hub
