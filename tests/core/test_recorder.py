"""A recorder in every kind of PyTorch loop: one row per step, exact values, the run untouched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flashback_core as fb
from flashback_core.errors import FlashbackWarning, IndexLockedError, ModelError
from flashback_core.recorder import Recorder

STEPS = 6


def make_model(seed: int = 0) -> nn.Sequential:
    """A small perceptron, always the same."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))


def batch(step: int) -> torch.Tensor:
    """The batch of a step."""
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """The loss of a step."""
    loss: torch.Tensor = (model(batch(step)) - 1.0).square().mean()
    return loss


def norm(tensors: Any) -> float:
    """2-norm over all tensors, in float64."""
    return float(sum(t.detach().double().square().sum() for t in tensors) ** 0.5)


class Oracle:
    """Norms worked out by the test itself, at the moments where they are right."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.grads: list[float] = []
        self.updates: list[float] = []

    def gradients(self, scale: float = 1.0) -> None:
        """Note the gradient norm now."""
        self.grads.append(norm(p.grad for p in self.parameters if p.grad is not None) / scale)
        self.before = [p.detach().clone() for p in self.parameters]

    def update(self) -> None:
        """Note the update norm now."""
        self.updates.append(norm(p - b for p, b in zip(self.parameters, self.before, strict=True)))

    def check(self, index: fb.StepSketchIndex) -> None:
        """Compare with what was recorded."""
        np.testing.assert_allclose(index["grad_norm"], self.grads, rtol=1e-5)
        np.testing.assert_allclose(index["update_norm"], self.updates, rtol=1e-4, atol=1e-9)


def record(folder: Path, model: nn.Module, optimizer: Any, **options: Any) -> Recorder:
    """A recorder that leaves out the report."""
    return Recorder(folder, model, optimizer, write_report=False, **options)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW lr tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str, tmp_path: Path) -> None:
    """Gradients before and updates after the step, and losses equal bit for bit to a bare run."""

    def train(folder: Path | None) -> tuple[list[float], Oracle]:
        model = make_model()
        optimizer = OPTIMIZERS[name](model.parameters())
        oracle = Oracle(model)
        losses = []
        rec = record(folder, model, optimizer) if folder else None
        for step in range(STEPS):
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            oracle.gradients()
            optimizer.step()
            oracle.update()
            losses.append(loss.item())
            if rec:
                rec.log(loss=loss)
        if rec:
            rec.close()
        return losses, oracle

    bare, _ = train(None)
    recorded, oracle = train(tmp_path)
    assert recorded == bare
    index = fb.StepSketchIndex(tmp_path / "sketch")
    assert index.steps.tolist() == list(range(STEPS))
    assert index["loss"].tolist() == recorded
    assert index["lr"] == pytest.approx([0.1 if "SGD" in name else 0.01] * STEPS)
    oracle.check(index)


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Three backward passes make one row, with the whole gradient."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    oracle = Oracle(model)
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            for micro in range(3):
                (loss_of(model, 3 * step + micro) / 3).backward()
            oracle.gradients()
            optimizer.step()
            oracle.update()
    assert len(rec.index) == STEPS
    oracle.check(rec.index)


def test_own_clipping_is_seen_past(tmp_path: Path) -> None:
    """`observe_gradients` before clipping records the gradient before, the update after."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    oracle = Oracle(model)
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            rec.observe_gradients()
            oracle.gradients()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            oracle.update()
            rec.log()
    assert max(oracle.updates) < 1.1e-4
    oracle.check(rec.index)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("given", [True, False], ids=["scaler given", "scaler not given"])
