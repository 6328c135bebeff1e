"""What the tests of the MLflow adapter share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashback_core.testing import run_with_fault

ROOT = Path(__file__).parents[2]


def wait_for(there: Callable[[], bool], patience_s: float = 20) -> None:
    """Wait until something is there."""
    end = time.monotonic() + patience_s
    while not there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def tags(client: Any, run_id: str) -> dict[str, str]:
    """Tags of a run."""
    return dict(client.get_run(run_id).data.tags)


def put_index(client: Any, run_id: str, folder: Path) -> None:
    """Give a run the index of a made-up training that goes wrong at step 250."""
    from flashback_core.export import export_parquet

    folder.mkdir()
    export_parquet(run_with_fault(first_bad_step=250), folder / "index.parquet")
    client.log_artifact(run_id, str(folder / "index.parquet"), "flashback")


def script(code: str, folder: Path, *arguments: str, status: int = 0) -> str:
    """Run `code` in `folder`; its standard output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "FLASHBACK_"))}
    path = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", ""), str(folder)])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env={**kept, "PYTHONPATH": path},
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout
