"""What people would use today, each against a bare model, in turn in one process.

Blocks of steps with and without the tool take turns; all processor time of a block counts, the
tool's own threads included, and one tool runs at a time. Every tool records every step, since one
that skips steps cannot name one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flashback_core as fb
from benchmarks.workloads import clock, model, table

Step = Callable[[torch.Tensor, int], None]


BLOCK = 15
"""Steps of a block."""


def main(*, quick: bool = False) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    makers = {
        "flashback, defaults": _flashback,
        "a loop with .item() and histc": _item_loop,
        "Lightning grad_norm": _lightning,
        "wandb.watch(gradients, log_freq=1)": _wandb,
        "TensorBoard histograms of gradients": _tensorboard,
    }
    costs = {name: measure(make, 4 if quick else 12) for name, make in makers.items()}
    ours = costs["flashback, defaults"][1]
    rows = [[name, step, cost, cost / ours] for name, (step, cost) in costs.items()]
    table(
        "Workload A, processor time of the whole process",
        ["tool", "bare step ms", "cost %", "x flashback"],
        rows,
    )


def measure(make: Callable[..., Step], blocks: int) -> tuple[float, float]:
    """Milliseconds of a bare step, and the cost of the tool in percent of it."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bare, watched = _training(), _training()
        act = make(watched[0], watched[2], Path(folder) / "run", stack)
        plain = [_block(bare, None) for _ in range(2)][1:]
        tool = [_block(watched, act)][1:]
        for _ in range(blocks):
            plain.append(_block(bare, None))
            tool.append(_block(watched, act))
    step = float(np.median(plain))
    return step, 100 * (float(np.median(tool)) / step - 1)


def _training() -> tuple[Any, Any, torch.optim.Optimizer, list[int]]:
    net, batches = model("A")
    return net, batches, torch.optim.AdamW(net.parameters(), lr=1e-3), [0]


def _block(training: tuple[Any, Any, torch.optim.Optimizer, list[int]], act: Step | None) -> float:
    """Milliseconds a step over one block."""
    net, batches, optimizer, count = training
    start = clock()
    for _ in range(BLOCK):
        loss = net.loss(next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if act is not None:
            act(loss, count[0])
        count[0] += 1
    return (clock() - start) / BLOCK


def _flashback(net: Any, optimizer: Any, folder: Path, stack: ExitStack) -> Step:
    rec = stack.enter_context(fb.Recorder(folder, net, optimizer, write_report=False))
    return lambda loss, step: rec.log(loss=loss, batch_ids=range(8 * step, 8 * step + 8))


def _item_loop(net: Any, optimizer: Any, folder: Path, stack: ExitStack) -> Step:
    del optimizer, folder, stack
    before = [p.detach().clone() for p in net.parameters()]

    def act(loss: torch.Tensor, step: int) -> None:
        del step
        loss.item()
        for p, old in zip(net.parameters(), before, strict=True):
            for x in (p.grad, p.detach() - old):
                x.norm().item(), x.abs().max().item(), x.var().item()
                (~torch.isfinite(x)).sum().item(), (x < 0).sum().item()
                torch.histc(x.abs().clamp_min(1e-12).log2(), 16, -32, 0).tolist()
            p.norm().item()
            old.copy_(p.detach())

    return act


def _lightning(net: Any, optimizer: Any, folder: Path, stack: ExitStack) -> Step:
    from lightning.pytorch.utilities import grad_norm

    del optimizer, folder, stack
    return lambda loss, step: [v.item() for v in grad_norm(net, 2).values()] and None


def _wandb(net: Any, optimizer: Any, folder: Path, stack: ExitStack) -> Step:
    import wandb

    del optimizer
    os.environ["WANDB_SILENT"] = "true"
    folder.mkdir(parents=True)
    run = wandb.init(project="bench", mode="offline", dir=folder)
    stack.callback(run.finish)
    run.watch(net, log="gradients", log_freq=1)
    return lambda loss, step: run.log({"loss": loss.item()})


def _tensorboard(net: Any, optimizer: Any, folder: Path, stack: ExitStack) -> Step:
    from torch.utils.tensorboard import SummaryWriter

    del optimizer
    writer = SummaryWriter(folder)
    stack.callback(writer.close)

    def act(loss: torch.Tensor, step: int) -> None:
        writer.add_scalar("loss", loss.item(), step)
        for name, p in net.named_parameters():
            writer.add_histogram(name, p.grad, step)

    return act
