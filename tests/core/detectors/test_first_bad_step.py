"""The default detector as a whole: what a verdict may depend on, and what not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.detectors.first_bad_step import SHIPPED
from flashback_core.errors import DetectorError, NoBaselineError
from flashback_core.schema import SketchSchema
from flashback_core.table import MemoryTable, StepTable
from flashback_core.testing import FAULTS, healthy_run, run_with_fault

DETECTOR = FirstBadStepDetector()


def rebuilt(table: StepTable, **columns: np.ndarray) -> MemoryTable:
    """`table` with some columns replaced."""
    data = {name: table.column(name) for name in table} | columns
    return MemoryTable(table.steps, data, events=table.events)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("step", [90, 250, 380])
def test_exact_step(kind: str, step: int) -> None:
    """Each made-up fault is found at its very step, with evidence and metrics to show."""
    report = DETECTOR.predict(run_with_fault(first_bad_step=step, kind=kind, seed=step))
    assert report.first_bad_step == step
    assert report.interval is not None
    assert report.interval[0] <= step <= report.interval[1]
    assert 0.5 <= report.confidence <= 1.0
    assert report.evidence
    assert report.top_metrics
    steps = [metric.step for metric in report.top_metrics if metric.metric != "loss"]
    assert steps == sorted(steps)


@pytest.mark.parametrize("seed", range(10))
def test_healthy(seed: int) -> None:
    """A run in which nothing happens has no finding at all."""
    report = DETECTOR.predict(healthy_run(600, seed=seed))
    assert (report.status, report.findings) == ("healthy", ())


@pytest.mark.parametrize("rows", [30, 100, 249, 251, 300])
def test_prefix(rows: int) -> None:
    """The score of a prefix is the prefix of the score: nothing looks ahead or at the length."""
    run = run_with_fault(first_bad_step=250)
    np.testing.assert_array_equal(DETECTOR.score(run[:rows]), DETECTOR.score(run)[:rows])


def test_no_alarm_before_the_fault_is_there() -> None:
    """The rows before a fault, alone, are healthy; with the fault's first row the run is bad."""
    run = run_with_fault(first_bad_step=250)
    assert DETECTOR.predict(run[:250]).status == "healthy"
    assert DETECTOR.predict(run[:251]).first_bad_step == 250


def test_scale_of_the_gradients_does_not_matter() -> None:
    """Gradients a thousand times as large all through give the same verdict."""
    run = run_with_fault(first_bad_step=250)
    parts = ("grad_norm", "max_abs", "grad_max")
    names = [n for n in run.names if n.split(":")[-1] in parts or n.startswith("grad_norm_p")]
    louder = rebuilt(run, **{name: 1024.0 * run.column(name) for name in names})
    # histograms keep their bins: only their mean, relative to the norm, moves by a constant
    one, other = DETECTOR.predict(run), DETECTOR.predict(louder)
    assert (one.first_bad_step, one.kind) == (other.first_bad_step, other.kind)


def test_unit_of_the_learning_rate_does_not_matter() -> None:
    """A learning rate in other units gives the same verdict."""
    run = run_with_fault(first_bad_step=250, kind="lr_jump")
    other = rebuilt(run, lr=1e4 * run.column("lr"))
    assert DETECTOR.predict(run).first_bad_step == DETECTOR.predict(other).first_bad_step == 250


def test_names_and_order_of_groups_do_not_matter() -> None:
    """Groups may have any names."""
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    renamed = {}
    for name in run:
        parts = name.split(":")
        if name.startswith("group:"):
            parts[1] = parts[1][::-1]
        renamed[":".join(parts)] = run.column(name)
    other = DETECTOR.predict(MemoryTable(run.steps, renamed))
    assert other.first_bad_step == DETECTOR.predict(run).first_bad_step == 250
    np.testing.assert_allclose(
        DETECTOR.score(run), DETECTOR.score(MemoryTable(run.steps, renamed)), rtol=1e-9
    )


@pytest.mark.parametrize("groups", [("all",), tuple(f"expert_{i}" for i in range(20))])
def test_any_number_of_groups(groups: tuple[str, ...]) -> None:
    """One group or twenty: an answer, and a healthy run is healthy."""
    assert DETECTOR.predict(healthy_run(200, schema=SketchSchema(groups))).status == "healthy"


