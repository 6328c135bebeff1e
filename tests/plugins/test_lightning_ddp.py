"""FlashbackCallback in two processes: rank zero writes, and the ranks watch each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashback_core as fb

pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def train(folder: Path, watch: str = "watched", fault: str = "none", how: str = "plain") -> str:
    """Run the script; its log."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = ROOT / "tests" / "plugins" / "_lightning_ddp.py"
    command = [sys.executable, str(script), str(folder), watch, fault, how]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, cwd=folder, timeout=300, check=False
    )
    assert (done.returncode == 0) == (fault != "crash"), done.stderr[-3000:]
    return done.stderr


def seen(folder: Path, watch: str, rank: int) -> dict[str, Any]:
    """What a rank noted."""
    return dict(json.loads((folder / f"{watch}-{rank}.json").read_text()))


def mean_loss(folder: Path) -> np.ndarray[Any, Any]:
    """Mean over the ranks of the loss of every batch, as they noted it."""
    return np.mean([seen(folder, "watched", r)["losses"] for r in (0, 1)], axis=0)


@pytest.mark.parametrize("how", ["plain", "reduce", "scaler", "accumulate", "manual", "raw"])
def test_rank_zero_writes_the_loss_of_all(tmp_path: Path, how: str) -> None:
    """Each row has the mean of the ranks' losses; all losses and weights are as without it."""
    log = train(tmp_path, "watched", how=how)
    train(tmp_path, "alone", how=how)
    assert "failed" not in log
    assert [seen(tmp_path, "watched", r) for r in (0, 1)] == [
        seen(tmp_path, "alone", r) for r in (0, 1)
    ]
    wanted = mean_loss(tmp_path)
    if how == "accumulate":
        wanted = np.array([np.mean(w) for e in range(3) for w in
                           (wanted[4 * e : 4 * e + 3], wanted[4 * e + 3 : 4 * e + 4])])  # fmt: skip
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    np.testing.assert_allclose(index["loss"], wanted, rtol=1e-6)
    assert abs(wanted - seen(tmp_path, "watched", 0)["losses"][: len(wanted)]).max() > 0.01


def test_rank_zero_writes_the_reduced_gradient(tmp_path: Path) -> None:
    """One index, one row per step, gradients as all ranks have them."""
    train(tmp_path, "watched")
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    zero = seen(tmp_path, "watched", 0)
    assert len(index) == len(zero["gradients"]) == 12
    np.testing.assert_allclose(index["grad_norm"], zero["gradients"], rtol=1e-5)


@pytest.mark.parametrize("how", ["plain", "reduce"])
def test_a_bad_loss_on_one_rank(tmp_path: Path, how: str) -> None:
    """An infinite loss on rank one alone is the loss of the row, and an event names the rank."""
    train(tmp_path, fault="nan", how=how)
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    assert np.flatnonzero(~np.isfinite(index["loss"]))[0] == 5
    assert np.isfinite(seen(tmp_path, "watched", 0)["losses"][5])
    notes = [(e["step"], e["text"]) for e in index.events if e["event"] == "note"]
    assert notes == [(5, "the loss was NaN or infinite on 1 of 2 ranks: rank 1")]


@pytest.mark.parametrize(("fault", "rows"), [("no_recorder", 0), ("hook", 5)])
def test_a_failure_on_rank_zero(tmp_path: Path, fault: str, rows: int) -> None:
    """What fails on rank zero alone costs a warning; the ranks go on together to the end."""
    log = train(tmp_path, fault=fault)
    assert "FlashbackCallback failed" in log
    assert len(seen(tmp_path, "watched", 1)["losses"]) == 12
    sketch = tmp_path / "run" / "sketch"
    assert (len(fb.StepSketchIndex(sketch)) if rows else 0) >= rows


def test_a_crash_of_rank_one(tmp_path: Path) -> None:
    """What was recorded before rank one died is there."""
    train(tmp_path, fault="crash")
    assert len(fb.StepSketchIndex(tmp_path / "run" / "sketch")) >= 4


def test_one_bit_on_one_rank(tmp_path: Path) -> None:
    """One flipped bit of one weight on rank one is found, with its rank and its step."""
    log = train(tmp_path, fault="bit")
    found = [
        e
        for e in fb.StepSketchIndex(tmp_path / "run" / "sketch").events
        if e["event"] == "replica_divergence"
    ]
    assert [(e["rank"], e["step"]) for e in found] == [(1, 5)]
    assert "step 5 went wrong (replica_divergence)" in log
