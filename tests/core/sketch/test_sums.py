"""Sums merge exactly, and metrics are made from merged sums."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashback_core.schema import SketchSchema
from flashback_core.sketch.reference import reference_sums
from flashback_core.sketch.sums import StepSums, empty_sums, merge_sums, metric_values

SCHEMA = SketchSchema()


def _sums(seed: int, pieces: list[slice] | None = None) -> list[StepSums]:
    """Sums of the shards `pieces` of two tensors (the whole where None)."""
    rng = np.random.default_rng(seed)
    grads = [rng.standard_normal(60).astype(np.float32) for _ in range(2)]
    before = [rng.standard_normal(60).astype(np.float32) for _ in range(2)]
    after = [b - np.float32(0.01) * g for b, g in zip(before, grads, strict=True)]
    grads[0][3] = np.nan
    signs = [np.where(rng.random(60) < 0.5, -1, 1).astype(np.int8) for _ in range(2)]
    out = []
    for piece in pieces or [slice(None)]:
        part = [s[piece].copy() for s in signs]
        out.append(
            reference_sums(
                [g[piece] for g in grads], [b[piece] for b in before],
                [a[piece] for a in after], (0, 3), 8, list(part),
            )
        )  # fmt: skip
    return out


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 60), max_size=4), st.randoms())
def test_shards_merge_to_the_whole(seed: int, cuts: list[int], random: object) -> None:
    """Any cut into shards, merged in any order, gives the metrics of the whole."""
    bounds = [0, *sorted(cuts), 60]
    pieces = [slice(a, b) for a, b in pairwise(bounds)]
    parts = _sums(seed, pieces)
    random.shuffle(parts)  # type: ignore[attr-defined]
    merged, whole = metric_values(merge_sums(parts), SCHEMA), metric_values(_sums(seed)[0], SCHEMA)
    np.testing.assert_allclose(merged, whole, rtol=1e-9)


def test_empty_sums_are_neutral() -> None:
    """Merging with the sums of nothing changes nothing."""
    (whole,) = _sums(1)
    merged = merge_sums([empty_sums(8, 2), whole])
    np.testing.assert_array_equal(metric_values(merged, SCHEMA), metric_values(whole, SCHEMA))


def test_merge_refuses_nothing_and_strangers() -> None:
    """No parts, or parts of another model, are an error that says so."""
    with pytest.raises(ValueError, match="no parts"):
        merge_sums([])
    with pytest.raises(ValueError, match="different groups or tensors"):
        merge_sums([empty_sums(8, 2), empty_sums(8, 3)])


def test_metrics_by_hand() -> None:
    """Norms, maxima, variance, rates, ratios and quantiles of a step small enough to work out."""
    signs = [np.array([1, -1, 1], np.int8), None]
    sums = reference_sums(
        [np.array([3.0, 4.0, 0.0]), np.array([np.inf])],
        [np.array([1.0, 1.0, 1.0]), np.array([0.0])],
        [np.array([1.0, 1.0, 3.0]), np.array([0.0])],
        (0, 5), 8, signs,
    )  # fmt: skip
    row = dict(zip(SCHEMA.names, metric_values(sums, SCHEMA), strict=True))
    assert row["grad_norm"] == 5.0
    assert row["grad_max"] == 4.0
    assert row["nonfinite"] == 1
    assert row["update_norm"] == 2.0
    assert row["param_norm"] == pytest.approx(11**0.5)
    assert row["group:embed:var"] == pytest.approx(np.var([3.0, 4.0, 0.0]))
    assert row["group:embed:sign_flip"] == pytest.approx(1 / 3)  # 4.0 after -1; 0.0 is no flip
    assert row["group:embed:upd_param_ratio"] == pytest.approx(2 / 11**0.5)
    assert row["group:norm:nonfinite"] == 1
    assert row["group:norm:grad_norm"] == 0.0
    assert np.isnan(row["group:norm:upd_param_ratio"])  # its weights are zero
    assert np.isnan(row["group:head:grad_norm"])
    assert row["grad_norm_p50"] == pytest.approx(2.5)
    assert sum(row[f"hist_grad:{i}"] for i in range(16)) == 3
    assert np.isnan(row["loss"])


def test_quantiles_equal_numpy() -> None:
    """Quantiles are numpy's linear ones; tensors without a gradient are left out."""
    rng = np.random.default_rng(0)
    sums = empty_sums(8, 23)
    squares = rng.random(20)
    sums.tensor_sumsq[3:] = squares
    values = metric_values(sums, SCHEMA)
    names = [n for n in SCHEMA.names if n.startswith("grad_norm_p")]
    expected = np.quantile(np.sqrt(squares), [0.1, 0.25, 0.5, 0.75, 0.9])
    np.testing.assert_allclose([values[SCHEMA.position(n)] for n in names], expected)
