"""The sketch against the training step and against what people use today.

Every variant reads the same gradients of the same step, one behind the other, so that they share
its noise; processor time, one thread, medians.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.workloads import clock, median, model, table
from flashback_core.index import StepSketchIndex
from flashback_core.schema import SketchSchema
from flashback_core.sketch.backend import Backend, Watched
from flashback_core.sketch.flat import FlatBackend
from flashback_core.sketch.fused import FusedBackend
from flashback_core.sketch.sums import metric_values

SCHEMA = SketchSchema()
BACKENDS: dict[str, Callable[[Watched], Backend]] = {
    "fused": FusedBackend,
    "fused, histograms in turns of 8": partial(FusedBackend, histogram_every=8),
    "flat": FlatBackend,
    "flat, histograms in turns of 8": partial(FlatBackend, histogram_every=8),
}


def main(*, quick: bool = False) -> None:
    torch.set_num_threads(1)
    for name, rounds in (("A", 120), ("B", 45), ("C", 30)):
        workload(name, max(rounds // 4, 12) if quick else rounds)
    growth(8 if quick else 30)


def workload(name: str, rounds: int) -> None:
    """Sketch + append against the step, and against AdamW alone."""
    net, batches = model(name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    parameters = list(net.parameters())
    groups = [i % 8 for i in range(len(parameters))]
    costs: dict[str, list[float]] = {label: [] for label in (*BACKENDS, *PEERS)}
    steps, updates = [], []
    with tempfile.TemporaryDirectory() as folder:
        makes = {n: make(Watched.of(parameters, groups, 8)) for n, make in BACKENDS.items()}
        indexes = {n: StepSketchIndex(Path(folder) / str(i), "a") for i, n in enumerate(makes)}
        for i in range(rounds):
            start = clock()
            optimizer.zero_grad()
            net.loss(next(batches)).backward()
            backward = clock()
            halves = {n: _cost(partial(b.gradients, 1.0)) for n, b in makes.items()}
            before = clock()
            optimizer.step()
            after = clock()
            steps.append(backward - start + after - before)
            updates.append(after - before)
            for label, backend in makes.items():
                halves[label] += _cost(partial(_finish, backend, indexes[label], i))
                costs[label].append(halves[label])
            if name == "A":
                for label, peer in PEERS.items():
                    costs[label].append(_cost(partial(peer, net)))
        for index in indexes.values():
            index.close()
    step, update = median(steps), median(updates)
    rows = [
        [label, median(c), 100 * median(c) / step, median(c) / update]
        for label, c in costs.items()
        if c
    ]
    n = sum(p.numel() for p in parameters)
    title = f"Workload {name}: {n:,} parameters, {len(parameters)} tensors, step {step:.1f} ms"
    table(title, ["variant", "ms", "% of the step", "x AdamW alone"], rows)


def _cost(call: Callable[[], object]) -> float:
    start = clock()
    call()
    return clock() - start


def _finish(backend: Backend, index: StepSketchIndex, step: int) -> None:
    index.append(step, metric_values(backend.updates().result(), SCHEMA))


def _naive(net: torch.nn.Module) -> None:
    """What a first version looks like: a loop over parameters with `.item()`."""
    for p in net.parameters():
        g = p.grad
        if g is not None:
            g.norm().item(), g.abs().max().item(), g.var().item()
            (~torch.isfinite(g)).sum().item(), (g < 0).sum().item()
            torch.histc(g.abs().clamp_min(1e-12).log2(), 16, -32, 0).tolist()
            p.norm().item()


def _norms(net: torch.nn.Module) -> None:
    """As Lightning's `grad_norm`: one norm per parameter."""
    torch.stack([p.grad.norm(2) for p in net.parameters() if p.grad is not None]).tolist()


PEERS = {"a loop with .item()": _naive, "norms only, as Lightning's grad_norm": _norms}


GROWTH = (
    (500_000, 50), (3_000_000, 50), (10_000_000, 50), (30_000_000, 50), (100_000_000, 50),
    (2_500_000, 10), (2_500_000, 100), (2_500_000, 1000), (2_500_000, 2000),
)  # fmt: skip


def _read(parameters: list[torch.nn.Parameter]) -> None:
    """One vectorised read of gradients and weights."""
    for p in parameters:
        assert p.grad is not None
        torch.dot(p.grad, p.grad)
        torch.dot(p.detach(), p.detach())


def _sketch(backend: Backend) -> None:
    backend.gradients(1.0)
    backend.updates()


def growth(rounds: int) -> None:
    """Cost against the number of parameters and of tensors."""
    rows = []
    for n, tensors in GROWTH:
        parameters = [torch.nn.Parameter(torch.randn(n // tensors)) for _ in range(tensors)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        backend = FusedBackend(Watched.of(parameters, [i % 8 for i in range(tensors)], 8))
        costs, floors = [], []
        for _ in range(rounds):
            costs.append(_cost(partial(_sketch, backend)))
            floors.append(_cost(partial(_read, parameters)))
        cost, floor = median(costs), median(floors)
        rows.append([f"{n:,}", tensors, cost, 1e6 * cost / n, cost / floor])
    table(
        "Growth of the fused sketch, without the step",
        ["parameters", "tensors", "ms", "ns a parameter", "x one read of gradients and weights"],
        rows,
    )