def test_grad_scaler(tmp_path: Path, fused: bool, given: bool) -> None:
    """Unscaled gradients; an overflow is a row that says so, its update exactly zero."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    oracle = Oracle(model)
    with record(tmp_path, model, optimizer, scaler=scaler if given else None) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step) * (float("inf") if step == 3 else 1.0)
            scaler.scale(loss).backward()
            oracle.gradients(scaler.get_scale())
            scaler.step(optimizer)
            oracle.update()
            scaler.update()
            rec.log(loss=loss)
    index = rec.index
    assert index["exact:step_skipped"].tolist() == [0, 0, 0, 1, 0, 0]
    assert index["nonfinite"][3] > 0
    assert not index["nonfinite"][[0, 1, 2, 4, 5]].any()
    assert index["update_norm"][3] == 0.0
    keep = [0, 1, 2, 4, 5]
    np.testing.assert_allclose(index["grad_norm"][keep], np.array(oracle.grads)[keep], rtol=1e-5)
    np.testing.assert_allclose(index["update_norm"], oracle.updates, rtol=1e-4, atol=1e-9)
    if given:
        assert index["exact:loss_scale"].tolist() == [1024.0] * 4 + [512.0] * 2


def test_lbfgs(tmp_path: Path) -> None:
    """One row per step, with the gradient at the step's start, however often the closure runs."""
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    starts, calls = [], []
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            first: list[float] = []

            def closure(step: int = step, first: list[float] = first) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                first.append(norm(p.grad for p in model.parameters()))
                return loss

            before = [p.detach().clone() for p in model.parameters()]
            loss = optimizer.step(closure)
            rec.log(loss=loss)
            starts.append(first[0])
            calls.append(len(first))
            moved = norm(p - b for p, b in zip(model.parameters(), before, strict=True))
            assert rec.index["update_norm"][-1] == pytest.approx(moved, rel=1e-4)
    assert max(calls) > 1
    assert len(rec.index) == STEPS
    np.testing.assert_allclose(rec.index["grad_norm"], starts, rtol=1e-5)


def test_two_optimizers(tmp_path: Path) -> None:
    """Each row names its optimizer and holds only that optimizer's own parameters."""
    nets = nn.ModuleDict({"a": make_model(0), "b": make_model(1)})
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets.values()]
    norms = []
    with record(tmp_path, nets, optimizers) as rec:
        for step in range(STEPS):
            for name, optimizer in zip(nets, optimizers, strict=True):
                (loss_of(nets["a"], step) + loss_of(nets["b"], step)).backward()
                norms.append(norm(p.grad for p in nets[name].parameters()))
                optimizer.step()
                rec.log()
                optimizer.zero_grad()
    index = rec.index
    assert index["exact:optimizer"].tolist() == [0, 1] * STEPS
    np.testing.assert_allclose(index["grad_norm"], norms, rtol=1e-5)


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation as people write it: two phases round a base optimizer."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(parameters, {"rho": 0.05, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb to the worst point nearby."""
        self._climb = [0.05 * p.grad for g in self.param_groups for p in g["params"]]
        for p, e in zip(self.param_groups[0]["params"], self._climb, strict=True):
            p += e

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back and step with the gradient from there."""
        for p, e in zip(self.param_groups[0]["params"], self._climb, strict=True):
            p -= e
        self.base_optimizer.step()


def test_two_phases_are_one_step(tmp_path: Path) -> None:
    """Of SAM's two phases only the base optimizer's step is a row."""
    model = make_model()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1)
    oracle = Oracle(model)
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            model.zero_grad()
            loss_of(model, step).backward()
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.first_step()
            model.zero_grad()
            loss_of(model, step).backward()
            oracle.gradients()
            oracle.before = before
            optimizer.second_step()
            oracle.update()
            rec.log()
    assert len(rec.index) == STEPS
    oracle.check(rec.index)


class Lookahead:
    """Slow weights round a fast optimizer; no subclass of torch's, as some libraries do it."""

    def __init__(self, optimizer: torch.optim.Optimizer, k: int = 3) -> None:
        self.optimizer, self.k, self.calls = optimizer, k, 0
        self.param_groups = optimizer.param_groups
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def zero_grad(self) -> None:
        """Forward."""
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Fast step; every k-th time the slow weights follow and take over."""
        self.optimizer.step()
        self.calls += 1
        if self.calls % self.k == 0:
            with torch.no_grad():
                for p, s in zip(self.param_groups[0]["params"], self.slow, strict=True):
                    s += 0.5 * (p - s)
                    p.copy_(s)


def test_a_wrapper_is_hooked_inside(tmp_path: Path) -> None:
    """A wrapper that is no torch optimizer: the optimizer inside is watched, each step once."""
    model = make_model()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            rec.log()
    assert len(rec.index) == STEPS


@pytest.mark.slow
def test_compiled_model(tmp_path: Path) -> None:
    """A compiled model is recorded under the names of the model inside."""
    model = make_model()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    oracle = Oracle(model)
    with record(tmp_path, compiled, optimizer) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(compiled, step).backward()
            oracle.gradients()
            optimizer.step()
            oracle.update()
            rec.log()
    oracle.check(rec.index)
    (groups,) = [e["groups"] for e in rec.index.events if e["event"] == "groups"]
    names = {p["name"] for members in groups.values() for p in members}
    assert names == {n for n, _ in model.named_parameters()}


def test_unfreezing_and_new_groups(tmp_path: Path) -> None:
    """Parameters that are unfrozen or added later are watched from their first step on."""
    model = make_model()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight, model[0].bias, model[2].weight], lr=0.1)
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            if step == 2:
                model[0].weight.requires_grad_(True)
            if step == 4:
                optimizer.add_param_group({"params": [model[2].bias]})
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            rec.log()
    counts = [sum(rec.index[f"hist_grad:{i}"][s] for i in range(16)) for s in range(STEPS)]
    assert counts == [12 + 36] * 2 + [12 + 36 + 60] * 2 + [12 + 36 + 60 + 3] * 2


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_when_the_loop_logs(tmp_path: Path, when: str) -> None:
    """Logging before or after the step, or not at all: the loss stands in the step's own row."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with record(tmp_path, model, optimizer) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            losses.append(loss.item())
            if when == "before":
                rec.log(loss=loss)
            optimizer.step()
            if when == "after":
                rec.log(loss=loss)
    expected = losses if when != "never" else [np.nan] * STEPS
    np.testing.assert_array_equal(rec.index["loss"], expected)


