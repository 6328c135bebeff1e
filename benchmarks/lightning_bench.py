"""What the whole Lightning callback costs of a step, loggers included, all processor time counted.

Several trainers fit equal models in threads that take turns batch by batch, so that a busy machine
slows all of them alike; what is counted is processor time of the whole process while it is a
trainer's turn. The cost of a callback is its trainer's batch minus that of a bare one with the same
logger. Goals: 6 % with a CSVLogger, 8 % with W&B offline, 0.5 % for the check of replicas.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from benchmarks.defaults_bench import typical
from benchmarks.workloads import clock, median, model, table
from flashback_core.warn import Guard
from flashback_plugins._lightning_ranks import Ranks
from flashback_plugins.lightning import FlashbackCallback


def main(*, quick: bool = False) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["WANDB_SILENT"] = "true"
    rounds = 96 if quick else 400
    rows = []
    for name, goal in (("CSVLogger", 6), ("W&B offline", 8)):
        bare, watched = measure(name, rounds)
        rows.append([name, bare, watched, 100 * (watched / bare - 1), goal])
    table(
        "FlashbackCallback with default settings, workload A, processor time",
        ["logger", "bare batch ms", "watched batch ms", "cost %", "goal %"],
        rows,
    )
    each, every = replica_check(rounds)
    step = rows[0][1]
    table(
        "Check of replicas, workload A, without the exchange itself",
        ["each step ms", "one meeting ms", "cost %, a meeting each 50 steps", "goal %"],
        [[each, every, 100 * (each + every / 50) / step, 0.5]],
    )


class Module(pl.LightningModule):
    """A model of `benchmarks.workloads`, which logs its loss as people do."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, windows: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.net.loss(windows)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Turns(torch.utils.data.IterableDataset[torch.Tensor]):
    """Batches of one trainer, each given when it is this trainer's turn.

    Attributes:
        costs: Processor time from each batch to the next, in ms.
    """

    def __init__(self, batches: Any, rounds: int, baton: Baton, place: int) -> None:
        self._batches, self._rounds, self._baton, self._place = batches, rounds, baton, place
        self.costs: list[float] = []

    def __iter__(self) -> Any:
        """Wait for the turn, give a batch, take the time when the next one is asked for."""
        for _ in range(self._rounds):
            self._baton.wait(self._place)
            start = clock()
            yield next(self._batches)
            self.costs.append(clock() - start)
            self._baton.pass_on()


class Baton:
    """Says whose turn it is."""

    def __init__(self, n: int) -> None:
        self._n, self._turn, self._change = n, 0, threading.Condition()

    def wait(self, place: int) -> None:
        """Wait for the turn of `place`."""
        with self._change:
            self._change.wait_for(lambda: self._turn == place)

    def pass_on(self) -> None:
        """It is the next one's turn."""
        with self._change:
            self._turn = (self._turn + 1) % self._n
            self._change.notify_all()


def measure(logger: str, rounds: int) -> tuple[float, float]:
    """Typical batch of a bare and of a watched trainer, in ms."""
    baton = Baton(2)
    with tempfile.TemporaryDirectory() as folder:
        data, fits = [], []
        for place, watch in enumerate((False, True)):
            net, batches = model("A")
            data.append(Turns(batches, rounds, baton, place))
            fits.append(_fit(logger, Path(folder) / str(place), Module(net), data[-1], watch=watch))
        threads = [threading.Thread(target=fit) for fit in fits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return typical(data[0].costs), typical(data[1].costs)


def _fit(
    logger: str, folder: Path, module: Module, data: Turns, *, watch: bool
) -> Callable[[], None]:
    folder.mkdir(parents=True)
    chosen = CSVLogger(folder) if logger == "CSVLogger" else _wandb(folder)
    callbacks = [FlashbackCallback(folder / "run")] if watch else []
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=chosen, callbacks=callbacks,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    return lambda: trainer.fit(module, loader)


def _wandb(folder: Path) -> WandbLogger:
    import wandb

    run = wandb.init(project="bench", mode="offline", dir=folder, reinit="create_new")
    return WandbLogger(experiment=run)


def replica_check(rounds: int) -> tuple[float, float]:
    """What a rank spends at each step, and at a meeting before it exchanges anything, in ms."""
    net, _ = model("A")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    strategy = type("DDPStrategy", (), {})()
    trainer: Any = SimpleNamespace(global_rank=0, optimizers=[optimizer], strategy=strategy)
    ranks = Ranks(trainer, net, Guard())  # type: ignore[arg-type]  # what it reads of a module
    steps = _times(rounds, [lambda: ranks.before_step(optimizer, 0), lambda: ranks._after_step(0)])
    return steps, _times(rounds, [ranks._digest])


def _times(rounds: int, calls: Sequence[Callable[[], Any]]) -> float:
    costs = []
    for _ in range(rounds):
        start = clock()
        for call in calls:
            call()
        costs.append(clock() - start)
    return median(costs)
