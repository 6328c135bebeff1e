"""Stores and servers that the tests of the tracker adapters start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.plugins._mlflow_help import wait_for


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of an MLflow store on sqlite with an experiment ``here``."""
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # a store on sqlite puts files beside the process that makes it
        mlflow.MlflowClient(uri).create_experiment("here", artifact_location=str(folder / "files"))
    return uri


@pytest.fixture
def mlflow_client(
    mlflow_store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """A client of the store, which is also MLflow's setting; the working folder is a new one."""
    mlflow = pytest.importorskip("mlflow")
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(mlflow_store)
    mlflow.set_experiment("here")
    yield mlflow.MlflowClient(mlflow_store)
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture
def mlflow_run_id(mlflow_client: Any) -> str:
    """A new run in the store."""
    experiment = mlflow_client.get_experiment_by_name("here").experiment_id
    return str(mlflow_client.create_run(experiment).info.run_id)


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an MLflow server on sqlite, stopped at the end."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1",
        "--artifacts-destination", str(folder / "files"),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: _is_up(port), patience_s=120)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers; it may wait for connections that are still open."""
    with suppress(subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=3)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=20)


def _is_up(port: int) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
