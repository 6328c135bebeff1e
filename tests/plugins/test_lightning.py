"""FlashbackCallback in the life of a run: where it writes, when it ends, what it keeps."""

from __future__ import annotations

import csv
import os
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashback_core as fb
from flashback_core.errors import FlashbackWarning

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402  # after importorskip
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger  # noqa: E402

from flashback_plugins.lightning import FlashbackCallback, callbacks  # noqa: E402
from tests.plugins._lightning_modules import loader, make_net  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:.*LeafSpec.*")
ROOT = Path(__file__).parents[2]


def net(**settings: Any) -> Any:
    """A small module."""
    return make_net(pl.LightningModule, **settings)


def trainer(*more: Any, **settings: Any) -> Any:
    """A trainer of 14 steps that is quiet."""
    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2,
        "callbacks": list(more),
    }  # fmt: skip
    return pl.Trainer(**quiet | settings)


def rows(folder: Path | None) -> fb.StepSketchIndex:
    """The index of the run in `folder`."""
    assert folder is not None
    return fb.StepSketchIndex(folder / "sketch")


class Fails(pl.Callback):
    """Raises after some steps."""

    def __init__(self, error: BaseException, at: int = 5) -> None:
        self.error, self.at = error, at

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Raise."""
        if trainer.global_step == self.at:
            raise self.error


# -- where ---------------------------------------------------------------------------------------


def test_no_arguments_and_no_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a logger it is a folder of the time, below the trainer's root; it is said once."""
    callback = FlashbackCallback()
    with caplog.at_level("INFO"):
        trainer(callback, default_root_dir=tmp_path).fit(net(), loader())
    assert callback.dir is not None
    assert callback.dir.parent == tmp_path / "flashback"
    assert len(rows(callback.dir)) == 14
    said = [r.message for r in caplog.records if r.message.startswith("flashback records")]
    assert said == [f"flashback records in {callback.dir}"]


def test_nothing_on_standard_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output stays the script's own."""
    trainer(FlashbackCallback(tmp_path)).fit(net(), loader())
    assert capfd.readouterr().out == ""


def test_log_dir_of_the_run(tmp_path: Path) -> None:
    """A logger with a folder for each run gets the run folder inside of it."""
    callback = FlashbackCallback()
    trainer(callback, logger=CSVLogger(tmp_path)).fit(net(), loader())
    assert callback.dir == tmp_path / "lightning_logs" / "version_0" / "flashback"
    assert {p.name for p in callback.dir.iterdir()} >= {"sketch", "report.html", "report.json"}


def test_two_fits_of_two_trainers(tmp_path: Path) -> None:
    """The same callback in a second trainer records a second run elsewhere."""
    callback = FlashbackCallback()
    folders = []
    for _ in range(2):
        trainer(callback, default_root_dir=tmp_path).fit(net(), loader())
        folders.append(callback.dir)
    assert folders[0] != folders[1]
    assert [len(rows(f)) for f in folders] == [14, 14]


def test_same_folder_twice(tmp_path: Path) -> None:
    """A run from step 0 into the same folder supersedes the run before, which is kept."""
    for epochs in (2, 1):
        trainer(FlashbackCallback(tmp_path), max_epochs=epochs).fit(net(), loader())
    assert len(rows(tmp_path)) == 7
    assert len(rows(tmp_path).superseded) == 14


def test_a_second_fit_goes_on(tmp_path: Path) -> None:
    """Fitting again with the same trainer goes on in the same index, at the next step."""
    callback = FlashbackCallback()
    again = trainer(callback, default_root_dir=tmp_path)
    again.fit(net(), loader())
    first = callback.dir
    again.fit_loop.max_epochs = 4
    again.fit(net(), loader())
    assert callback.dir == first
    np.testing.assert_array_equal(rows(first).steps, np.arange(28))


