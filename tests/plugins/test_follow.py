"""`flashback detect --follow` and `--budget`, beside a process that really records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashback_core as fb
from flashback_core.detectors.published import PublishedDetector
from flashback_core.export import export_table
from flashback_core.testing import healthy_run, run_with_fault
from flashback_plugins._follow import Follower
from flashback_plugins.cli import main

ROOT = Path(__file__).parents[2]

RECORD = """
import sys, time
import torch
from torch import nn
import flashback_core as fb

folder, nan_at, n_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
made = torch.Generator().manual_seed(1)
with fb.Recorder(folder, model, optimizer, write_report=False) as recorder:
    print("recording", flush=True)
    for step in range(n_steps):
        x = torch.randn(32, 8, generator=made)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if step == nan_at:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.log(loss=loss)
        time.sleep(0.02)
"""


def start(*command: object) -> subprocess.Popen[str]:
    """A process whose standard output is read here."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def line_of(process: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that records into ``run``, with NaN at step 60 of so many that it does not end."""
    process = start("-c", RECORD, tmp_path / "run", 60, 100_000)
    assert line_of(process) == "recording"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]  # it is a pipe


def wait_for_rows(folder: Path, n: int) -> fb.StepSketchIndex:
    """The index, once it holds `n` rows."""
    while True:
        index = fb.StepSketchIndex(folder / "sketch")
        if len(index) >= n:
            return index
        time.sleep(0.05)


def test_findings_come_while_another_process_records(
    tmp_path: Path, recording: subprocess.Popen[str]
) -> None:
    """A finding is printed while the run goes on; a killed run ends the following."""
    wait_for_rows(tmp_path / "run", 5)
    command = ("-m", "flashback_plugins.cli", "detect", "--follow", tmp_path / "run")
    follower = start(*command, "--exit-code")
    assert line_of(follower).startswith("following ")
    assert line_of(follower).startswith("bad    step 60  nonfinite  confidence 0.99")
    assert recording.poll() is None
    recording.send_signal(signal.SIGKILL)
    recording.wait()
    *more, end = follower.communicate(timeout=60)[0].splitlines()
    assert end.startswith("the recording has ended after ")
    assert not any("step 60 " in text for text in more)
    assert follower.returncode == 1


def test_ctrl_c_ends_it(tmp_path: Path, recording: subprocess.Popen[str]) -> None:
    """Ctrl-C is the usual end: a last line, exit status 0, and the run goes on."""
    wait_for_rows(tmp_path / "run", 5)
    follower = start("-m", "flashback_plugins.cli", "detect", "--follow", tmp_path / "run")
    assert line_of(follower).startswith("following ")
    line_of(follower)
    follower.send_signal(signal.SIGINT)
    assert "the run itself goes on" in follower.communicate(timeout=60)[0]
    assert follower.returncode == 0
    assert recording.poll() is None


def write(folder: Path, first: int, run: fb.MemoryTable) -> None:
    """Write `run` into an index, from step `first` on."""
    with fb.StepSketchIndex(folder / "sketch", "a") as index:
        index.resume_at(first)
        for step, values in enumerate(run.values[first:], first):
            index.append(step, values, {"optimizer": 0})


def found(follower: Follower) -> list[int]:
    """Steps of the bad findings until the run is over."""
    return [f.step for f in follower.findings() if f.severity == "bad"]


def test_a_sealed_run_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has ended is read through, with the findings of its report; then it is over."""
    monkeypatch.setattr("flashback_plugins._follow.PAUSE_SECONDS", 0.01)
    write(tmp_path, 0, run_with_fault(first_bad_step=150, n_steps=200, kind="update_jump"))
    assert main(["detect", "--follow", str(tmp_path), "--exit-code"]) == 1
    begin, *bad, end = capsys.readouterr().out.splitlines()
    assert "following" in begin
    assert len(bad) == 1
    assert "step 150" in bad[0]
    assert end == "the recording has ended after 200 steps"


def test_a_run_that_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a resume supersedes are forgotten; the new ones are judged by those before."""
    monkeypatch.setattr("flashback_plugins._follow.PAUSE_SECONDS", 0.01)
    write(tmp_path, 0, run_with_fault(first_bad_step=150, n_steps=230, kind="update_jump")[:200])
    follower = Follower(fb.StepSketchIndex(tmp_path / "sketch"), fb.FirstBadStepDetector())
    assert found(follower) == [150]
    write(tmp_path, 120, run_with_fault(first_bad_step=170, n_steps=230, kind="update_jump"))
    follower.is_over = False
    assert found(follower) == [170]
    assert follower.n_rows == 200 + 110


def test_a_detector_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--detector` and `--budget` hold while following too."""
    monkeypatch.setattr("flashback_plugins._follow.PAUSE_SECONDS", 0.01)
    write(tmp_path, 0, run_with_fault(first_bad_step=150, n_steps=200, kind="update_jump"))
    deaf = fb.FirstBadStepDetector(thresholds={"nothing": 1.0}).save(tmp_path / "deaf")
    status = ["detect", "--follow", str(tmp_path), "--exit-code"]
    assert main([*status, "--detector", str(deaf)]) == 0
    assert main([*status, "--budget", "0.5"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json"], "does not go with --json"),
        (["--html", "page.html", "--run-id", "3"], "does not go with --html, --run-id"),
        ([], "reads a run folder on this machine"),
    ],
    ids=["json", "page", "export"],
)
def test_what_does_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """One clear error."""
    path = export_table(healthy_run(20), tmp_path / "run.csv")
    assert main(["detect", "--follow", str(path), *options]) == 2
    assert message in capsys.readouterr().err


def report_at(folder: Path, budget: float, capsys: pytest.CaptureFixture[str]) -> dict:
    """The report of the command at a budget."""
    capsys.readouterr()
    assert main(["detect", str(folder), "--json", "--budget", str(budget)]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--budget` sets the thresholds, as `at_budget` does, and the report says which."""
    run = run_with_fault(first_bad_step=150, n_steps=200, kind="update_jump")
    path = export_table(run, tmp_path / "run.parquet")
    for budget in (0.5, 30.0):
        found = report_at(path, budget, capsys)
        wanted = fb.FirstBadStepDetector().at_budget(budget).predict(fb.open_run(path))
        assert found["confidence"] == pytest.approx(wanted.confidence)
        assert found["first_bad_step"] == wanted.first_bad_step == 150
        assert found["facts"]["budget"] == budget


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "many"])
def test_no_budget(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget is a number above 0."""
    with pytest.raises(SystemExit) as end:
        main(["detect", "nowhere", "--budget", budget])
    assert end.value.code == 2
    assert "argument --budget" in capsys.readouterr().err


def test_detectors_that_no_budget_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The published detector, and thresholds given by hand: one clear error."""
    path = export_table(healthy_run(80), tmp_path / "run.parquet")
    PublishedDetector().save(tmp_path / "published")
    fb.FirstBadStepDetector(thresholds={"x": 1.0}).save(tmp_path / "mine")
    for name, message in (("published", "published detector knows no budget"),
                          ("mine", "thresholds were given by hand")):  # fmt: skip
        folder = str(tmp_path / name)
        assert main(["detect", str(path), "--detector", folder, "--budget", "5"]) == 2
        assert message in (told := capsys.readouterr().err)
        assert "leave out --budget" in told
