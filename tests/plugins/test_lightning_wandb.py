"""FlashbackCallback beside Lightning's WandbLogger, read back from the offline run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("lightning.pytorch")
pytest.importorskip("wandb")
from tests.plugins._wandb_file import OfflineRun

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

SCRIPT = """
    import warnings
    warnings.filterwarnings("ignore")
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import WandbLogger
    from flashback_plugins.lightning import FlashbackCallback
    from tests.plugins._lightning_modules import loader, make_net

    class Net(pl.LightningModule):
        def on_before_backward(self, loss):
            self.log("train_loss", loss)

    module = make_net(Net)
    module.blow_up_at = 18
    pl.Trainer(max_epochs=3, accelerator="cpu", logger=WandbLogger(offline=True, project="test"),
               enable_progress_bar=False, enable_checkpointing=False, log_every_n_steps=5,
               callbacks=[FlashbackCallback()]).fit(module, loader())
"""


def test_wandb_logger(tmp_path: Path) -> None:
    """The run of the logger gets live scalars, one alert, the summary and both artifacts."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = OfflineRun(next(tmp_path.glob("wandb/offline-run-*/*.wandb")))
    steps = [r["flashback/step"] for r in run.rows if "flashback/update_norm" in r]
    assert steps == [0, 5, 10, 15, 20]
    assert [r["trainer/global_step"] for r in run.rows if "train_loss" in r] == [4, 9, 14, 19]
    assert len(run.alerts) == 1
    assert run.summary["flashback/first_bad_step"] == 18
    kept = {name.rpartition("-")[0] for name in run.artifacts}
    assert kept >= {"flashback-index", "flashback-report"}