def test_fast_dev_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fast_dev_run` tries everything out and leaves no file."""
    monkeypatch.chdir(tmp_path)
    callback = FlashbackCallback()
    trainer(callback, fast_dev_run=2).fit(net(), loader())
    assert callback.dir is None
    assert list(tmp_path.rglob("*")) == []


# -- resume --------------------------------------------------------------------------------------


def checkpointed(folder: Path, *more: Any, every: int = 5, **settings: Any) -> Any:
    """A trainer that keeps a checkpoint of every fifth step."""
    saver = ModelCheckpoint(folder / "ckpt", every_n_train_steps=every, save_top_k=-1,
                            filename="{step}")  # fmt: skip
    return trainer(*more, saver, enable_checkpointing=True, default_root_dir=folder, **settings)


def test_resume_goes_on_in_the_same_index(tmp_path: Path) -> None:
    """A fit from a checkpoint goes on where that was made; the steps after it are superseded."""
    callback = FlashbackCallback()
    checkpointed(tmp_path, callback).fit(net(), loader())
    resumed = FlashbackCallback()
    path = str(tmp_path / "ckpt" / "step=5.ckpt")
    checkpointed(tmp_path, resumed, max_epochs=3).fit(net(), loader(), ckpt_path=path)
    assert resumed.dir == callback.dir
    index = rows(resumed.dir)
    np.testing.assert_array_equal(index.steps, np.arange(21))
    np.testing.assert_array_equal(index.superseded.steps, np.arange(5, 14))


def test_resume_of_a_checkpoint_without_flashback(tmp_path: Path) -> None:
    """Steps are counted from the checkpoint's own where it knows nothing of flashback."""
    checkpointed(tmp_path).fit(net(), loader())
    path = str(tmp_path / "ckpt" / "step=10.ckpt")
    callback = FlashbackCallback(tmp_path / "run")
    checkpointed(tmp_path, callback).fit(net(), loader(), ckpt_path=path)
    np.testing.assert_array_equal(rows(callback.dir).steps, [10, 11, 12, 13])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_clean_resume_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, optimizer: str
) -> None:
    """After a resume that brought everything back nothing is said of it."""
    checkpointed(tmp_path, FlashbackCallback(), every=7).fit(net(optimizer=optimizer), loader())
    path = str(tmp_path / "ckpt" / "step=7.ckpt")
    callback = FlashbackCallback()
    with caplog.at_level("INFO"):
        checkpointed(tmp_path, callback, max_epochs=3).fit(
            net(optimizer=optimizer), loader(), ckpt_path=path
        )
    assert not [r for r in caplog.records if "goes on at step 7, and" in r.message]
    assert not [e for e in rows(callback.dir).events if e["event"] == "resume_check"]


def test_what_a_resume_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Moments and a learning rate that did not carry over are named, at the step of the resume."""
    checkpointed(tmp_path, FlashbackCallback()).fit(net(), loader())
    path = tmp_path / "ckpt" / "step=5.ckpt"
    kept = torch.load(path, weights_only=True)
    optimizer = kept["optimizer_states"][0]
    optimizer["state"][0]["exp_avg"].zero_()
    optimizer["param_groups"][0]["lr"] = 0.02
    torch.save(kept, path)
    callback = FlashbackCallback()
    with caplog.at_level("INFO"):
        checkpointed(tmp_path, callback).fit(net(), loader(), ckpt_path=str(path))
    found = [e for e in rows(callback.dir).events if e["event"] == "resume_check"]
    wanted = ["the optimizer's state", "the learning rate"]
    assert [(e["step"], e["differs"]) for e in found] == [(5, wanted)]
    assert any("the optimizer's state, the learning rate" in r.message for r in caplog.records)


def test_a_checkpoint_needs_no_flashback(tmp_path: Path) -> None:
    """A checkpoint made with the callback is resumed without it, and with no warning."""
    checkpointed(tmp_path, FlashbackCallback()).fit(net(), loader())
    path = str(tmp_path / "ckpt" / "step=10.ckpt")
    checkpointed(tmp_path, max_epochs=3).fit(net(), loader(), ckpt_path=path)


# -- the end -------------------------------------------------------------------------------------


def test_exception(tmp_path: Path) -> None:
    """An exception of the training is reported on and passed through."""
    callback = FlashbackCallback(tmp_path)
    with pytest.raises(ZeroDivisionError):
        trainer(callback, Fails(ZeroDivisionError())).fit(net(), loader())
    assert len(rows(tmp_path)) == 5
    assert (tmp_path / "report.html").exists()
    assert callback.report is not None


def test_keyboard_interrupt(tmp_path: Path) -> None:
    """Ctrl-C is reported on before Lightning ends the script."""
    with pytest.raises(SystemExit):
        trainer(FlashbackCallback(tmp_path), Fails(KeyboardInterrupt())).fit(net(), loader())
    assert len(rows(tmp_path)) == 5
    assert (tmp_path / "report.json").exists()


def test_max_time(tmp_path: Path) -> None:
    """A fit that its time limit ends is reported on, with a row for each of its steps."""
    fit = trainer(FlashbackCallback(tmp_path), max_epochs=10**6, max_time={"milliseconds": 400})
    fit.fit(net(), loader())
    assert len(rows(tmp_path)) == fit.global_step > 0
    assert (tmp_path / "report.html").exists()


SCRIPT = """
    import os, signal, sys, time, torch
    import lightning.pytorch as pl
    from flashback_plugins.lightning import FlashbackCallback
    from tests.plugins._lightning_modules import loader, make_net

    class Slow(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 20:
                os.kill(os.getpid(), getattr(signal, sys.argv[2]))
            time.sleep(0.01)

    pl.Trainer(max_epochs=100, logger=False, enable_checkpointing=False, accelerator="cpu",
               enable_progress_bar=False, callbacks=[FlashbackCallback(sys.argv[1]), Slow()]).fit(
        make_net(pl.LightningModule), loader())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_signals(tmp_path: Path, name: str) -> None:
    """A scheduler's SIGTERM leaves a report; SIGKILL leaves every row that was acknowledged."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    code = textwrap.dedent(SCRIPT)
    subprocess.run([sys.executable, "-c", code, str(tmp_path), name], env=env, check=False,
                          capture_output=True, cwd=tmp_path)  # fmt: skip
    assert 20 <= len(rows(tmp_path)) < 700
    assert (tmp_path / "report.html").exists() == (name == "SIGTERM")


# -- harmless ------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_watched(tmp_path: Path) -> None:
    """A foreign parameter costs one warning; the training goes on."""
    module = net()
    stray = torch.nn.Parameter(torch.zeros(3))
    module.configure_optimizers = lambda: torch.optim.SGD([*module.body.parameters(), stray], 0.1)
    fit = trainer(FlashbackCallback(tmp_path))
    with pytest.warns(FlashbackWarning, match="1 are not parameters of Net"):
        fit.fit(module, loader())
    assert fit.global_step == 14


def test_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLASHBACK_DISABLED=1 switches it off."""
    monkeypatch.setenv("FLASHBACK_DISABLED", "1")
    trainer(FlashbackCallback(tmp_path / "run")).fit(net(), loader())
    assert not (tmp_path / "run").exists()


def test_two_of_them(tmp_path: Path) -> None:
    """A second callback for the same run stays out of the way; one for another folder records."""
    first, second = FlashbackCallback(), FlashbackCallback()
    third = FlashbackCallback(tmp_path / "other")
    trainer(first, second, third, default_root_dir=tmp_path).fit(net(), loader())
    assert second.dir is None
    assert len(rows(first.dir)) == len(rows(third.dir)) == 14
    for name in rows(first.dir).names:
        if name != "step_wall_ms":
            np.testing.assert_array_equal(rows(first.dir)[name], rows(third.dir)[name])


def test_callbacks_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point adds nothing unless the environment asks for it."""
    assert callbacks() == []
    monkeypatch.setenv("FLASHBACK_LIGHTNING", "1")
    monkeypatch.setenv("FLASHBACK_DIR", str(tmp_path / "run"))
    trainer(*callbacks()).fit(net(), loader())
    assert len(rows(tmp_path / "run")) == 14
    monkeypatch.setenv("FLASHBACK_DISABLED", "1")
    assert callbacks() == []


def test_pickles() -> None:
    """A callback can be sent to the processes that a trainer starts."""
    copy = pickle.loads(pickle.dumps(FlashbackCallback("run", log_every_n_steps=3)))
    assert type(copy) is FlashbackCallback
    assert copy.dir == Path("run")


def test_bad_argument() -> None:
    """A number of steps below 1 is refused at once."""
    with pytest.raises(ValueError, match="expected 1 or more"):
        FlashbackCallback(log_every_n_steps=0)


# -- what is recorded ----------------------------------------------------------------------------


def test_validation_is_not_step_time(tmp_path: Path) -> None:
    """Time spent in validation is no step's time; the sanity check disturbs nothing."""
    module = net()
    type(module).validation_step = lambda *_: time.sleep(0.05)
    trainer(FlashbackCallback(tmp_path), num_sanity_val_steps=2, val_check_interval=2).fit(
        module, loader(), loader()
    )
    index = rows(tmp_path)
    assert len(index) == 14
    assert np.median(index["step_wall_ms"][2::2]) < 7 * 50 / 2


def test_accumulation_that_changes_is_declared(tmp_path: Path) -> None:
    """A change of `accumulate_grad_batches` between epochs is declared, not found."""
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    scheduler = GradientAccumulationScheduler({0: 1, 1: 2})
    trainer(FlashbackCallback(tmp_path), scheduler).fit(net(), loader())
    expected = [e for e in rows(tmp_path).events if e["event"] == "expect"]
    assert [(e["step"], e["kind"]) for e in expected] == [(7, "accumulation")]


def test_unfreezing_is_declared(tmp_path: Path) -> None:
    """Layers that Lightning's `BaseFinetuning` unfreezes are declared at their first step."""
    from lightning.pytorch.callbacks import BaseFinetuning

    class Thaw(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.body[0])

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.body[0], optimizer)

    module = net()
    module._add_reference = lambda loss: None  # it wants a gradient of frozen layers
    live = lambda: [p for p in module.parameters() if p.requires_grad]  # noqa: E731  # short
    module.configure_optimizers = lambda: torch.optim.AdamW(live(), lr=0.01)
    trainer(FlashbackCallback(tmp_path), Thaw()).fit(module, loader())
    index = rows(tmp_path)
    expected = [e for e in index.events if e["event"] == "expect"]
    assert [(e["step"], e["kind"]) for e in expected] == [(7, "unfreeze")]
    assert np.isnan(index["group:stem:grad_norm"][:7]).all()
    assert (index["group:stem:grad_norm"][7:] > 0).all()


def test_ids_by_function_and_not_at_all(tmp_path: Path) -> None:
    """Sample ids come from the user's function, or are left alone."""
    trainer(FlashbackCallback(tmp_path / "a", batch_ids=lambda b: b["ids"] * 0 + 7)).fit(
        net(), loader()
    )
    assert set(rows(tmp_path / "a")["batch_id_mean"]) == {7.0}
    quiet = FlashbackCallback(tmp_path / "b", batch_ids=False, batch_hash=False)
    trainer(quiet).fit(net(), loader())
    assert np.isnan(rows(tmp_path / "b")["batch_id_mean"]).all()
    assert not rows(tmp_path / "b")["exact:batch_hash"].any()


# -- loggers -------------------------------------------------------------------------------------


def test_csv_logger(tmp_path: Path) -> None:
    """A logger without histograms gets a few scalars under flashback/, and the verdict."""
    logger = CSVLogger(tmp_path)
    trainer(FlashbackCallback(log_every_n_steps=5), logger=logger).fit(net(), loader())
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [int(r["step"]) for r in found if r["flashback/grad_norm"]] == [0, 5, 10]
    assert [r["flashback/first_bad_step"] for r in found if r["flashback/first_bad_step"]] != []
    assert len(found[0]) < 16


def test_tensorboard_logger(tmp_path: Path) -> None:
    """TensorBoard gets scalars, histograms and the report as text."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    trainer(FlashbackCallback(log_every_n_steps=5), logger=logger).fit(net(), loader())
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    tags = events.Tags()
    assert "flashback/grad_norm" in tags["scalars"]
    assert "flashback/hist_grad_log2" in tags["histograms"]
    assert any("flashback/report" in name for name in tags["tensors"])


@pytest.mark.slow
def test_mlflow_logger(tmp_path: Path) -> None:
    """MLFlowLogger's own run gets metrics, tags and the report."""
    pytest.importorskip("mlflow")
    logger = MLFlowLogger("test", tracking_uri=f"sqlite:///{tmp_path / 'm.db'}",
                          artifact_location=(tmp_path / "artifacts").as_uri())  # fmt: skip
    callback = FlashbackCallback(log_every_n_steps=5)
    trainer(callback, logger=logger, default_root_dir=tmp_path).fit(net(), loader())
    run = logger.experiment.get_run(logger.run_id)
    assert "flashback/grad_norm" in run.data.metrics
    assert run.data.tags["flashback.status"] == callback.report.status
    names = {f.path for f in logger.experiment.list_artifacts(logger.run_id, "flashback")}
    assert "flashback/report.html" in names


@pytest.mark.slow
def test_mlflow_logger_and_a_server(tmp_path: Path, mlflow_server: str) -> None:
    """MLFlowLogger with a server: metrics, tags and the report come back from it."""
    logger = MLFlowLogger("fit", tracking_uri=mlflow_server)
    callback = FlashbackCallback(log_every_n_steps=5)
    trainer(callback, logger=logger, default_root_dir=tmp_path).fit(net(), loader())
    history = logger.experiment.get_metric_history(logger.run_id, "flashback/grad_norm")
    assert [m.step for m in history] == [0, 5, 10]
    run = logger.experiment.get_run(logger.run_id)
    assert run.data.tags["flashback.status"] == callback.report.status
    folder = logger.experiment.download_artifacts(logger.run_id, "flashback", str(tmp_path))
    assert {"report.html", "index.parquet"} <= {p.name for p in Path(folder).iterdir()}


def test_a_logger_that_fails(tmp_path: Path) -> None:
    """A logger that cannot be used costs one warning and nothing else."""

    class Broken(CSVLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            if any(name.startswith("flashback/") for name in metrics):
                raise ConnectionError("no route")

    with pytest.warns(FlashbackWarning, match="LoggerSink failed .ConnectionError: no route"):
        trainer(FlashbackCallback(), logger=Broken(tmp_path), log_every_n_steps=5).fit(
            net(), loader()
        )


def test_the_rate_that_the_scheduler_says(tmp_path: Path) -> None:
    """Rate and counter of the scheduler stand beside the rate that was used; clipping is known."""

    class Scheduled(type(net())):  # type: ignore[misc]  # made at run time
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    callback = FlashbackCallback(tmp_path)
    trainer(callback, gradient_clip_val=0.1).fit(Scheduled(), loader())
    index = rows(callback.dir)
    np.testing.assert_array_equal(index["exact:lr_scheduled"], index["lr"])
    assert index["lr"] == pytest.approx(0.01 * 0.9 ** np.arange(14))
    assert index["exact:scheduler_step"].tolist() == list(range(14))
    assert index["exact:opt_steps"][1:].tolist() == list(range(1, 14))
    clipped = index["exact:clip_coef"] * index["grad_norm"]
    np.testing.assert_allclose(clipped, np.minimum(index["grad_norm"], 0.1), rtol=1e-4)


def test_several_loggers(tmp_path: Path) -> None:
    """The folder is the first logger's, and both get the live scalars."""
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "tb")]
    callback = FlashbackCallback(log_every_n_steps=5)
    trainer(callback, logger=loggers).fit(net(), loader())
    assert callback.dir == Path(loggers[0].log_dir) / "flashback"
    assert "flashback/grad_norm" in (Path(loggers[0].log_dir) / "metrics.csv").read_text()
    assert list(Path(loggers[1].log_dir).glob("events.out.*"))


def test_trainer_test_records_nothing(tmp_path: Path) -> None:
    """`trainer.test` makes no run, and after a fit it leaves the run alone."""
    module, callback = net(), FlashbackCallback(tmp_path / "run")
    module.test_step = lambda batch, batch_idx: None
    made = trainer(callback)
    made.test(module, loader(), verbose=False)
    assert not (tmp_path / "run").exists()
    made.fit(module, loader())
    report = callback.report
    made.test(module, loader(), verbose=False)
    assert callback.report is report
    assert len(rows(callback.dir)) == 14


def test_max_steps(tmp_path: Path) -> None:
    """A fit that ends within an epoch has its rows and its report."""
    callback = FlashbackCallback(tmp_path)
    trainer(callback, max_steps=5, max_epochs=-1).fit(net(), loader())
    assert len(rows(tmp_path)) == 5
    assert callback.report is not None


def test_a_short_last_window_is_no_fault(tmp_path: Path) -> None:
    """The short last accumulation window of each epoch is recorded, and not called a fault."""
    callback = FlashbackCallback(tmp_path)
    trainer(callback, max_epochs=60, accumulate_grad_batches=3).fit(net(), loader())
    assert callback.report is not None
    assert (callback.report.status, callback.report.n_steps) == ("healthy", 180)
