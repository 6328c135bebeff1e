"""Scoring the recorded data set, and what is written of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from flashback_core.detectors import FirstBadStepDetector, LossCurveDetector
from flashback_core.forensics.dataset import run_files
from flashback_core.forensics.predictions import write_predictions
from flashback_core.forensics.results import show, write
from flashback_core.forensics.score import (
    NO_EXACT,
    NO_LR,
    OURS,
    PUBLISHED,
    Without,
    detectors,
    fitted_peers,
    score,
)
from flashback_core.forensics.tables import LabelledRun


@pytest.fixture(scope="module")
def result(data: Path) -> dict[str, Any]:
    """All detectors and peers."""
    others, notes = fitted_peers(data)
    return score(data, detectors() | others, jobs=1, notes=notes, command="flashback …")


def test_every_detector_is_scored_on_every_run(result: dict[str, Any]) -> None:
    """Ten runs and twins each; the data are told."""
    counts = dict.fromkeys(result["detectors"], 0)
    for row in result["outcomes"]:
        counts[row["detector"]] += 1
    assert set(counts.values()) == {10}
    assert {OURS, NO_LR, NO_EXACT, PUBLISHED, "W&B z-score automation"} <= set(counts)
    assert result["data"]["n_runs"] == 8
    assert (result["data"]["n_faults"], result["data"]["n_twins"]) == (4, 2)


def test_loud_faults_are_found_and_healthy_runs_are_quiet(result: dict[str, Any]) -> None:
    """The shipped detector on the test split: a loud rate and a lost state, at the step."""
    rows = {row["name"]: row for row in result["detectors"][OURS]["faults"]}
    assert rows["all faults"]["exact"] == rows["all faults"]["n"] == 2
    assert sum(row["episodes"] for row in result["detectors"][OURS]["healthy"]) == 0


def test_progress_is_told(data: Path) -> None:
    """After every file."""
    told: list[tuple[int, int, str]] = []
    score(data, {"a": LossCurveDetector()}, jobs=1, progress=lambda *p: told.append(p))
    assert [t[0] for t in told] == list(range(1, 11))


@pytest.mark.slow
def test_several_processes_give_the_same(data: Path) -> None:
    """Only times differ."""

    def plain(jobs: int) -> list[dict[str, Any]]:
        found = score(data, {"a": FirstBadStepDetector()}, jobs=jobs)["outcomes"]
        return [{k: v for k, v in row.items() if k != "cpu_us"} for row in found]

    assert plain(1) == plain(2)


def test_hidden_columns_are_not_seen(runs: list[LabelledRun]) -> None:
    """Neither the column nor what the recorder noted of the state; declared events stay."""
    seen: list[Any] = []

    class Looks(LossCurveDetector):
        def predict(self, index: Any) -> Any:
            seen.append(index)
            return super().predict(index)

    Without(Looks(), ("lr", "exact:"), is_blind_to_events=True).predict(runs[0].table)
    assert "lr" not in seen[0]
    assert not seen[0].exact_names
    assert {e["event"] for e in seen[0].events} <= {"expect", "groups", "session"}


def test_result_is_written(result: dict[str, Any], tmp_path: Path) -> None:
    """Strict JSON, Markdown with every detector, pictures that are XML."""
    paths = {path.name: path for path in write(result, tmp_path / "out")}
    tables = json.loads(paths["score.json"].read_text("utf-8"))
    assert tables["detectors"].keys() == result["detectors"].keys()
    text = paths["score.md"].read_text("utf-8")
    assert all(f"## {name}\n" in text for name in result["detectors"])
    assert len(paths["outcomes.jsonl"].read_text("utf-8").splitlines()) == len(result["outcomes"])
    assert paths["short.md"].read_text("utf-8").startswith("| detector |")
    for name in ("psychometric.svg", "reliability.svg"):
        assert ElementTree.parse(paths[name]).getroot().tag.endswith("svg")


def test_short_table_is_shown(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """One line per detector, within the width of a terminal."""
    show(result)
    printed = capsys.readouterr().out
    assert "loss curve" in printed
    assert max(map(len, printed.splitlines())) <= 120


def test_predictions_are_written(data: Path, tmp_path: Path) -> None:
    """Into `runs`, with the error and the metric; −1 for none."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    assert write_predictions(folder) == 8
    rows = {
        row["run_id"]: row
        for path in run_files(folder, "runs")
        for row in pq.read_table(path).to_pylist()
    }
    loud, plain = rows["lr_spike_loud__s6"], rows["plain__s6"]
    assert (loud["flashback_prediction"], loud["flashback_error"]) == (loud["first_bad_step"], 0)
    assert loud["flashback_metric"]
    assert (plain["flashback_prediction"], plain["flashback_votes"]) == (-1, -1)
