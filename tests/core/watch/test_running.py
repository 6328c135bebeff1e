"""A flipped high bit of a running statistic is seen; what training does to it is not reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import flashback_core as fb
from flashback_core.watch.running import RunningWatch

STEPS, AT = 30, 20


def _train(
    folder: Path, meddle: Callable[[nn.Sequential], None] = lambda model: None
) -> fb.StepSketchIndex:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with fb.Recorder(folder, model, optimizer, write_report=False) as rec:
        for step in range(STEPS):
            x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(step))
            if step == AT:
                meddle(model)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            rec.log()
    return rec.index


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    """Running statistics move at every step."""
    assert not _train(tmp_path)["exact:outside"].any()


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize("bit", [29, 30])
def test_a_flipped_exponent(tmp_path: Path, name: str, bit: int) -> None:
    """One entry out of all bounds is named at its step, and once."""

    def flip(model: nn.Sequential) -> None:
        words = getattr(model[1], name).view(torch.int32)
        words[2] ^= 1 << bit if not int(words[2]) >> bit & 1 else 1 << 30

    index = _train(tmp_path, flip)
    assert np.flatnonzero(index["exact:outside"]).tolist() == [AT]
    assert index["exact:outside"][AT] == 4
    (event,) = [e for e in index.events if e["event"] == "outside"]
    assert (event["what"], event["tensors"]) == ("buffers", [f"1.{name}"])


def test_a_channel_that_explodes(tmp_path: Path) -> None:
    """A weight out of all bounds moves mean and variance of its channel: no write to a buffer."""

    def explode(model: nn.Sequential) -> None:
        model[0].weight.data[1] *= 1e6

    index = _train(tmp_path, explode)
    assert (index["exact:outside"] & 4).tolist() == [0] * STEPS
    assert index["exact:outside"][AT] & 1


def test_statistics_that_are_reset(tmp_path: Path) -> None:
    """All entries at once are no flipped bit."""
    index = _train(tmp_path, lambda model: model[1].reset_running_stats())
    assert not index["exact:outside"].any()


def test_early_steps_and_integers_are_left_out() -> None:
    """Before eight changes nothing is judged, and other dtypes are not watched."""
    buffer, count = torch.zeros(3), torch.zeros(2, dtype=torch.int64)
    watch = RunningWatch([(("a",), buffer), (("n",), count)])
    assert watch.look() == []
    for step in range(7):
        buffer += 0.1
        assert watch.look() == [], step
    buffer[0] = 1e20
    assert watch.look() == []
    assert RunningWatch([(("n",), count)]).look() == []
