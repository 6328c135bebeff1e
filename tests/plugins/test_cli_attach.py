"""`flashback detect SOURCE --attach --run-id ID` puts the report on an MLflow run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flashback_core.export import export_table
from flashback_core.table import MemoryTable
from flashback_plugins.cli import main


def test_attach(tmp_path: Path, mlflow_client: Any, mlflow_run_id: str) -> None:
    """Tags and report arrive on the run; without --run-id, or with a wrong one, it is bad input."""
    loss = np.linspace(3, 1, 120)
    loss[70:] = np.nan
    source = tmp_path / "run.parquet"
    export_table(MemoryTable(np.arange(120), {"loss": loss}), source)
    assert main(["detect", str(source), "--attach", "--run-id", mlflow_run_id]) == 0
    assert mlflow_client.get_run(mlflow_run_id).data.tags["flashback.first_bad_step"] == "70"
    files = {a.path for a in mlflow_client.list_artifacts(mlflow_run_id, "flashback")}
    assert "flashback/report.html" in files
    assert main(["detect", str(source), "--attach"]) == 2
    assert main(["detect", str(source), "--attach", "--run-id", "no-such-run"]) == 2
