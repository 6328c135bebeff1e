"""The MLflow adapter against MLflow itself, with a store on sqlite."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.errors import FlashbackError, FlashbackWarning, SourceError
from flashback_plugins.panels import metric_name
from tests.plugins import _tracker_data as data
from tests.plugins._mlflow_help import put_index, script, tags, wait_for

mlflow = pytest.importorskip("mlflow")
fm = pytest.importorskip("flashback_plugins.mlflow")


@pytest.fixture
def client(mlflow_client: Any) -> Any:
    """A client of a store on sqlite."""
    return mlflow_client


@pytest.fixture
def run_id(mlflow_run_id: str) -> str:
    """A new run."""
    return mlflow_run_id


def files(folder: Path, report: fb.DetectionReport) -> data.FolderFiles:
    """The files of a run folder."""
    return data.FolderFiles(folder, report)


# --- live metrics -------------------------------------------------------------------------------


def test_live_metrics_arrive_together(client: Any, run_id: str) -> None:
    """Many steps go in one request, at most eight scalars a step, each at its own step."""
    sink = fm.MlflowSink(client, run_id, every_s=60)
    for step in range(0, 30, 10):
        sink.log_metrics({f"m{i}": step + i for i in range(12)} | {"loss": step}, step)
    assert client.get_run(run_id).data.metrics == {}
    sink.close()
    assert len(client.get_run(run_id).data.metrics) == 8
    history = client.get_metric_history(run_id, "flashback/loss")
    assert [(m.step, m.value) for m in history] == [(0, 0.0), (10, 10.0), (20, 20.0)]


def test_live_metrics_go_out_while_the_run_goes_on(client: Any, run_id: str) -> None:
    """The thread sends by itself, without a flush."""
    sink = fm.MlflowSink(client, run_id, every_s=0.01)
    sink.log_metrics({"loss": 1.0}, 0)
    wait_for(lambda: "flashback/loss" in client.get_run(run_id).data.metrics)
    sink.close()


@pytest.mark.parametrize("name", ["group:attn_qkv:max_abs", "group:a=b[0]:var", "g" * 400, "a::b"])
def test_any_name_is_accepted(client: Any, run_id: str, name: str) -> None:
    """Names that MLflow would refuse arrive, and lead back to their metric."""
    sink = fm.MlflowSink(client, run_id)
    sink.log_metrics({name: 1.0}, 3)
    sink.close()
    (path,) = client.get_run(run_id).data.metrics
    assert metric_name(path, [name]) == name


def test_values_that_are_not_finite_are_counted(client: Any, run_id: str) -> None:
    """NaN and infinity, which MLflow's stores cannot hold, become a count."""
    sink = fm.MlflowSink(client, run_id)
    sink.log_metrics({"loss": float("nan"), "grad_norm": float("inf"), "lr": 0.1}, 5)
    sink.close()
    metrics = client.get_run(run_id).data.metrics
    assert metrics == {"flashback/lr": 0.1, "flashback/nonfinite_values": 2.0}


def test_histograms_stay_in_the_index(client: Any, run_id: str) -> None:
    """MLflow has no histograms; nothing is sent."""
    sink = fm.MlflowSink(client, run_id)
    sink.log_histograms({"hist_grad": [1] * 16}, 0)
    sink.close()
    assert client.get_run(run_id).data.metrics == {}


def test_a_sink_can_go_to_another_process(client: Any, run_id: str) -> None:
    """A pickled sink has a client and a thread of its own."""
    sink = pickle.loads(pickle.dumps(fm.MlflowSink(client, run_id)))
    sink.log_metrics({"loss": 2.0}, 0)
    sink.close()
    assert client.get_run(run_id).data.metrics == {"flashback/loss": 2.0}


# --- alert and report ---------------------------------------------------------------------------


def test_an_alert_is_tags_a_note_and_a_call(client: Any, run_id: str) -> None:
    """The run is marked at once, and people are told once for each event."""
    told: list[int] = []
    sink = fm.MlflowSink(client, run_id, notify=lambda finding: told.append(finding.step))
    for step in (37, 38, 50):
        sink.alert(data.finding(step))
    wait_for(lambda: told == [37, 50])
    sink.close()
    found = tags(client, run_id)
    assert (found["flashback.status"], found["flashback.first_bad_step"]) == ("bad", "37")
    assert "### flashback: first bad step 37" in found["mlflow.note.content"]
    assert "report.html" not in found["mlflow.note.content"]


