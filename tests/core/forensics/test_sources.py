"""Batches depend on seed, step and position alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.sources import epoch_order, make_source


@pytest.mark.parametrize("family", ["gpt", "mlp", "denoiser"])
def test_batches_repeat(family: str) -> None:
    """The same step gives the same batch; another step or seed gives another."""
    sources = [make_source(TaskConfig(family=family, seed=s)) for s in (0, 0, 1)]
    a, b, c = (s.draw(5, 4, 20) for s in sources)
    assert all(torch.equal(a[k], b[k]) for k in ("x", "y"))
    assert a["ids"].tolist() == b["ids"].tolist()
    assert not torch.equal(a["x"], c["x"])
    assert not torch.equal(a["x"], sources[0].draw(6, 4, 24)["x"])


def test_labels_of_text_are_the_next_bytes() -> None:
    """Labels are the inputs shifted by one."""
    batch = make_source(TaskConfig(size="micro")).draw(0, 4, 0)
    assert batch["x"].shape == (4, 16)
    assert torch.equal(batch["x"][:, 1:], batch["y"][:, :-1])


def test_an_epoch_shows_every_sample_once() -> None:
    """Every sample once per epoch, in an order of its own, across epoch ends too."""
    order = np.concatenate([epoch_order(3, 10, p, 4) for p in range(0, 20, 4)])
    assert sorted(order[:10]) == list(range(10))
    assert sorted(order[10:]) == list(range(10))
    assert order[:10].tolist() != order[10:].tolist()


def test_a_small_text_is_seen_again() -> None:
    """With n_samples only so many windows are used."""
    source = make_source(TaskConfig(size="micro", n_samples=8))
    ids = [source.draw(s, 4, 4 * s)["ids"].tolist() for s in range(4)]
    assert sorted(ids[0] + ids[1]) == sorted(ids[2] + ids[3])


def test_noise_levels_lie_in_the_unit_interval() -> None:
    """The denoiser's inputs mix image and noise; labels are the noise."""
    batch = make_source(TaskConfig(family="denoiser")).draw(0, 64, 0)
    assert 0 <= float(batch["level"].min()) < float(batch["level"].max()) < 1
    assert float(batch["y"].std()) == pytest.approx(1.0, abs=0.1)
