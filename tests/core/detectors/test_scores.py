"""Scores: causal, in units of the run's own noise, the same in any stretch."""

from __future__ import annotations

import numpy as np
import pytest

import flashback_core.detectors.scores as module
from flashback_core.detectors.features import features
from flashback_core.detectors.scores import (
    EVERY,
    SCALES,
    WARM_UP,
    consensus,
    deviations,
    scores,
)
from flashback_core.testing import healthy_run, run_with_fault


def test_a_stretch_is_the_same_as_the_whole() -> None:
    """Deviations of some rows equal those rows of all deviations: the lookback is long enough."""
    found = features(healthy_run(1400))
    whole = deviations(found, 0, 1400)
    start = 1200 // EVERY * EVERY
    part = deviations(found, start, 1400)
    for test in SCALES:
        np.testing.assert_allclose(part[test].z, whole[test].z[:, start:], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(part[test].score, whole[test].score[:, start:], rtol=1e-6)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scored in small chunks, a run has the same scores."""
    found = features(healthy_run(1400))
    whole = scores(found)
    monkeypatch.setattr(module, "CHUNK", 256)
    for name, values in scores(found).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-6, atol=1e-9)


def test_silent_during_the_warm_up() -> None:
    """No test speaks before it has its rows."""
    values = scores(features(run_with_fault(first_bad_step=20, n_steps=120)))
    assert all(not score[:WARM_UP].any() for score in values.values())


def test_a_jump_stands_out_at_its_row() -> None:
    """At the row of a fault the point scores of its family exceed anything before."""
    values = scores(features(run_with_fault(first_bad_step=250, kind="update_jump")))
    score = values["update_lr/point/consensus"]
    assert score[250] > 10 * score[:250].max()


def test_one_odd_group_is_no_consensus() -> None:
    """The consensus is the median over groups: one that moves alone does not move it."""
    z = np.array([[0.1, 9.0, 9.0], [0.2, 0.1, 8.0], [-0.1, 0.2, 9.0], [0.3, -0.1, 0.1]])
    np.testing.assert_allclose(consensus(z), [0.15, 0.15, 8.5])


def test_still_groups_have_no_say() -> None:
    """Groups without a deviation are not counted, and two groups are no consensus."""
    np.testing.assert_allclose(consensus(np.array([[5.0], [4.0], [3.0], [0.0]])), [4.0])
    np.testing.assert_allclose(consensus(np.array([[5.0], [4.0], [0.0]])), [0.0])


def test_signs_must_agree() -> None:
    """Groups that move apart are no consensus."""
    assert consensus(np.array([[9.0], [-9.0], [8.0], [-8.0]])) == 0.0