def test_a_change_marks_no_run(client: Any, run_id: str) -> None:
    """A regime change that looks wanted is told, and the run is not called bad."""
    told: list[str] = []
    sink = fm.MlflowSink(client, run_id, notify=lambda finding: told.append(finding.kind))
    sink.alert(data.finding(severity="change", kind="lr_change"))
    sink.close()
    assert told == ["lr_change"]
    assert "flashback.status" not in tags(client, run_id)


def test_a_notifier_that_fails_costs_a_warning(client: Any, run_id: str) -> None:
    """The run is marked all the same."""

    def fail(_finding: fb.Finding) -> None:
        raise OSError("no mail today")

    sink = fm.MlflowSink(client, run_id, every_s=60, notify=fail)
    with pytest.warns(FlashbackWarning, match="no mail today"):
        alert_and_close(sink)
    assert tags(client, run_id)["flashback.status"] == "bad"


def alert_and_close(sink: Any) -> None:
    """Tell of a finding and wait until everybody was told."""
    sink.alert(data.finding())
    sink.close()


def test_report_is_attached(client: Any, run_id: str, tmp_path: Path) -> None:
    """All files are there; the findings have the shape that MLflow shows as a table."""
    sink = fm.MlflowSink(client, run_id)
    sink.log_report(data.report(), files(tmp_path, data.report()))
    sink.close()
    there = {Path(f.path).name for f in client.list_artifacts(run_id, "flashback")}
    assert there >= {
        "index.parquet", "index.schema.json", "report.html", "report.md", "report.json",
        "findings.json",
    }  # fmt: skip
    experiment = client.get_run(run_id).info.experiment_id
    frame = client.load_table(experiment, "flashback/findings.json", run_ids=[run_id])
    assert list(frame["step"]) == [20, 37]
    found = tags(client, run_id)
    assert found["flashback.confidence"] == "0.97"
    assert f"runs/{run_id}/artifacts/flashback/report.html" in found["mlflow.note.content"]


