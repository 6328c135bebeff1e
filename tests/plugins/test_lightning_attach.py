"""The installed entry point puts the callback into every Trainer, where it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import flashback_core as fb

pytest.importorskip("lightning.pytorch")
ROOT = Path(__file__).parents[2]
GROUPS = {"lightning.pytorch": "lightning.pytorch.callbacks_factory",
          "pytorch_lightning": "pytorch_lightning.callbacks_factory"}  # fmt: skip

SCRIPT = """
    import importlib, sys, warnings
    warnings.filterwarnings("ignore")
    pl = importlib.import_module(sys.argv[1])
    from tests.plugins._lightning_modules import loader, make_net
    pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
               enable_checkpointing=False).fit(make_net(pl.LightningModule), loader())
    print("flashback_plugins.lightning" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("namespace", GROUPS)
@pytest.mark.parametrize("wanted", ["1", "0"])
def test_a_script_that_knows_nothing_of_it(tmp_path: Path, namespace: str, wanted: str) -> None:
    """A script without a line of ours is recorded with FLASHBACK_LIGHTNING=1, and only then."""
    pytest.importorskip(namespace)
    if not entry_points(group=GROUPS[namespace]).select(name="flashback"):
        pytest.skip("flashback-plugins is not installed, so that it has no entry points")
    run = tmp_path / "run"
    env = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FLASHBACK_LIGHTNING": wanted,
        "FLASHBACK_DIR": str(run),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), namespace],
        env=env, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert run.exists() == (wanted == "1")
    if wanted == "1":
        assert len(fb.StepSketchIndex(run / "sketch")) == 14
        assert (run / "report.html").exists()
