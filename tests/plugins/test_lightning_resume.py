"""What a resumed fit says of its batches, its loss, and of checkpoints that others made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashback_core as fb

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402  # after importorskip

from flashback_plugins._lightning_resume import loss_jumped  # noqa: E402
from flashback_plugins.lightning import FlashbackCallback  # noqa: E402
from tests.plugins._lightning_modules import loader, make_net  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:.*LeafSpec.*")


class Goes(torch.utils.data.DataLoader[Any]):
    """A data loader that goes on where it was, as torchdata's does."""

    _done = _skip = 0

    def __iter__(self) -> Any:
        skip, self._skip = self._skip, 0
        for i, batch in enumerate(super().__iter__()):
            if i >= skip:
                self._done = i + 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        """How far it is."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self._skip = state["done"] % len(self)


def fit(folder: Path, resume: int | None = None, *, data: Any = None, **settings: Any) -> Any:
    """Train six epochs of seven batches, with a checkpoint at each step; or resume at one."""
    saver = ModelCheckpoint(folder / "ckpt", every_n_train_steps=1, save_top_k=-1,
                            filename="{step}", enable_version_counter=False)  # fmt: skip
    callback = FlashbackCallback(folder / "run", **settings)
    trainer = pl.Trainer(
        logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        max_epochs=6, callbacks=[callback, saver],
    )  # fmt: skip
    path = None if resume is None else str(folder / "ckpt" / f"step={resume}.ckpt")
    trainer.fit(make_net(pl.LightningModule), data or loader(), ckpt_path=path)
    return callback


def said(folder: Path, *kinds: str) -> list[tuple[int, str]]:
    """Step and words of the events of some kinds."""
    events = fb.StepSketchIndex(folder / "run" / "sketch").events
    return [(e["step"], str(e.get("text", e.get("differs")))) for e in events
            if e["event"] in kinds]  # fmt: skip


def test_batches_that_begin_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A data loader that begins the epoch again is named, with the batch that came before."""
    fit(tmp_path)
    with caplog.at_level("INFO"):
        fit(tmp_path, resume=5)
    ((step, text),) = said(tmp_path, "note", "resume_check")
    assert step == 5
    assert "sees the batch that step 0 of the same epoch saw" in text
    assert any("the batch order is not what" in r.message for r in caplog.records)


@pytest.mark.parametrize("resume", [5, 7])
def test_batches_that_go_on(tmp_path: Path, resume: int) -> None:
    """Nothing is said of a loader that goes on, nor of the same order in a new epoch."""
    data = Goes(loader().dataset, batch_size=4)
    fit(tmp_path, data=data)
    fit(tmp_path, resume=resume, data=data)
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    np.testing.assert_allclose(index["batch_id_mean"][:14], [*np.arange(7) * 4 + 1.5] * 2)
    assert said(tmp_path, "note", "resume_check") == []


def test_a_loss_that_jumps(tmp_path: Path) -> None:
    """Losses that lie far above those before the checkpoint are told after eight steps."""
    fit(tmp_path)
    data = loader()
    data.dataset.y = data.dataset.y * 40  # type: ignore[attr-defined]  # of Points
    fit(tmp_path, resume=28, data=data)
    assert said(tmp_path, "resume_check") == [(28, "['the level of the loss']")]


def test_losses_of_one_level() -> None:
    """A loss that is higher by chance, or lower, or hardly known, has not jumped."""
    made = np.random.default_rng(0)
    before = made.normal(1.0, 0.1, 32).tolist()
    jumps = sum(loss_jumped(before, made.normal(1.0, 0.1, 8).tolist()) for _ in range(2000))
    assert jumps == 0
    assert not loss_jumped(before, [0.1] * 8)
    assert not loss_jumped(before[:7], [9.0] * 8)
    assert not loss_jumped([1.0] * 31 + [3.0], [2.5] * 8)
    assert loss_jumped(before, [2.0] * 8)


def change(path: Path, **state: Any) -> None:
    """Change what flashback had put into a checkpoint."""
    kept = torch.load(path, weights_only=True)
    kept["flashback"] |= state
    torch.save(kept, path)


def test_a_checkpoint_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """State that is of another version is said to be, and steps are the trainer's own."""
    fit(tmp_path)
    change(tmp_path / "ckpt" / "step=7.ckpt", version=9, next_step=3)
    with caplog.at_level("INFO"):
        fit(tmp_path, resume=7)
    assert any("keeps state 9, this one reads 1" in r.message for r in caplog.records)
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    np.testing.assert_array_equal(index.steps, np.arange(42))


@pytest.mark.parametrize("rows", [None, {}, 3, {"losses": [1.0]}])
def test_a_checkpoint_of_an_early_version(tmp_path: Path, rows: Any) -> None:
    """State without what this version adds is used as far as it goes."""
    fit(tmp_path)
    change(tmp_path / "ckpt" / "step=7.ckpt", rows=rows)
    fit(tmp_path, resume=7)
    assert len(fb.StepSketchIndex(tmp_path / "run" / "sketch")) == 42


def test_a_checkpoint_of_another_schema(tmp_path: Path) -> None:
    """A resume under other groups goes on in the same index; the metrics of both are whole."""
    fit(tmp_path)
    fit(tmp_path, resume=7, groups={"0": "first", "": "rest"})
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch")
    np.testing.assert_array_equal(index.steps, np.arange(42))
    assert np.isfinite(index["group:first:grad_norm"][7:]).all()
    assert np.isnan(index["group:first:grad_norm"][:7]).all()
    assert np.isfinite(index["grad_norm"]).all()