def test_a_run_is_continued(tmp_path: Path) -> None:
    """An existing folder goes on after its last row; `start_step` replaces rows and keeps them."""
    for start in (None, None, 4):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record(tmp_path, model, optimizer, start_step=start) as rec:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
                rec.log(loss=float(step))
    index = rec.index
    assert index.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert index["loss"].tolist() == [0, 1, 2, 0, 0, 1, 2]
    assert index.superseded.steps.tolist() == [4, 5]


def test_an_exception_seals_and_reports(tmp_path: Path) -> None:
    """A training that dies leaves a sealed index and a report, and its exception is its own."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = Recorder(tmp_path, model, optimizer)

    def train() -> None:
        with rec:
            loss_of(model, 0).backward()
            optimizer.step()
            rec.log(loss=1.0)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    assert rec.report is not None
    assert {p.name for p in tmp_path.glob("report.*")} == {
        "report.json", "report.md", "report.html",
    }  # fmt: skip
    assert list((tmp_path / "sketch").glob("segment-*.parquet"))


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLASHBACK_DISABLED=1: no hook, no file, and every call is harmless."""
    monkeypatch.setenv("FLASHBACK_DISABLED", "1")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "run", model, optimizer) as rec:
        loss_of(model, 0).backward()
        rec.observe_gradients()
        optimizer.step()
        rec.log(loss=1.0, batch_ids=[1])
        rec.expect(3, "data")
        rec.pause(1.0)
    assert rec.report is None
    assert not (tmp_path / "run").exists()
    assert not optimizer._optimizer_step_pre_hooks


def test_hooks_are_gone_after_closing(tmp_path: Path) -> None:
    """Closing leaves optimizer and scaler as they were."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    rec = record(tmp_path, model, optimizer, scaler=scaler)
    rec.close()
    rec.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert "step" not in vars(scaler)


class FailingSink:
    """A tracker that is not reachable."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def fail(*_: Any, **__: Any) -> None:
            raise ConnectionError("no route to host")

        return fail


