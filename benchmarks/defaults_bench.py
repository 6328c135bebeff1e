"""What a recorder with default settings costs of a tiny step, all processor time counted.

Two equal models train in turn in one process, one bare and one recorded. ``paired`` compares their
whole steps, background threads included; ``inside`` times the calls of the recorder alone, which is
less noisy; ``online`` is the part of it that detects. Its statistics are worked out once every
`BLOCK_ROWS` rows, so what is printed is the median over blocks of so many steps of a block's mean.
Goal: 4 % for sketch and append, 6 % with invariants and online detection.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flashback_core as fb
from benchmarks.workloads import clock, model, table
from flashback_core.detectors.stream import BLOCK_ROWS


def main(*, quick: bool = False) -> None:
    torch.set_num_threads(1)
    rounds = 3 * BLOCK_ROWS if quick else 480
    names = ("A",) if quick else ("A", "B")
    rows = [measure(name, rounds if name == "A" else rounds // 4) for name in names]
    table(
        "Default recorder against the bare step, processor time",
        [
            "workload",
            "step ms",
            "paired %",
            "inside %",
            "online %",
            "online µs",
            "backend",
            "goal %",
        ],
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
        spent, online = _timed(recorder), _timed_online(recorder)
        plain, recorded, inside, detecting = [], [], [], []
        for i in range(rounds):
            start = clock()
            _step(bare, bare_optimizer, next(bare_batches))
            middle = clock()
            spent[0] = online[0] = 0.0
            loss = _step(watched, optimizer, next(watched_batches))
            recorder.log(loss=loss, batch_ids=range(8 * i, 8 * i + 8))
            recorded.append(clock() - middle)
            plain.append(middle - start)
            inside.append(spent[0])
            detecting.append(online[0])
        backend = recorder.index.run["sketch_backend"]
        recorder.close()
    step, online_ms = typical(plain), typical(detecting)
    paired = 100 * (typical(recorded) / step - 1)
    inside_share, online_share = 100 * typical(inside) / step, 100 * online_ms / step
    goal = 6 if name == "A" else "-"
    return [name, step, paired, inside_share, online_share, 1e3 * online_ms, backend, goal]


def typical(costs: Sequence[float]) -> float:
    """Median over blocks of `BLOCK_ROWS` steps of a block's mean; the first third warms up."""
    kept = costs[len(costs) // 3 :]
    kept = kept[: len(kept) // BLOCK_ROWS * BLOCK_ROWS]
    return float(np.median(np.reshape(kept, (-1, BLOCK_ROWS)).mean(axis=1)))


def _timed(recorder: Any) -> list[float]:
    """Time the recorder's own calls; returns a cell with the ms since it was last cleared."""
    steps = recorder._steps
    return _cell((steps, "_before"), (steps, "_after"), (recorder, "log"))


def _timed_online(recorder: Any) -> list[float]:
    return _cell((recorder._online, "row"))


def _cell(*methods: tuple[Any, str]) -> list[float]:
    spent = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent[0] += clock() - start

        return run

    for owner, name in methods:
        setattr(owner, name, timed(getattr(owner, name)))
    return spent


def _step(net: Any, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = net.loss(windows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
