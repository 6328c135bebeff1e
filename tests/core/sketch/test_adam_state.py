"""Updates from Adam's moments equal what a snapshot would have shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flashback_core.errors import ModelError
from flashback_core.schema import SketchSchema
from flashback_core.sketch.backend import Backend, Watched
from flashback_core.sketch.device import DeviceBackend
from flashback_core.sketch.flat import FlatBackend
from flashback_core.sketch.sketcher import Sketcher
from flashback_core.sketch.sums import metric_values

SCHEMA = SketchSchema()
MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "maximize": lambda p: torch.optim.AdamW(p, lr=1e-2, maximize=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("backend", [FlatBackend, DeviceBackend], ids=["flat", "device"])
def test_state_equals_snapshot(maker: str, backend: Callable[..., Backend]) -> None:
    """Norms and maxima of the update agree with a snapshot to float32's rounding of the weights."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(n)) for n in (70_000, 300, 40)]
    optimizer = MAKERS[maker](parameters)

    def sketcher(kind: str) -> Sketcher:
        return Sketcher(optimizer, lambda p: int(p.numel() < 1000), 8,
                        lambda w, e, s: backend(w, e, s), update_from=kind)  # fmt: skip

    snapshot, state = sketcher("snapshot"), sketcher("state")
    for step in range(4):
        for i, p in enumerate(parameters):
            p.grad = torch.randn_like(p) if not (step == 2 and i == 1) else None
        snapshot.gradients()
        state.gradients()
        optimizer.step()
        rows = [metric_values(s.updates().result(), SCHEMA) for s in (snapshot, state)]
        for name in ("update_norm", "update_max", "param_norm", "group:attn_qkv:update_norm"):
            a, b = (row[SCHEMA.position(name)] for row in rows)
            assert b == pytest.approx(a, rel=2e-4), name
    assert state.memory_bytes < snapshot.memory_bytes - 4 * 70_000


def test_a_skipped_step_moved_nothing() -> None:
    """Where the optimizer did not step the update is exactly zero, not the last one again."""
    parameter = torch.nn.Parameter(torch.ones(10))
    optimizer = torch.optim.AdamW([parameter], lr=1e-2)
    sketcher = Sketcher(optimizer, lambda p: 0, 8, update_from="state")
    norms = []
    for skipped in (False, True, False):
        parameter.grad = torch.ones(10)
        sketcher.gradients()
        if not skipped:
            optimizer.step()
        norms.append(metric_values(sketcher.updates().result(), SCHEMA)[4])
    assert norms[1] == 0.0
    assert np.all(np.array(norms)[[0, 2]] > 0)


def test_other_optimizers_are_refused() -> None:
    """SGD has no state that tells its update; the error says what to use."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(ModelError, match=r"this is a SGD; use update_from='snapshot'"):
        Sketcher(optimizer, lambda p: 0, 8, update_from="state")
    with pytest.raises(ValueError, match="neither 'snapshot' nor 'state'"):
        Sketcher(optimizer, lambda p: 0, 8, update_from="thin air")
    with pytest.raises(ValueError, match="expected 1"):
        Sketcher(optimizer, lambda p: 0, 8, histogram_every=0)
    assert Watched.of([], [], 8).units == ()
