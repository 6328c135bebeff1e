"""`autolog` with both Lightnings, in a script of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")
mlflow = pytest.importorskip("mlflow")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, warnings
from importlib import import_module
import mlflow, torch
import flashback_plugins.mlflow as fm

mlflow.set_tracking_uri("sqlite:///m.db")
client = mlflow.MlflowClient()
finders = list(sys.meta_path)
fm.autolog()
fm.autolog()
seen = {}

def trainer(namespace, **options):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False,
                 enable_checkpointing=False, accelerator="cpu", max_epochs=1)
    return namespace.Trainer(**(quiet | options))

def module(namespace, fail=False):
    class Small(namespace.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, i):
            if fail and i == 10:
                raise RuntimeError("boom")
            return self.layer(batch[0]).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    return Small()

def data():
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(160, 4)), batch_size=8)

def newest():
    return client.search_runs(["0"], order_by=["attributes.start_time DESC"])[0]

warnings.simplefilter("ignore")
for name in ("lightning.pytorch", "pytorch_lightning"):
    namespace = import_module(name)
    fits = seen[name] = {"patched": hasattr(vars(namespace.Trainer)["fit"], "__wrapped__")}
    here = trainer(namespace)
    before = list(here.callbacks)
    with mlflow.start_run() as run:
        here.fit(module(namespace), data())
    fits["active"] = dict(client.get_run(run.info.run_id).data.tags)
    fits["files"] = [f.path for f in client.list_artifacts(run.info.run_id, "flashback")]
    fits["callbacks_kept"] = here.callbacks == before
    trainer(namespace).fit(module(namespace), data())
    fits["own"] = [newest().info.status, dict(newest().data.tags), mlflow.active_run() is None]
    try:
        trainer(namespace).fit(module(namespace, fail=True), data())
    except RuntimeError as error:
        fits["failed"] = [newest().info.status, str(error), dict(newest().data.tags)]
    from flashback_plugins.lightning import FlashbackCallback
    n_runs = len(client.search_runs(["0"]))
    mine = FlashbackCallback("mine-" + name)
    trainer(namespace, callbacks=[mine]).fit(module(namespace), data())
    fits["mine"] = [len(client.search_runs(["0"])) - n_runs, mine.report is not None]
originals = {n: vars(sys.modules[n].Trainer)["fit"].__wrapped__ for n in seen}
fm.autolog(disable=True)
for name, original in originals.items():
    seen[name]["reverted"] = vars(sys.modules[name].Trainer)["fit"] is original
seen["finders"] = [f for f in sys.meta_path if type(f).__module__.startswith("flashback")] == []
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script saw."""
    folder = tmp_path_factory.mktemp("autolog")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "FLASHBACK_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=folder, env={**kept, "PYTHONPATH": str(ROOT)},
        text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


NAMESPACES = pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])


@NAMESPACES
def test_a_training_logs_into_the_active_run(seen: dict[str, Any], name: str) -> None:
    """A trainer without a callback of ours gets one for that fit; report and tags arrive."""
    assert seen[name]["patched"]
    assert "flashback.status" in seen[name]["active"]
    assert "flashback/index.parquet" in seen[name]["files"]
    assert seen[name]["callbacks_kept"]


@NAMESPACES
def test_a_training_outside_of_a_run_gets_its_own(seen: dict[str, Any], name: str) -> None:
    """The run is started for the fit and ends with it."""
    status, tags, nothing_active = seen[name]["own"]
    assert status == "FINISHED"
    assert "flashback.status" in tags
    assert nothing_active


@NAMESPACES
def test_a_training_that_fails(seen: dict[str, Any], name: str) -> None:
    """The exception comes through, the run is marked as failed and has its report."""
    status, error, tags = seen[name]["failed"]
    assert (status, error) == ("FAILED", "boom")
    assert "flashback.status" in tags


@NAMESPACES
def test_a_callback_of_the_user_is_enough(seen: dict[str, Any], name: str) -> None:
    """A trainer that has a FlashbackCallback is left alone; no run is started for it."""
    assert seen[name]["mine"] == [0, True]


@NAMESPACES
def test_disable_takes_everything_back(seen: dict[str, Any], name: str) -> None:
    """`Trainer.fit` is the very function that it was, and no import is watched any more."""
    assert seen[name]["reverted"]
    assert seen["finders"]
