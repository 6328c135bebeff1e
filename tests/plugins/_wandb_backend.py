"""A small HTTP server that answers like the W&B backend, so that runs in online mode really send.

It stores what arrives: alerts, history rows, summary, configuration, artifacts and their files.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class Backend(ThreadingHTTPServer):
    """The server and what it received."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.alerts: list[Json] = []
        self.history: list[Json] = []
        self.summary: Json = {}
        self.config: Json = {}
        self.artifacts: dict[str, Json] = {}
        self.committed: list[str] = []
        self.uploads: dict[str, bytes] = {}
        self.operations: list[str] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent when W&B hangs up; its process ends without saying goodbye."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # any socket

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, query: str, given: Json) -> Json:
        """The data of one GraphQL operation."""
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else ""
        self.operations.append(name)
        if "viewer" in query[:200]:
            return _VIEWER
        known = _ANSWERS.get(name)
        return known(self, given) if known else {}

    def stream(self, body: Json) -> None:
        """Take a part of the run's history and summary."""
        for name, part in body.get("files", {}).items():
            if name == "wandb-history.jsonl":
                self.history += [json.loads(line) for line in part["content"]]
            if name == "wandb-summary.json":
                self.summary.update(json.loads(part["content"][-1]))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self._send({})

    def do_PUT(self) -> None:
        self.server.uploads[self.path.removeprefix("/put/")] = self._body()
        self._send({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            asked = json.loads(body)
            data = self.server.answer(asked["query"], asked.get("variables") or {})
            self._send({"data": data})
            return
        if self.path.endswith("/file_stream"):
            self.server.stream(json.loads(body))
        self._send({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        packed = self.headers.get("content-encoding") == "gzip"
        return gzip.decompress(body) if packed else body

    def _send(self, answer: Json) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_VIEWER: Json = {
    "viewer": {
        "id": "u", "entity": "someone", "username": "someone", "name": "someone", "admin": False,
        "email": "someone@example.org", "flags": "{}", "teams": {"edges": []},
        "apiKeys": {"edges": []},
    },
    "serverInfo": {
        "cliVersionInfo": {"max_cli_version": "9.9.9"}, "latestLocalVersionInfo": None,
        "features": [],
    },
}  # fmt: skip


def _upsert(server: Backend, given: Json) -> Json:
    server.config.update(json.loads(given.get("config") or "{}"))
    bucket = {
        "id": "run", "name": given.get("name"), "displayName": given.get("displayName"),
        "description": None, "config": "{}", "sweepName": None, "historyLineCount": 0,
        "project": {
            "id": "project", "name": given.get("project") or "p",
            "entity": {"id": "entity", "name": "someone"},
        },
    }  # fmt: skip
    return {"upsertBucket": {"bucket": bucket, "inserted": True}}


def _alert(server: Backend, given: Json) -> Json:
    server.alerts.append(given)
    return {"notifyScriptableRunAlert": {"success": True}}


def _create_artifact(server: Backend, given: Json) -> Json:
    asked = given.get("input") or given
    name = asked.get("artifactCollectionName") or asked.get("artifactCollectionNames", ["?"])[0]
    server.artifacts[name] = asked
    sequence = {"id": "seq", "latestArtifact": {"id": name, "versionIndex": 0}}
    artifact = {"id": name, "state": "PENDING", "artifactSequence": sequence}
    return {"createArtifact": {"artifact": artifact}}


def _create_manifest(server: Backend, given: Json) -> Json:
    asked = given.get("input") or given
    name = f"manifest/{asked.get('artifactID')}"
    file = {
        "id": "f", "name": "wandb_manifest.json", "displayName": "wandb_manifest.json",
        "uploadUrl": f"{server.url}/put/{name}", "uploadHeaders": [],
    }  # fmt: skip
    return {"createArtifactManifest": {"artifactManifest": {"id": "m", "file": file}}}


def _artifact_files(server: Backend, given: Json) -> Json:
    asked = given.get("input") or given
    nodes = []
    for i, file in enumerate(asked.get("artifactFiles") or []):
        path = f"{file.get('artifactID')}/{file['name']}"
        node = {
            "id": f"f{i}", "name": file["name"], "displayName": file["name"],
            "uploadUrl": f"{server.url}/put/{path}", "uploadHeaders": [], "storagePath": path,
            "uploadMultipartUrls": None, "artifact": {"id": file.get("artifactID")},
        }  # fmt: skip
        nodes.append({"node": node})
    return {"createArtifactFiles": {"files": {"edges": nodes}}}


def _commit(server: Backend, given: Json) -> Json:
    name = (given.get("input") or given).get("artifactID")
    server.committed.append(name)
    return {"commitArtifact": {"artifact": {"id": name, "digest": "x"}}}


def _run_files(server: Backend, given: Json) -> Json:
    files = [{"name": f, "uploadUrl": f"{server.url}/put/run/{f}"} for f in given["files"]]
    return {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}


_ANSWERS: dict[str, Callable[[Backend, Json], Json]] = {
    "UpsertBucket": _upsert,
    "NotifyScriptableRunAlert": _alert,
    "CreateArtifact": _create_artifact,
    "CreateArtifactManifest": _create_manifest,
    "CreateArtifactFiles": _artifact_files,
    "CommitArtifact": _commit,
    "CreateRunFiles": _run_files,
    "ServerFeaturesQuery": lambda _server, _given: {"serverInfo": {"features": []}},
    "RunStoppedStatus": lambda _server, _given: {"project": {"run": {"stopped": False}}},
    "ArtifactType": lambda _server, _given: {"project": None},
}


@contextmanager
def wandb_backend() -> Iterator[Backend]:
    """A running backend on a free port."""
    server = Backend()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
