"""Scores: causal, in units of the run's own noise, the same in any stretches, in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.compiled import kernels
from flashback_core.detectors.feature_stream import FeatureStream
from flashback_core.detectors.features import Features
from flashback_core.detectors.reduction import Reduction
from flashback_core.detectors.score_stream import WARM_UP, ScoreStream
from flashback_core.table import MemoryTable, StepTable
from flashback_core.testing import healthy_run, run_with_fault

Floats = npt.NDArray[np.float64]


def scores(table: StepTable, *sizes: int) -> tuple[FeatureStream, Floats, Floats]:
    """Deviations and scores of `table`, taken in by stretches of `sizes` in turn."""
    features = FeatureStream((*table.names, *table.exact_names))
    floor = Features(features.items, np.empty((len(features.items), 0))).floor
    stream, parts, at = ScoreStream(floor), [], 0
    while at < len(table):
        size = sizes[len(parts) % len(sizes)] if sizes else len(table)
        x = features.update(table[at : at + size])
        parts.append(stream.update(x, features.first))
        at += size
    z, score = (np.concatenate(p, axis=-1) for p in zip(*parts, strict=True))
    return features, z, score


@pytest.mark.parametrize("sizes", [(1,), (16,), (7, 300, 1)])
def test_stretches_do_not_show(sizes: tuple[int, ...]) -> None:
    """Taken in by any stretches, a run has the same scores."""
    run = healthy_run(700)
    loss = np.array(run.column("loss"))
    loss[:123] = np.nan  # one feature begins late
    run = MemoryTable(run.steps, {n: run.column(n) for n in run} | {"loss": loss})
    _, z, score = scores(run)
    _, other_z, other_score = scores(run, *sizes)
    np.testing.assert_allclose(other_z, z, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(other_score, score, rtol=1e-9, atol=1e-9)


def test_silent_during_the_warm_up() -> None:
    """No test speaks before it has its rows, nor a feature that begins late."""
    run = run_with_fault(first_bad_step=20, n_steps=200)
    loss = np.array(run.column("loss"))
    loss[:90] = np.nan
    run = MemoryTable(run.steps, {n: run.column(n) for n in run} | {"loss": loss})
    features, _, score = scores(run)
    assert not score[..., :WARM_UP].any()
    assert score[0, :, WARM_UP + 3 :].any()
    j = next(j for j, item in enumerate(features.items) if item.metric == "loss")
    assert not score[:, j, : 90 + WARM_UP].any()


def test_a_jump_stands_out_at_its_row() -> None:
    """At the row of a fault the point scores of its family exceed anything before."""
    features, z, score = scores(run_with_fault(first_bad_step=250, kind="update_jump"))
    reduction = Reduction(features.items)
    found = reduction(z, score)[reduction.names.index("update_lr/point/consensus")]
    assert found[250] > 5 * found[:250].max()


def test_state() -> None:
    """Restored from its state, a stream goes on as the first does."""
    run = healthy_run(400)
    features = FeatureStream(run.names)
    floor = Features(features.items, np.empty((len(features.items), 0))).floor
    x = features.update(run)
    one, other = ScoreStream(floor), ScoreStream(floor)
    one.update(x[:, :213], features.first)
    other.restore(one.state())
    np.testing.assert_array_equal(
        one.update(x[:, 213:], features.first)[1], other.update(x[:, 213:], features.first)[1]
    )


def test_backends_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that begins with numpy goes on with numba once that is loaded; no score moves."""
    pytest.importorskip("numba")
    run = healthy_run(400)
    features = FeatureStream(run.names)
    floor = Features(features.items, np.empty((len(features.items), 0))).floor
    x = features.update(run)
    monkeypatch.setenv("FLASHBACK_BACKEND", "flat")
    one, other = ScoreStream(floor), ScoreStream(floor)
    expected = one.update(x, features.first)
    parts = [other.update(x[:, :150], features.first)]
    assert (one.backend, other.backend) == ("flat", "flat")
    monkeypatch.delenv("FLASHBACK_BACKEND")
    assert kernels(is_worth_it=True) is not None
    parts.append(other.update(x[:, 150:], features.first))
    assert (other.backend, other.row) == ("fused", 400)
    for k in range(2):
        np.testing.assert_array_equal(np.concatenate([p[k] for p in parts], axis=-1), expected[k])


def test_memory_does_not_grow() -> None:
    """What is kept after many rows is as large as after some."""

    def size(stream: ScoreStream) -> int:
        return sum(np.asarray(value).nbytes for value in stream.state().values())

    rng = np.random.default_rng(0)
    stream, first = ScoreStream(np.full((5, 1), 0.01)), np.zeros(5, np.int64)
    stream.update(rng.standard_normal((5, 500)), first)
    before = size(stream)
    stream.update(rng.standard_normal((5, 5000)), first)
    assert size(stream) == before
