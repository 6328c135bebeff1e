"""Every mode of Lightning: rows, gradients, updates and losses against an own reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import flashback_core as fb

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402  # after importorskip

from flashback_plugins.lightning import FlashbackCallback  # noqa: E402
from tests.plugins._lightning_modules import loader, make_gan, make_net  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:.*LeafSpec.*")

QUIET: dict[str, Any] = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 3,
}  # fmt: skip
LM = pl.LightningModule


def scaled(init_scale: float = 1024.0) -> dict[str, Any]:
    """Float16 with a real GradScaler, on the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


@dataclass(frozen=True)
class Mode:
    """A mode: what is trained and how, how exact float16 lets it be, and what is known."""

    make: Callable[[], Any]
    trainer: Callable[[], dict[str, Any]] = dict
    rtol: float = 1e-5
    exact: dict[str, list[int]] = field(default_factory=dict)


def net(**settings: Any) -> Callable[[], Any]:
    """Makes a module when it is called."""
    return lambda: make_net(LM, **settings)


MODES = {
    "fp32": Mode(net(), exact={"accum_count": [1] * 21, "clipped": [0] * 21}),
    "sgd": Mode(net(optimizer="sgd")),
    "bf16": Mode(net(), lambda: {"precision": "bf16-mixed"}, rtol=5e-3),
    "fp16_scaler": Mode(net(), scaled, rtol=5e-3),
    "fp16_fused": Mode(net(optimizer="fused"), scaled, rtol=5e-3),
    "fp64": Mode(net(), lambda: {"precision": "64-true"}),
    "accumulate": Mode(
        net(), lambda: {"accumulate_grad_batches": 3}, exact={"accum_count": [3, 3, 1] * 3}
    ),
    "accumulate_scaler": Mode(
        net(), lambda: {"accumulate_grad_batches": 2, **scaled()}, rtol=5e-3,
        exact={"accum_count": [2, 2, 2, 1] * 3},
    ),
    "clip_norm": Mode(net(), lambda: {"gradient_clip_val": 0.01}),
    "clip_value": Mode(
        net(), lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    ),
    "clip_scaler": Mode(net(), lambda: {"gradient_clip_val": 0.01, **scaled()}, rtol=5e-3),
    "lbfgs": Mode(net(optimizer="lbfgs"), exact={"accum_count": [1] * 21}),
    "none": Mode(net(skips=True), exact={"step_skipped": [0, 1, 0, 0, 1, 0, 0] * 3}),
    "none_scaler": Mode(
        net(skips=True), scaled, rtol=5e-3, exact={"step_skipped": [0, 1, 0, 0, 1, 0, 0] * 3}
    ),
    "gan": Mode(lambda: make_gan(LM), exact={"optimizer": [0, 1] * 21, "clipped": [-1] * 42}),
    "gan_raw": Mode(
        lambda: make_gan(LM, use_pl_optimizer=False), exact={"optimizer": [0, 1] * 21}
    ),
    "gan_scaler": Mode(lambda: make_gan(LM), scaled, rtol=5e-3),
}  # fmt: skip


