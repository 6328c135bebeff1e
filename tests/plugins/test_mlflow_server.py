"""The MLflow adapter through a real server, in a browser, and in a script that crashes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import flashback_core as fb
from tests.plugins import _tracker_data as data
from tests.plugins._mlflow_help import put_index, script, tags

mlflow = pytest.importorskip("mlflow")
fm = pytest.importorskip("flashback_plugins.mlflow")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(mlflow_server: str) -> str:
    """Address of an MLflow server."""
    return mlflow_server


def test_round_trip_through_a_server(server: str, tmp_path: Path) -> None:
    """Metrics, tags, note and files reach a real server and come back; detection amends them."""
    client = mlflow.MlflowClient(server)
    run_id = client.create_run("0").info.run_id
    client.set_tag(run_id, "mlflow.note.content", "mine")
    sink = fm.MlflowSink(client, run_id, every_s=0.5)
    for step in range(0, 100, 10):
        sink.log_metrics({"loss": 1 / (step + 1), "group:attn_qkv:max_abs": step}, step)
    sink.alert(data.finding())
    sink.log_report(data.report(), data.FolderFiles(tmp_path, data.report()))
    sink.close()
    client.set_terminated(run_id)
    history = client.get_metric_history(run_id, "flashback/group/attn_qkv/max_abs")
    assert [m.step for m in history] == list(range(0, 100, 10))
    found = client.search_runs(["0"], "tags.`flashback.status` = 'bad'")
    assert [run.info.run_id for run in found] == [run_id]
    assert found[0].data.tags["mlflow.note.content"].startswith("mine\n")
    folder = Path(client.download_artifacts(run_id, "flashback", str(tmp_path)))
    assert json.loads((folder / "report.json").read_text())["first_bad_step"] == 37
    assert len(fb.open_run(folder / "index.parquet")) == 60


def test_detect_run_through_a_server(server: str, tmp_path: Path) -> None:
    """A finished run on a server is detected on, and amended."""
    client = mlflow.MlflowClient(server)
    run_id = client.create_run("0").info.run_id
    put_index(client, run_id, tmp_path / "up")
    client.set_terminated(run_id)
    report = fm.detect_run(run_id, tracking_uri=server)
    assert report.first_bad_step == 250
    assert tags(client, run_id)["flashback.first_bad_step"] == "250"
    paths = {Path(f.path).name for f in client.list_artifacts(run_id, "flashback")}
    assert {"report.html", "findings.json", "index.parquet"} <= paths


@pytest.mark.browser
def test_the_page_of_the_run_shows_the_report(server: str, tmp_path: Path) -> None:
    """In a browser the report is drawn inside MLflow's page, its script included."""
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium here")
    client = mlflow.MlflowClient(server)
    run_id = client.create_run("0").info.run_id
    put_index(client, run_id, tmp_path / "up")
    fm.detect_run(run_id, tracking_uri=server)
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page()
        page.goto(f"{server}/#/experiments/0/runs/{run_id}/artifacts/flashback/report.html")
        frame = page.frame_locator("iframe")
        frame.get_by_text("went wrong at step 250").first.wait_for(timeout=60_000)
        browser.close()


SCRIPT = """
import sys, torch, mlflow
import flashback_plugins.mlflow as fm
mlflow.set_tracking_uri("sqlite:///" + sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
rec = fm.record(model, optimizer)
print(mlflow.active_run().info.run_id)
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
raise RuntimeError("boom")
"""


def test_a_script_that_crashes_leaves_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `with`, and after an exception, report and index are on the run."""
    monkeypatch.chdir(tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'm.db'}")
    client.search_experiments()
    run_id = script(SCRIPT, tmp_path, str(tmp_path / "m.db"), status=1).split()[-1]
    assert "flashback.status" in tags(client, run_id)
    there = {Path(f.path).name for f in client.list_artifacts(run_id, "flashback")}
    assert {"index.parquet", "report.html"} <= there
