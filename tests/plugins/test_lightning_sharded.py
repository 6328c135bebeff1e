"""FlashbackCallback with a model whose parameters are sharded over two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.schema import EXACT_FIELDS

pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LOCAL = {"params_hash", "state_hash"}  # a rank has but a part of what they are of


def train(folder: Path, case: str, status: int = 0) -> tuple[fb.StepSketchIndex, str]:
    """Run the script; its index and its log."""
    folder = folder / case
    folder.mkdir()
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = ROOT / "tests" / "plugins" / "_lightning_fsdp.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), case],
        env=env, capture_output=True, text=True, cwd=folder, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == (status == 0), done.stderr[-3000:]
    return fb.StepSketchIndex(folder / "run" / "sketch"), done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> fb.StepSketchIndex:
    """The sketch of the same model in one process."""
    return train(tmp_path_factory.mktemp("alone"), "alone")[0]


@pytest.mark.parametrize("case", ["sharded", "whole", "copies"])
def test_the_sketch_is_that_of_one_process(
    tmp_path: Path, alone: fb.StepSketchIndex, case: str
) -> None:
    """Shards (some empty), whole parameters between them, copies on each rank: one sketch."""
    index, log = train(tmp_path, case)
    assert "failed" not in log
    assert not [e for e in index.events if e["event"] in ("resume_check", "note", "outside")]
    np.testing.assert_array_equal(index.steps, np.arange(21))
    for name in alone.names:
        if name != "step_wall_ms":
            np.testing.assert_allclose(index[name], alone[name], rtol=1e-6, err_msg=name)
    for field in {f.name for f in EXACT_FIELDS} - LOCAL:
        wanted = alone[f"exact:{field}"]
        np.testing.assert_array_equal(index[f"exact:{field}"], wanted, err_msg=field)


def test_a_resume(tmp_path: Path, alone: fb.StepSketchIndex) -> None:
    """A fit from a distributed checkpoint goes on in the same index as if it had never ended."""
    index, log = train(tmp_path, "resumed")
    assert "goes on at step 14" in log
    np.testing.assert_array_equal(index.steps, np.arange(21))
    for name in ("loss", "grad_norm", "update_norm", "param_norm"):
        np.testing.assert_allclose(index[name], alone[name], rtol=1e-6, err_msg=name)
    assert not [e for e in index.events if e["event"] in ("resume_check", "note", "outside")]


def test_a_weight_of_rank_one(tmp_path: Path) -> None:
    """A weight that something changed on rank one is named by rank zero, with its step."""
    index, _ = train(tmp_path, "outside")
    found = [e for e in index.events if e["event"] == "outside"]
    assert [(e["step"], e["what"], e["tensors"], e["entries"]) for e in found] == [
        (9, "weights", ["body.3.weight"], [1])
    ]


@pytest.mark.parametrize(
    ("case", "kind", "name"),
    [
        ("weight_bit", "weights_changed", "body.3.weight"),
        ("state_bit", "state_changed", "exp_avg of body.3.weight"),
    ],
)
def test_one_bit_on_one_rank(tmp_path: Path, case: str, kind: str, name: str) -> None:
    """One flipped bit in what lies on rank one is reported with its rank and its step."""
    index, log = train(tmp_path, case)
    found = [e for e in index.events if e["event"] == "replica_divergence"]
    assert [(e["kind"], e["rank"], e["step"]) for e in found] == [(kind, 1, 9)]
    assert found[0]["text"].endswith(f"outside of the optimizer: {name}.")
    assert f"step 9 went wrong ({kind})" in log


def test_a_failure_on_one_rank(tmp_path: Path) -> None:
    """A sketch that fails on rank one ends on both ranks; the training goes on."""
    index, log = train(tmp_path, "broken")
    assert np.isfinite(index["grad_norm"][:9]).all()
    assert np.isnan(index["grad_norm"][9:]).all()
    assert np.isfinite(index["loss"]).all()
    assert "max_epochs=3` reached" in log


def test_a_crash_of_rank_one(tmp_path: Path) -> None:
    """What was recorded before rank one died is there."""
    assert len(train(tmp_path, "crash", status=3)[0]) >= 8


def test_a_prevented_step(tmp_path: Path) -> None:
    """All ranks leave out a step with an infinite gradient, and go on with finite weights."""
    index, _ = train(tmp_path, "prevented")
    np.testing.assert_array_equal(np.flatnonzero(index["exact:step_skipped"]), [9])
    assert index["update_norm"][9] == 0
    assert np.isfinite(index["loss"][10:]).all()
