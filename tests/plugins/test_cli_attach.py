"""`flashback detect SOURCE --attach --run-id ID` puts the report on an MLflow run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashback_core.export import export_table
from flashback_core.table import MemoryTable
from flashback_plugins.cli import main

mlflow = pytest.importorskip("mlflow")


def test_attach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags and report arrive on the run; without --run-id, or with a wrong one, it is bad input."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.create_experiment("e", artifact_location=str(tmp_path / "artifacts"))
    run_id = client.create_run(experiment).info.run_id
    loss = np.linspace(3, 1, 120)
    loss[70:] = np.nan
    source = tmp_path / "run.parquet"
    export_table(MemoryTable(np.arange(120), {"loss": loss}), source)
    assert main(["detect", str(source), "--attach", "--run-id", run_id]) == 0
    assert client.get_run(run_id).data.tags["flashback.first_bad_step"] == "70"
    files = {a.path for a in client.list_artifacts(run_id, "flashback")}
    assert "flashback/report.html" in files
    assert main(["detect", str(source), "--attach"]) == 2
    assert main(["detect", str(source), "--attach", "--run-id", "no-such-run"]) == 2