def test_a_failing_tracker_costs_one_warning(tmp_path: Path) -> None:
    """The training and the recording go on; one warning says what was left out."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = record(tmp_path, model, optimizer, sinks=[FailingSink()], log_every=1)

    def train() -> None:
        for step in range(STEPS):
            loss_of(model, step).backward()
            optimizer.step()
            rec.log()
        rec.close()

    with pytest.warns(FlashbackWarning, match="FailingSink failed.*no route to host") as caught:
        train()
    assert len(caught) == 1
    assert len(rec.index) == STEPS


def test_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recorder writes nothing to standard output."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, model, optimizer) as rec:
        loss_of(model, 0).backward()
        optimizer.step()
        rec.log(loss=1.0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (lambda: nn.ReLU(), lambda m: torch.optim.SGD(make_model().parameters(), lr=0.1),
         "0 parameters and none with requires_grad"),
        (lambda: make_model().requires_grad_(False),
         lambda m: torch.optim.SGD(m.parameters(), lr=0.1), "4 parameters and none with"),
        (make_model, lambda m: torch.optim.SGD(make_model().parameters(), lr=0.1),
         r"4 are not parameters of Sequential \(first shape \(12, 5\)\)"),
        (make_model, lambda m: object(), "optimizer is a object; expected a torch.optim.Optimizer"),
        (lambda: 3, lambda m: torch.optim.SGD(make_model().parameters(), lr=0.1),
         "model is a int; expected a torch.nn.Module"),
    ],
    ids=["no parameters", "all frozen", "foreign optimizer", "no optimizer", "no model"],
)  # fmt: skip
def test_what_cannot_be_watched(tmp_path: Path, model: Any, optimizer: Any, message: str) -> None:
    """One clear error before the training, and nothing left behind."""
    net = model()
    with pytest.raises(ModelError, match=message):
        Recorder(tmp_path / "run", net, optimizer(net))
    assert not (tmp_path / "run").exists()


def test_two_recorders_of_one_folder(tmp_path: Path) -> None:
    """The second gets a clear error."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(tmp_path, model, optimizer), pytest.raises(IndexLockedError, match="being written"):
        record(tmp_path, model, optimizer)


def test_complex_and_integer_parameters_are_said_once(tmp_path: Path) -> None:
    """They have no metrics; one warning says which."""
    model = make_model()
    model.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(FlashbackWarning, match="complex or integer.*phase"):
        record(tmp_path, model, optimizer).close()


def test_tied_parameters_count_once(tmp_path: Path) -> None:
    """A weight that two modules share is sketched once."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(tmp_path, model, optimizer) as rec:
        model(torch.arange(5)).sum().backward()
        optimizer.step()
        rec.log()
    assert sum(rec.index[f"hist_grad:{i}"][0] for i in range(16)) == 40


def test_expected_changes_are_kept(tmp_path: Path) -> None:
    """`expect` becomes an event of the index."""
    model = make_model()
    with record(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1)) as rec:
        rec.expect(7, "lr_milestone")
    (event,) = [e for e in rec.index.events if e["event"] == "expect"]
    assert (event["step"], event["kind"]) == (7, "lr_milestone")


def test_nonsense_in_a_log_is_left_out(tmp_path: Path) -> None:
    """A misspelt field, half an epoch, or a loss of many numbers: a warning, and the row stands."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = record(tmp_path, model, optimizer)

    def train(**logged: Any) -> None:
        loss_of(model, 0).backward()
        optimizer.step()
        rec.log(**logged)

    with pytest.warns(FlashbackWarning, match="'epok' is no exact field; expected one of: epoch"):
        train(epok=3, loss=1.0)
    train(epoch=1.5, loss=2.0)
    with pytest.warns(FlashbackWarning, match=r"shape \(2,\); expected one number"):
        train(loss=torch.ones(2), epoch=2)
    rec.close()
    np.testing.assert_array_equal(rec.index["loss"], [1.0, 2.0, np.nan])
    assert rec.index["exact:epoch"].tolist() == [-1, -1, 2]


def test_weights_loaded_after_the_recorder_was_made(tmp_path: Path) -> None:
    """A checkpoint loaded before the first step is no update, and nothing from outside."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    oracle = Oracle(model)
    with record(tmp_path, model, optimizer) as rec:
        model.load_state_dict(make_model(seed=5).state_dict())
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            oracle.gradients()
            optimizer.step()
            oracle.update()
            rec.log()
    oracle.check(rec.index)
    assert not rec.index["exact:outside"].any()


def test_a_failed_sketch_is_no_skipped_step(tmp_path: Path) -> None:
    """When the sketch fails, later rows keep the loss and claim no skipped step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = record(tmp_path, model, optimizer)

    def train(step: int) -> None:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        rec.log(loss=float(step))

    train(0)
    rec._sketchers[0].gradients = None  # type: ignore[method-assign,assignment]  # it will raise
    with pytest.warns(FlashbackWarning, match="the sketch failed"):
        train(1)
    train(2)
    rec.close()
    assert rec.index["loss"].tolist() == [0.0, 1.0, 2.0]
    assert not rec.index["exact:step_skipped"].any()
