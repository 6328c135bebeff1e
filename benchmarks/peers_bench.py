"""What people would use today, each on a model of its own, in turn in one process.

The cost of a tool is its model's whole step, its own background threads included, minus the step of
a bare model. Every tool records every step, since one that skips steps cannot name one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import flashback_core as fb
from benchmarks.workloads import clock, median, model, table

Step = Callable[[torch.Tensor, int], None]


def main(*, quick: bool = False) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rounds = 30 if quick else 100
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        makers = {
            "bare": _bare,
            "flashback, defaults": _flashback,
            "a loop with .item() and histc": _item_loop,
            "Lightning grad_norm": _lightning,
            "wandb.watch(gradients, log_freq=1)": _wandb,
            "TensorBoard histograms of gradients": _tensorboard,
        }
        runs = {}
        for i, (name, make) in enumerate(makers.items()):
            net, batches = model("A")
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
            act = make(net, optimizer, Path(folder) / str(i), stack)
            runs[name] = (net, batches, optimizer, act, [])
        for step in range(rounds):
            for net, batches, optimizer, act, costs in runs.values():
                start = clock()
                loss = net.loss(next(batches))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                act(loss, step)
                costs.append(clock() - start)
    bare = median(runs["bare"][4])
    ours = median(runs["flashback, defaults"][4]) - bare
    rows = []
    for name, (*_, costs) in runs.items():
        extra = median(costs) - bare
        rows.append([name, median(costs), 100 * extra / bare, extra / ours if ours > 0 else 0.0])
    table(
        f"Workload A, bare step {bare:.1f} ms, processor time of the whole process",
        ["tool", "step ms", "cost %", "x flashback"],
        rows,
    )


def _bare(net: Any, optimizer: Any, folder: Path, stack: ExitStack) -> Step:
    del net, optimizer, folder, stack
    return lambda loss, step: None


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
