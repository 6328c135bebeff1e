"""Features: scale-free coordinates of whatever metrics a run has."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.feature_stream import FeatureStream
from flashback_core.detectors.features import FAMILIES, FLOORS, Features
from flashback_core.table import MemoryTable, StepTable
from flashback_core.testing import healthy_run


def features(table: StepTable) -> Features:
    """All features of `table`, taken in at once."""
    stream = FeatureStream((*table.names, *table.exact_names))
    values = stream.update(table)
    return Features(stream.items, values)


def families(found: Features) -> list[str]:
    """Family of each feature."""
    return [item.family for item in found.items]


def rebuilt(table: StepTable, **columns: np.ndarray) -> MemoryTable:
    """`table` with some columns replaced."""
    return MemoryTable(table.steps, {n: table.column(n) for n in table} | columns)


def test_default_schema_gives_every_family() -> None:
    """All families are there, all values finite, each label once."""
    found = features(healthy_run(50))
    assert set(families(found)) == set(FAMILIES) - {"update"} == set(FLOORS) - {"update"}
    assert np.isfinite(found.values).all()
    named = [(item.label, item.family) for item in found.items]
    assert len(named) == len(set(named))


def test_phase_follows_the_schema() -> None:
    """What describes the update comes after the step, the rest before it."""
    found = features(healthy_run(50))
    after = {found.items[j].metric for j in np.flatnonzero(found.is_after)}
    assert all("update" in name or "param_norm" in name for name in after)


@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
def test_a_scale_is_a_constant(factor: float) -> None:
    """Norms in other units move each feature by a constant, or not at all."""
    run = healthy_run(60)
    names = [n for n in run.names if n.split(":")[-1] in ("grad_norm", "max_abs", "grad_max")]
    found = features(run)
    scaled = features(rebuilt(run, **{name: factor * run.column(name) for name in names}))
    moved = scaled.values - found.values
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-9)
    flat = np.isin(families(found), ["composition", "peak", "update_lr", "parameter"])
    np.testing.assert_allclose(moved[flat], 0.0, atol=1e-9)


def test_a_schedule_is_invisible() -> None:
    """Updates in proportion to the learning rate are flat, where the learning rate is known."""
    lr = 1e-3 * np.linspace(1.0, 0.0, 101)[:-1]
    columns = {"lr": lr, "update_norm": 5 * lr}
    (known,) = features(MemoryTable(np.arange(100), columns)).values
    np.testing.assert_allclose(known, np.log(5))
    found = features(MemoryTable(np.arange(100), {"update_norm": 5 * lr}))
    assert found.items[0].family == "update"
    np.testing.assert_allclose(found.values[0], np.log(5 * lr))


def test_updates_of_next_to_nothing_are_left_out() -> None:
    """At the end of a decay to zero an update is mostly rounding, and takes the value before."""
    lr = 1e-3 * np.array([1.0, 0.5, 0.1, 1e-5, 0.0])
    update = 5 * lr + np.array([0, 0, 0, 1e-3, 1e-3])
    (values,) = features(MemoryTable(np.arange(5), {"lr": lr, "update_norm": update})).values
    np.testing.assert_allclose(values, np.log(5))


@pytest.mark.parametrize(
    ("first", "faint", "clear"),
    [(2.3, (0.0, 1.1e-7), 1.3e-7), (1e5, (0.0, 1.1e-7), 1e-4), (1e-8, (0.0, 1e-15), 1e-14)],
    ids=["cross-entropy", "a large loss that fell far", "a loss that is small by its units"],
)
def test_gradients_of_no_loss_are_left_out(
    first: float, faint: tuple[float, ...], clear: float
) -> None:
    """They are rounding and take the value before; updates and weights speak on."""
    run = healthy_run(60)
    loss = np.full(60, first)
    loss[[30, 40]], loss[50] = faint, clear
    found, usual = features(rebuilt(run, loss=loss)), features(run)
    of_gradient = ~found.is_after & (np.array(families(found)) != "loss")
    for row in (30, 40):
        assert (found.values[:, row] == found.values[:, row - 1])[of_gradient].all()
    np.testing.assert_array_equal(found.values[found.is_after], usual.values[found.is_after])
    np.testing.assert_array_equal(found.values[of_gradient, 50], usual.values[of_gradient, 50])


def test_skipped_steps_and_holes_take_the_value_before() -> None:
    """A skipped step moves nothing, nor does NaN, infinity, zero or a rate out of its range."""
    run = healthy_run(60)
    norm = np.array(run.column("grad_norm"))
    norm[[10, 20, 30]] = np.nan, np.inf, 0.0
    flips = np.array(run.column("group:head:sign_flip"))
    flips[15] = np.inf
    skipped = np.zeros(60, int)
    skipped[40] = 1
    columns = {"grad_norm": norm, "group:head:sign_flip": flips, "exact:step_skipped": skipped}
    found = features(rebuilt(run, **columns))
    j = next(i for i, item in enumerate(found.items) if item.label == "grad_norm")
    for row in (10, 20, 30, 40):
        assert found.values[j, row] == found.values[j, row - 1]
    assert np.isfinite(found.values).all()


def test_a_column_that_comes_late() -> None:
    """`first` says where a feature begins."""
    loss = np.where(np.arange(30) < 12, np.nan, 2.0)
    stream = FeatureStream(("loss",))
    table = MemoryTable(np.arange(30), {"loss": loss})
    stream.update(table[:10])
    assert stream.first.tolist() == [-1]
    stream.update(table[10:])
    assert stream.first.tolist() == [12]


def test_negative_losses_are_finite() -> None:
    """A loss that changes sign has a logarithm of a kind."""
    found = features(MemoryTable(np.arange(5), {"loss": [2.0, 0.0, -2.0, 1.0, -1.0]}))
    assert np.isfinite(found.values).all()
    assert np.all(np.diff(found.values[0, :3]) < 0)


def test_nothing_to_go_by() -> None:
    """A table without metrics or rows has no features."""
    assert features(MemoryTable([], {})).items == ()
    assert features(MemoryTable([0, 1], {"val_acc": [0.1, 0.2]})).items == ()
    assert features(healthy_run(10)[:0]).values.shape[1] == 0


@pytest.mark.parametrize("sizes", [(1,), (16,), (5, 1, 200)])
def test_stretches_do_not_show(sizes: tuple[int, ...]) -> None:
    """Taken in by any stretches, by one that goes on from its state each time, all is the same.

    With holes, skipped steps and losses of nothing.
    """
    run = healthy_run(300)
    rng = np.random.default_rng(3)
    columns = {name: np.array(run.column(name), np.float64) for name in run.names}
    for values in columns.values():
        values[1:][rng.random(299) < 0.05] = np.nan
    columns["exact:step_skipped"] = (rng.random(300) < 0.05).astype(np.int64)
    columns["loss"][rng.random(300) < 0.05] = 1e-7 * columns["loss"][0]
    columns["lr"][rng.random(300) < 0.05] = 1e-9
    table = MemoryTable(run.steps, columns)
    stream, parts, at = FeatureStream((*table.names, *table.exact_names)), [], 0
    while at < 300:
        size = sizes[len(parts) % len(sizes)]
        parts.append(stream.update(table[at : at + size]))
        at += size
        state = stream.state()
        stream = FeatureStream((*table.names, *table.exact_names))
        stream.restore(state)
    whole = features(table)
    begun = np.arange(300) >= stream.first[:, None]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1)[begun], whole.values[begun])
    assert stream.items == whole.items


def test_a_histogram_in_one_bin_is_silent() -> None:
    """Where nearly all entries share a bin, its mean would only say that an edge was crossed."""
    run = healthy_run(20)
    counts = {f"hist_update:{i}": np.full(20, 1.0) for i in range(16)}
    counts["hist_update:5"] = np.where(np.arange(20) < 10, 1e6, 1.0)
    counts["hist_update:6"] = np.where(np.arange(20) < 10, 1.0, 1e6)
    table = MemoryTable(np.arange(20), {"lr": run.column("lr"), **counts})
    found = features(table)
    assert {item.family for item in found.items} == {"histogram"}
    np.testing.assert_array_equal(found.values, 0.0)


def crossing(n: int, rows: int) -> dict[str, np.ndarray]:
    """Updates of one size that cross an edge of bins within some rows, after 20, and stay there."""
    over = np.clip((np.arange(n) - 20) / rows, 0, 1)
    counts = {f"hist_update:{i}": np.full(n, 1.0) for i in range(16)}
    counts["hist_update:5"], counts["hist_update:6"] = 1e6 * (1 - over) + 1, 1e6 * over + 1
    return counts | {"lr": np.full(n, 1e-3)}


def test_a_histogram_that_crosses_an_edge_is_silent() -> None:
    """Lion moves all weights by one size: over some rows two bins hold them, and then the other."""
    found = features(MemoryTable(np.arange(60), crossing(60, 20)))
    np.testing.assert_array_equal(found.values, 0.0)


def wide(counts: dict[str, np.ndarray], rows: slice) -> None:
    """Spread the updates of some rows evenly over four bins."""
    for i in range(16):
        counts[f"hist_update:{i}"][rows] = 2e5 if 4 <= i < 8 else 1.0


@pytest.mark.parametrize("size", [1, 7, 120])
def test_two_bins_that_stay_are_a_distribution(size: int) -> None:
    """What has stayed in two bins for longer than it takes to cross is one to be watched.

    It goes on from where it was before the silence: a step of what was not heard would be an alarm.
    """
    counts = crossing(120, 20)
    for i in (5, 6):
        counts[f"hist_update:{i}"][21:] = 5e5
    wide(counts, slice(10))
    wide(counts, slice(90, None))
    table = MemoryTable(np.arange(120), counts)
    stream = FeatureStream((*table.names, *table.exact_names))
    width = np.concatenate([stream.update(table[i : i + size]) for i in range(0, 120, size)], 1)[1]
    np.testing.assert_allclose(width[:90], np.sqrt(1.25), rtol=1e-3)
    np.testing.assert_allclose(width[90:], 2 * np.sqrt(1.25) - 0.5, rtol=1e-3)


def test_a_lump_of_a_row_leaves_no_trace() -> None:
    """Updates of nothing at all share a bin too; what was before and is again did not move."""
    counts = crossing(60, 1000)
    wide(counts, slice(None))
    for i in range(16):
        counts[f"hist_update:{i}"][[30, 40, 41]] = 1e6 if i == 0 else 0.0
    found = features(MemoryTable(np.arange(60), counts))
    np.testing.assert_allclose(np.ptp(found.values, axis=1), 0.0, atol=1e-9)


def test_a_lump_that_bursts_is_seen() -> None:
    """Updates of one size that suddenly have many sizes: that step counts in full."""
    counts = crossing(60, 1000)
    wide(counts, slice(10))
    for i in range(16):
        counts[f"hist_update:{i}"][40:] = 1e5
    mean, width = features(MemoryTable(np.arange(60), counts)).values
    assert np.ptp(width[:40]) == np.ptp(mean[:40]) == 0.0
    np.testing.assert_allclose(width[40:] - width[39], np.sqrt(255 / 12) - np.sqrt(1.25), rtol=1e-3)
    np.testing.assert_allclose(mean[40:] - mean[39], 2.0, rtol=1e-3)


def test_the_growth_of_weights_is_that_at_the_full_learning_rate() -> None:
    """Weights that grow with the learning rate: a schedule does not show, down to a 30th of it."""
    lr = 1e-3 * np.linspace(1.0, 0.0, 201)[:-1]
    norms = np.exp(np.cumsum(0.1 * lr))
    columns = {"lr": lr, "param_norm": norms}
    (values,) = features(MemoryTable(np.arange(200), columns)).values
    np.testing.assert_allclose(values[1:100], 1e-4, rtol=0.07)
    (plain,) = features(MemoryTable(np.arange(200), {"param_norm": norms})).values
    np.testing.assert_allclose(plain[1:], 0.1 * lr[1:], rtol=1e-6)


def test_a_share_is_told_by_its_odds() -> None:
    """A group that holds nearly all of a norm moves as far as the rest of it does."""
    rest = np.array([0.2, 0.1, 0.4])
    most = np.sqrt(1 - rest**2)
    columns = {"grad_norm": np.ones(3), "group:a:grad_norm": most, "group:b:grad_norm": rest}
    found = features(MemoryTable(np.arange(3), columns))
    labels = [item.label for item in found.items]
    a, b = (found.values[labels.index(f"group:{g}:grad_norm / grad_norm")] for g in "ab")
    np.testing.assert_allclose(a, np.log(most / rest))
    np.testing.assert_allclose(a, -b)
