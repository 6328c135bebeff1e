"""`lightning` and `pytorch_lightning` are two packages with two classes of everything."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import flashback_core as fb

pytest.importorskip("lightning.pytorch")
pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

SCRIPT = """
    import importlib, sys, warnings
    warnings.filterwarnings("ignore")
    folder, trained_by, first, *others = sys.argv[1:]
    for name in (first, *others):
        importlib.import_module(name)
    from flashback_plugins.lightning import FlashbackCallback
    pl = importlib.import_module(trained_by)
    from tests.plugins._lightning_modules import loader, make_net
    loggers = importlib.import_module(f"{trained_by}.loggers")
    callback = FlashbackCallback()
    pl.Trainer(max_epochs=2, accelerator="cpu", logger=loggers.CSVLogger(folder),
               enable_progress_bar=False, callbacks=[callback]).fit(
        make_net(pl.LightningModule), loader())
    print([n for n in ("lightning", "pytorch_lightning") if n in sys.modules])
"""


@pytest.mark.parametrize(
    ("trained_by", "imported", "loaded"),
    [
        ("lightning.pytorch", ["json"], ["lightning"]),
        ("lightning.pytorch", ["lightning"], ["lightning"]),
        ("pytorch_lightning", ["pytorch_lightning"], ["pytorch_lightning"]),
        ("pytorch_lightning", ["lightning.pytorch"], ["lightning", "pytorch_lightning"]),
        ("lightning.pytorch", ["lightning.pytorch", "pytorch_lightning"],
         ["lightning", "pytorch_lightning"]),
    ],
)  # fmt: skip
def test_namespaces(
    tmp_path: Path, trained_by: str, imported: list[str], loaded: list[str]
) -> None:
    """The callback works in both trainers, whatever was imported, and loads no other package."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), trained_by, *imported]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == str(loaded)
    run = tmp_path / "lightning_logs" / "version_0" / "flashback"
    assert len(fb.StepSketchIndex(run / "sketch")) == 14
    assert (run / "report.html").exists()
