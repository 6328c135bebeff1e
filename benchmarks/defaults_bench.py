"""What a recorder with default settings costs of a tiny step, all processor time counted.

Two equal models train in turn in one process, one bare and one recorded. ``paired`` compares their
whole steps, background threads included; ``inside`` times the calls of the recorder alone, which is
less noisy. Goal: 4 % for sketch and append, 6 % with invariants and online detection.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import flashback_core as fb
from benchmarks.workloads import clock, median, model, table


def main(*, quick: bool = False) -> None:
    torch.set_num_threads(1)
    rounds = 60 if quick else 240
    names = ("A",) if quick else ("A", "B")
    rows = [measure(name, rounds if name == "A" else rounds // 4) for name in names]
    table(
        "Default recorder against the bare step, processor time",
        ["workload", "step ms", "paired %", "inside %", "backend", "goal %"],
        rows,
    )


def measure(name: str, rounds: int) -> list[object]:
    """One row: the ratio on one workload."""
    with tempfile.TemporaryDirectory() as folder:
        bare, bare_batches = model(name)
        watched, watched_batches = model(name)
        bare_optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-3)
        optimizer = torch.optim.AdamW(watched.parameters(), lr=1e-3)
        recorder = fb.Recorder(Path(folder) / "run", watched, optimizer, write_report=False)
        spent = _timed(recorder)
        plain, recorded, inside = [], [], []
        for i in range(rounds):
            start = clock()
            _step(bare, bare_optimizer, next(bare_batches))
            middle = clock()
            spent[0] = 0.0
            loss = _step(watched, optimizer, next(watched_batches))
            recorder.log(loss=loss, batch_ids=range(8 * i, 8 * i + 8))
            recorded.append(clock() - middle)
            plain.append(middle - start)
            inside.append(spent[0])
        backend = recorder.index.run["sketch_backend"]
        recorder.close()
    step = median(plain)
    paired = 100 * (median(recorded) / step - 1)
    return [name, step, paired, 100 * median(inside) / step, backend, 6 if name == "A" else "-"]


def _timed(recorder: Any) -> list[float]:
    """Time the recorder's own calls; returns a cell with the ms since it was last cleared."""
    spent = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent[0] += clock() - start

        return run

    for owner, name in (
        (recorder._steps, "_before"),
        (recorder._steps, "_after"),
        (recorder, "log"),
    ):
        setattr(owner, name, timed(getattr(owner, name)))
    return spent


def _step(net: Any, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = net.loss(windows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