@pytest.mark.parametrize("names", [("loss",), ("loss", "grad_norm")])
def test_few_metrics(names: tuple[str, ...]) -> None:
    """With the loss alone, or the loss and the gradient norm, a large jump is still found."""
    report = DETECTOR.predict(run_with_fault(first_bad_step=250)[names])
    assert report.first_bad_step is not None
    assert abs(report.first_bad_step - 250) <= 2
    assert DETECTOR.predict(healthy_run()[names]).status == "healthy"


def test_holes_blind_nothing() -> None:
    """NaN and infinity scattered over the statistics before a fault change no verdict."""
    run = run_with_fault(first_bad_step=250)
    rng = np.random.default_rng(1)
    holes = {}
    for name in run.names:
        if name.split(":")[-1] in ("var", "sign_flip", "max_abs", "upd_param_ratio"):
            values = np.array(run.column(name))
            values[rng.random(len(values)) < 0.05] = np.nan
            values[rng.random(len(values)) < 0.02] = np.inf
            holes[name] = values
    assert DETECTOR.predict(rebuilt(run, **holes)).first_bad_step == 250


def test_sparse_and_gapped_steps() -> None:
    """Logged every tenth step, with a hole in between: steps keep their own numbers."""
    run = run_with_fault(first_bad_step=250)
    steps = 7 + 10 * np.arange(len(run)) + np.where(np.arange(len(run)) > 150, 5000, 0)
    data = {name: run.column(name) for name in run}
    report = DETECTOR.predict(MemoryTable(steps, data))
    assert report.first_bad_step == steps[250]
    assert (report.first_step, report.last_step) == (steps[0], steps[-1])


