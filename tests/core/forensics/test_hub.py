"""Pushing to the hub, up to the upload, against a server of our own."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flashback_core.errors import SourceError
from flashback_core.forensics.hub import files_to_push, push

hub = pytest.importorskip("huggingface_hub")


class Hub(ThreadingHTTPServer):
    """The part of the hub that a push talks to; keeps the files of the commits."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.made: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Facts of the repository: nothing is in it yet."""
        self._answer({"id": "me/runs", "sha": "0" * 40, "siblings": [], "private": False})

    def do_POST(self) -> None:
        """Make the repository, say how files are uploaded, take a commit."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = f"http://{self.headers['Host']}/datasets/me/runs"
        if self.path.endswith("/repos/create"):
            self.server.made.append(json.loads(body))
            self._answer({"url": url, "name": "me/runs", "id": "1"})
        elif "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            self._answer({"files": [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted
            ]})  # fmt: skip
        elif "/commit/" in self.path:
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    content = base64.b64decode(row["value"]["content"])
                    self.server.files[row["value"]["path"]] = content
            self._answer({"commitOid": "1" * 40, "commitUrl": f"{url}/commit/1"})
        else:
            self._answer({})


@pytest.fixture
def server() -> Iterator[Hub]:
    """A running server."""
    with Hub() as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_push_uploads_card_and_data(data: Path, server: Hub, tmp_path: Path) -> None:
    """Every file arrives as it is, and nothing that is not of the data set."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    (folder / ".work").mkdir()
    (folder / ".work" / "half.parquet").write_bytes(b"half")
    endpoint = f"http://127.0.0.1:{server.server_port}"
    api = hub.HfApi(endpoint=endpoint, token="hf_none")
    assert push(folder, "me/runs", api=api).endswith("datasets/me/runs")
    assert server.made[0]["type"] == "dataset"
    assert set(server.files) == {path.as_posix() for path in files_to_push(folder)}
    for name, content in server.files.items():
        assert content == (folder / name).read_bytes()


def test_name_must_be_of_a_user(data: Path) -> None:
    """Before anything is sent."""
    with pytest.raises(SourceError, match="user/data-set"):
        push(data, "runs", api=object())


def test_nothing_to_push_is_an_error(tmp_path: Path) -> None:
    """A folder without card and runs."""
    with pytest.raises(SourceError, match="build it first"):
        files_to_push(tmp_path)