@pytest.mark.parametrize("name", ["timeline", "moved_first"])
def test_a_picture_is_attached(client: Any, run_id: str, tmp_path: Path, name: str) -> None:
    """Where the extra `report` is installed there are pictures of the run, drawn offline."""
    pytest.importorskip("vl_convert")
    report = data.report().with_table(data.table())
    sink = fm.MlflowSink(client, run_id)
    sink.log_report(report, files(tmp_path, report))
    sink.close()
    path = client.download_artifacts(run_id, f"flashback/{name}.png", str(tmp_path))
    assert Path(path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_runs_are_found_by_tag(client: Any, run_id: str, tmp_path: Path) -> None:
    """Bad runs can be searched, by status and by step."""
    sink = fm.MlflowSink(client, run_id)
    sink.log_report(data.report(), files(tmp_path, data.report()))
    sink.close()
    experiment = client.get_run(run_id).info.experiment_id
    wanted = "tags.`flashback.status` = 'bad' and tags.`flashback.first_bad_step` = '37'"
    assert run_id in {r.info.run_id for r in client.search_runs([experiment], wanted)}


def test_a_finished_run_is_amended(client: Any, run_id: str, tmp_path: Path) -> None:
    """Report and tags can come after the end; the run stays finished."""
    client.set_terminated(run_id)
    sink = fm.MlflowSink(client, run_id)
    sink.log_report(data.report(), files(tmp_path, data.report()))
    sink.close()
    assert client.get_run(run_id).info.status == "FINISHED"
    assert tags(client, run_id)["flashback.status"] == "bad"


def test_a_second_report_replaces_the_first(client: Any, run_id: str, tmp_path: Path) -> None:
    """The user's own note stays to the letter, our section is there once, old tags are gone."""
    mine = "# My run\nwith *notes* of my own"
    client.set_tag(run_id, "mlflow.note.content", mine)
    for report in (data.report(), data.healthy()):
        sink = fm.MlflowSink(client, run_id)
        sink.log_report(report, files(tmp_path, report))
        sink.close()
    found = tags(client, run_id)
    assert found["mlflow.note.content"].startswith(mine)
    assert found["mlflow.note.content"].count("### flashback:") == 1
    assert "### flashback: healthy" in found["mlflow.note.content"]
    assert found["flashback.status"] == "healthy"
    assert "flashback.first_bad_step" not in found
    assert found["mlflow.loggedArtifacts"].count("findings.json") == 1


def test_a_run_that_is_not_there_is_refused(client: Any) -> None:
    """The message names the run and the store."""
    with pytest.raises(SourceError, match="MLflow has no run '0123' at sqlite"):
        fm.MlflowSink(client, "0123")


def test_the_file_store_is_refused_with_advice(tmp_path: Path) -> None:
    """Where MLflow no longer writes files, the message says what to use."""
    with pytest.raises(FlashbackError, match=r"sqlite:///mlflow\.db"):
        fm.detect_run("0123", tracking_uri=str(tmp_path / "mlruns"))


# --- recording ----------------------------------------------------------------------------------


def train(record: Callable[..., Any], n_steps: int = 40, **options: Any) -> list[float]:
    """Train a small model under `record`; the losses."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    with record(model, optimizer, **options) as rec:
        for _ in range(n_steps):
            x = torch.randn(16, 8)
            loss = ((model(x) - x[:, :1]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rec.log(loss=loss)
            losses.append(loss.item())
    return losses


def test_record_uses_the_active_run(client: Any, tmp_path: Path) -> None:
    """Live metrics, report and index are on the run that was active, which stays active."""
    with mlflow.start_run() as run:
        losses = train(fm.record, log_every=10)
        assert mlflow.active_run().info.run_id == run.info.run_id
    history = client.get_metric_history(run.info.run_id, "flashback/loss")
    assert [m.step for m in history] == [0, 10, 20, 30]
    np.testing.assert_allclose([m.value for m in history], losses[::10])
    assert "flashback.status" in tags(client, run.info.run_id)
    assert (tmp_path / "runs" / run.info.run_id / "sketch").is_dir()


def test_record_starts_a_run_where_there_is_none(client: Any) -> None:
    """As with `mlflow.log_metric`: the run is started, and left active."""
    train(fm.record)
    assert "flashback.status" in tags(client, mlflow.active_run().info.run_id)


def test_watching_changes_no_loss(client: Any, tmp_path: Path) -> None:
    """Losses with and without MLflow are the same bit for bit."""

    def alone(model: Any, optimizer: Any) -> Any:
        return fb.Recorder(tmp_path / "alone", model, optimizer)

    assert train(fm.record) == train(alone)


def test_switched_off(client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FLASHBACK_DISABLED leaves no run, no folder and no tag."""
    monkeypatch.setenv("FLASHBACK_DISABLED", "1")
    train(fm.record)
    assert mlflow.active_run() is None
    assert list(tmp_path.iterdir()) == []


# --- detection on a finished run ----------------------------------------------------------------


def test_detect_run_amends_the_run(client: Any, run_id: str, tmp_path: Path) -> None:
    """The index comes down, the report goes up, and the two say the same."""
    put_index(client, run_id, tmp_path / "up")
    client.set_terminated(run_id)
    report = fm.detect_run(run_id)
    assert report.first_bad_step == 250
    assert tags(client, run_id)["flashback.first_bad_step"] == "250"
    path = client.download_artifacts(run_id, "flashback/report.json", str(tmp_path))
    assert fb.DetectionReport.from_json(Path(path).read_text()) == report
    assert len(report.table["loss"]) == 400


def test_detect_run_can_leave_the_run_alone(client: Any, run_id: str, tmp_path: Path) -> None:
    """With attach=False nothing on the run changes."""
    put_index(client, run_id, tmp_path / "up")
    before = tags(client, run_id)
    assert fm.detect_run(run_id, attach=False).first_bad_step == 250
    assert tags(client, run_id) == before
    assert len(client.list_artifacts(run_id, "flashback")) == 1


def test_detect_run_without_an_index(client: Any, run_id: str) -> None:
    """The message says what is missing and how to record it."""
    with pytest.raises(SourceError, match=r"has no artifact flashback/index\.parquet; record"):
        fm.detect_run(run_id)


def test_a_missing_mlflow_is_named(tmp_path: Path) -> None:
    """Without MLflow the import says what to install."""
    code = """
import sys
sys.modules["mlflow"] = None
try:
    import flashback_plugins.mlflow
except ImportError as error:
    print(error)
"""
    assert "pip install 'flashback-plugins[mlflow]'" in script(code, tmp_path)