@cache
def run(name: str, *, watched: bool) -> tuple[Any, fb.StepSketchIndex | None]:
    """The trained module of a mode and its index; each is run once."""
    mode = MODES[name]
    folder = Path(mkdtemp()) / "run"
    callback = FlashbackCallback(folder)
    torch.manual_seed(3)
    module = mode.make()
    settings = QUIET | mode.trainer() | ({"callbacks": [callback]} if watched else {})
    pl.Trainer(**settings).fit(module, loader())
    return module, fb.StepSketchIndex(folder / "sketch") if watched else None


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode in turn."""
    return str(request.param)


def index_of(name: str) -> fb.StepSketchIndex:
    """The index of the watched run."""
    index = run(name, watched=True)[1]
    assert index is not None
    return index


def test_same_losses_and_weights(mode: str) -> None:
    """A watched run has the losses and weights of an unwatched one, bit for bit."""
    watched, _ = run(mode, watched=True)
    alone, _ = run(mode, watched=False)
    assert watched.losses == alone.losses
    for a, b in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(a, b)


def test_one_row_per_optimizer_step(mode: str) -> None:
    """Every attempted optimizer step is one row, counted from 0."""
    module, _ = run(mode, watched=True)
    np.testing.assert_array_equal(index_of(mode).steps, np.arange(len(module.gradients)))


def test_gradients_are_unscaled_and_not_clipped(mode: str) -> None:
    """The gradient norm is that of an independent backward pass, in every mode."""
    module, _ = run(mode, watched=True)
    seen = np.where(index_of(mode)["grad_norm"] == 0, np.nan, index_of(mode)["grad_norm"])
    np.testing.assert_allclose(seen, module.gradients, rtol=MODES[mode].rtol)


@pytest.mark.parametrize("mode", [m for m in MODES if not m.startswith("gan")])
def test_updates_are_those_of_the_step(mode: str) -> None:
    """The update norm is the way that the weights went from batch to batch."""
    module, _ = run(mode, watched=True)
    np.testing.assert_allclose(index_of(mode)["update_norm"], module.updates, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("mode", [m for m in MODES if MODES[m].exact])
def test_exact_fields(mode: str) -> None:
    """What Lightning knows of a step stands in its exact fields."""
    for name, values in MODES[mode].exact.items():
        np.testing.assert_array_equal(index_of(mode)[f"exact:{name}"], values, err_msg=name)


def test_losses_are_those_of_the_batches() -> None:
    """The loss of a row is the loss of its batch, and the mean of several."""
    for name in ("fp32", "lbfgs"):  # of several evaluations of a closure it is the first one
        module, _ = run(name, watched=True)
        np.testing.assert_array_equal(index_of(name)["loss"], module.losses)
    module, _ = run("accumulate", watched=True)
    wanted = [np.mean(module.losses[7 * e + a : 7 * e + b]) for e in range(3) for a, b in
              ((0, 3), (3, 6), (6, 7))]  # fmt: skip
    np.testing.assert_allclose(index_of("accumulate")["loss"], wanted, rtol=1e-6)


def test_losses_of_manual_steps() -> None:
    """Each row of a manual optimization has the loss that its own backward pass began with."""
    for name in ("gan", "gan_raw", "gan_scaler"):
        module, _ = run(name, watched=True)
        np.testing.assert_allclose(index_of(name)["loss"], module.losses, rtol=1e-6)


def test_batches_are_told_apart() -> None:
    """Batch index, epoch, sample ids and content of the batch stand in the row."""
    index = index_of("fp32")
    np.testing.assert_array_equal(index["exact:batch_index"], [*range(7)] * 3)
    np.testing.assert_array_equal(index["exact:epoch"], np.repeat([0, 1, 2], 7))
    np.testing.assert_allclose(index["batch_id_mean"][:7], np.arange(7) * 4 + 1.5)
    hashes = index["exact:batch_hash"]
    assert len(set(hashes[:7].tolist())) == 7
    np.testing.assert_array_equal(hashes[:7], hashes[7:14])


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_skipped_steps(tmp_path: Path, optimizer: str) -> None:
    """A step that GradScaler skips is a row: skipped, with its scale, its weights unmoved."""
    module = make_net(LM, optimizer=optimizer)
    module.blow_up_at = 4
    trainer = pl.Trainer(**QUIET | scaled(), callbacks=[FlashbackCallback(tmp_path)])
    trainer.fit(module, loader())
    index = fb.StepSketchIndex(tmp_path / "sketch")
    assert len(index) == trainer.global_step == 21
    np.testing.assert_array_equal(np.flatnonzero(index["exact:step_skipped"]), [4])
    assert index["nonfinite"][4] > 0
    assert index["update_norm"][4] == 0
    np.testing.assert_array_equal(index["exact:loss_scale"], [1024.0] * 5 + [512.0] * 16)


def test_first_step_skipped(tmp_path: Path) -> None:
    """A run whose very first step is skipped begins with that row."""
    module = make_net(LM)
    module.blow_up_at = 0
    pl.Trainer(**QUIET | scaled(), callbacks=[FlashbackCallback(tmp_path)]).fit(module, loader())
    index = fb.StepSketchIndex(tmp_path / "sketch")
    assert len(index) == 21
    assert index["exact:step_skipped"][:3].tolist() == [1, 0, 0]


def test_compiled_module(tmp_path: Path) -> None:
    """A compiled module has the groups and the gradients of the module itself."""
    module = make_net(LM)
    module.body = torch.compile(module.body, backend="eager")
    torch.manual_seed(3)
    pl.Trainer(**QUIET, callbacks=[FlashbackCallback(tmp_path)]).fit(module, loader())
    index = fb.StepSketchIndex(tmp_path / "sketch")
    np.testing.assert_allclose(index["grad_norm"], module.gradients, rtol=1e-5)
    groups = next(e["groups"] for e in index.events if e["event"] == "groups")
    assert not [p["name"] for ps in groups.values() for p in ps if "_orig_mod" in p["name"]]


def test_lightnings_own_transformer(tmp_path: Path) -> None:
    """Lightning's transformer demo, with one line more, is recorded under transformer groups."""
    from lightning.pytorch.demos import Transformer

    class Demo(LM):
        def __init__(self) -> None:
            super().__init__()
            self.model = Transformer(vocab_size=50, ninp=16, nhead=2, nhid=32, nlayers=2)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            (tokens,) = batch
            out = self.model(tokens[:, :-1], tokens[:, 1:])
            return torch.nn.functional.nll_loss(out, tokens[:, 1:].reshape(-1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    tokens = torch.randint(0, 50, (16, 9), generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=4)
    pl.Trainer(**QUIET, callbacks=[FlashbackCallback(tmp_path)]).fit(Demo(), data)
    index = fb.StepSketchIndex(tmp_path / "sketch")
    assert len(index) == 12
    for group in ("embed", "attn_qkv", "attn_out", "mlp_in", "mlp_out", "norm", "head"):
        assert (index[f"group:{group}:grad_norm"] > 0).all(), group
