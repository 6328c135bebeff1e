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


def train(folder: Path, watch: str = "watched", fault: str = "none") -> str:
    """Run the script; its log."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = ROOT / "tests" / "plugins" / "_lightning_ddp.py"
    command = [sys.executable, str(script), str(folder), watch, fault]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, cwd=folder, timeout=300, check=False
    )
    assert (done.returncode == 0) == (fault != "crash"), done.stderr[-3000:]
    return done.stderr


def seen(folder: Path, watch: str, rank: int) -> dict[str, Any]:
    """What a rank noted."""
    return dict(json.loads((folder / f"{watch}-{rank}.json").read_text()))


def test_rank_zero_writes_the_reduced_gradient(tmp_path: Path) -> None:
    """One index, one row per step, gradients as all ranks have them; losses as without it."""
    train(tmp_path, "watched")
    train(tmp_path, "alone")
    assert [seen(tmp_path, "watched", r) for r in (0, 1)] == [
        seen(tmp_path, "alone", r) for r in (0, 1)
    ]
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    zero = seen(tmp_path, "watched", 0)
    assert len(index) == len(zero["gradients"]) == 12
    np.testing.assert_allclose(index["grad_norm"], zero["gradients"], rtol=1e-5)
    np.testing.assert_allclose(index["loss"], zero["losses"])


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