def test_each_optimizer_is_its_own_series() -> None:
    """Two optimizers that take turns are two runs; the fault of one is found in its rows."""
    one, two = run_with_fault(first_bad_step=250), healthy_run(seed=7)
    rows = np.arange(800)
    data = {}
    for name in one:
        data[name] = np.where(rows % 2, two.column(name)[rows // 2], one.column(name)[rows // 2])
        if not name.endswith("var"):
            data[name] = data[name] * np.where(rows % 2, 50, 1)
    data["exact:optimizer"] = rows % 2
    data["exact:step_skipped"] = np.zeros(800, int)
    report = DETECTOR.predict(MemoryTable(rows, data))
    assert report.first_bad_step == 500


def test_short_runs() -> None:
    """A short run gets no verdict and is told what it takes, unless something is certain."""
    report = DETECTOR.predict(healthy_run(20))
    assert report.status == "not_enough_data"
    assert str(DETECTOR.min_steps) in report.findings[0].evidence[0]
    assert report.first_bad_step is None
    broken = DETECTOR.predict(run_with_fault(first_bad_step=5, n_steps=20, kind="nonfinite"))
    assert (broken.status, broken.first_bad_step, broken.kind) == ("bad", 5, "nonfinite")


def test_declared_events_are_excused() -> None:
    """A change that the loop declared is not a finding; undeclared it is one."""
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    event = {"event": "expect", "step": 250, "kind": "batch_size"}
    declared = MemoryTable(run.steps, {n: run.column(n) for n in run}, events=[event])
    assert DETECTOR.predict(declared).status == "healthy"
    assert DETECTOR.predict(run).status == "bad"


def test_fit_puts_thresholds_over_healthy_runs() -> None:
    """After a fit on labelled runs their healthy steps raise no alarm, and faults still do."""
    runs = [healthy_run(300, seed=seed) for seed in range(3)]
    fault = run_with_fault(first_bad_step=200, seed=8)
    detector = FirstBadStepDetector().fit([*runs, fault], [None, None, None, 200])
    assert all(detector.predict(run).status == "healthy" for run in runs)
    assert detector.predict(fault).first_bad_step == 200
    with pytest.raises(NoBaselineError, match="healthy steps"):
        FirstBadStepDetector().fit([healthy_run(30)], [None])


def test_round_trip(tmp_path: Path) -> None:
    """Saved and loaded, it is the same detector; its folder is plain JSON."""
    detector = FirstBadStepDetector(min_steps=80, budget=10.0)
    again = FirstBadStepDetector.load(detector.save(tmp_path / "new"))
    assert vars(again) == vars(detector)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["version"] == "2"


def test_bad_settings(tmp_path: Path) -> None:
    """A missing folder, broken JSON, an unknown version and odd settings are clear errors."""
    with pytest.raises(DetectorError, match="folder of a saved detector"):
        FirstBadStepDetector.load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DetectorError, match="not JSON"):
        FirstBadStepDetector.load(tmp_path)
    (tmp_path / "config.json").write_text('{"version": "9"}')
    with pytest.raises(DetectorError, match="version '9'"):
        FirstBadStepDetector.load(tmp_path)
    with pytest.raises(DetectorError, match="budget"):
        FirstBadStepDetector(budget=0.0)
    with pytest.raises(DetectorError, match="fit the detector"):
        FirstBadStepDetector(thresholds={"loss/point/largest": 0.0})


def test_shipped_settings_are_the_default() -> None:
    """The folder that ships is what the constructor takes."""
    assert vars(FirstBadStepDetector.load(SHIPPED)) == vars(DETECTOR)
    assert len(DETECTOR.thresholds) > 90


def test_a_budget_moves_all_thresholds() -> None:
    """A smaller budget is a higher threshold; the score is in units of the budget's own."""
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    strict = DETECTOR.at_budget(0.1)
    factor = DETECTOR.score_ratio_at(0.1)
    assert factor > 1.0
    assert strict.budget == 0.1
    np.testing.assert_allclose(strict.score(run) * factor, DETECTOR.score(run))
    assert strict.predict(run).first_bad_step == 250
    with pytest.raises(DetectorError, match="given by hand"):
        FirstBadStepDetector(thresholds={"loss/point/largest": 2.0}).score_ratio_at(1.0)


def test_two_faults_are_two_findings() -> None:
    """A second fault, long after the first, is a finding of its own; the first stands first."""
    run = run_with_fault(first_bad_step=250, kind="update_jump", n_steps=900)
    names = [n for n in run.names if "update_norm" in n]
    later = np.where(np.arange(900) < 700, 1.0, 0.1)
    two = rebuilt(run, **{name: later * run.column(name) for name in names})
    report = DETECTOR.predict(two)
    assert [f.step for f in report.findings if f.severity == "bad"] == [250, 700]


def test_a_milestone_is_reported_as_a_change() -> None:
    """An undeclared drop of the learning rate, with its updates, leaves the run healthy."""
    run = healthy_run()
    names = [n for n in run.names if n == "lr" or "update_" in n or n.endswith("ratio")]
    names = [n for n in names if "nonfinite" not in n]
    drop = np.where(np.arange(len(run)) < 250, 1.0, 0.1)
    report = DETECTOR.predict(rebuilt(run, **{name: drop * run.column(name) for name in names}))
    assert report.status == "healthy"
    assert [(f.step, f.kind) for f in report.changes] == [(250, "lr_milestone")]


def test_missing_rows_are_no_fault() -> None:
    """Fifty steps that nobody logged do not make the weights jump."""
    run = healthy_run(400)
    keep = (np.arange(400) < 200) | (np.arange(400) >= 250)
    report = DETECTOR.predict(run[keep])
    assert (report.status, report.findings) == ("healthy", ())


@pytest.mark.parametrize("columns", [{"val_acc": np.ones(99)}, {"loss": np.full(99, np.nan)}, {}])
def test_nothing_to_judge(columns: dict[str, np.ndarray]) -> None:
    """A table without a column that can be judged gets no verdict, whatever its length."""
    report = DETECTOR.predict(MemoryTable(np.arange(99), columns))
    assert report.status != "healthy"


def test_settings_that_are_no_numbers() -> None:
    """A budget in words, an endless one, and lists of different lengths are clear errors."""
    for budget in ("1", float("inf"), float("nan"), None):
        with pytest.raises(DetectorError, match="a number above 0"):
            FirstBadStepDetector(budget=budget)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(DetectorError, match="one of each"):
        FirstBadStepDetector().fit([healthy_run(99)], [None, None])
