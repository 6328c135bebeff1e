"""`bounds`: values of any size come through detectors and reports without error or warning."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.bounds import LARGEST, bounded, whole
from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.detectors.loss_curve import LossCurveDetector
from flashback_core.report.batch import batch_at
from flashback_core.table import MemoryTable
from flashback_core.testing import run_with_fault

EXTREMES = (np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 5e-324, -1.0, 0.0, 2.0**63, 2.0**64)


def test_bounded_keeps_what_is_no_number() -> None:
    """Only finite values are bounded; small ones come back as they are."""
    x = np.array([1.0, np.nan, np.inf, -np.inf, 1e300, -1e300])
    np.testing.assert_array_equal(bounded(x), [1, np.nan, np.inf, -np.inf, LARGEST, -LARGEST])
    assert bounded(y := np.array([1.0, np.nan])) is y


def test_whole_numbers() -> None:
    """What is no whole number is absent; unsigned values keep their bits."""
    assert whole(np.array(EXTREMES)[[0, 1, 3, 8]], absent=-1).tolist() == [-1, -1, -1, -1]
    assert whole(np.array([2**64 - 1], np.uint64)).tolist() == [-1]


def table_with(rng: np.random.Generator, n_columns: int) -> MemoryTable:
    """A run with extreme values in some columns, also in those of whole numbers."""
    run = run_with_fault(first_bad_step=70, n_steps=100)
    columns = {name: np.asarray(run.column(name), np.float64) for name in run}
    for field in ("outside", "batch_seen", "duplicates", "labels", "lost_updates", "low16",
                  "optimizer", "epoch", "batch_index", "batch_hash", "config_hash"):  # fmt: skip
        columns[f"exact:{field}"] = np.zeros(100)
    for name in rng.choice(list(columns), n_columns, replace=False):
        where = rng.random(100) < rng.choice([0.02, 0.3, 1.0])
        columns[name] = np.where(where, rng.choice(EXTREMES, 100), columns[name])
    return MemoryTable(run.steps, columns)


@pytest.mark.parametrize("n_columns", [1, 8, 60])
@pytest.mark.parametrize("seed", range(4))
def test_extreme_values_do_no_harm(seed: int, n_columns: int) -> None:
    """Detectors and all forms of the report take any float in any column."""
    table = table_with(np.random.default_rng([seed, n_columns]), n_columns)
    report = FirstBadStepDetector().predict(table)
    LossCurveDetector().predict(table)
    assert report.to_json()
    assert report.to_markdown()
    assert "</html>" in report.to_html()


@pytest.mark.parametrize("names", [("loss",), ("loss", "lr", "grad_norm"), ("nonfinite", "lr")])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_but_extreme_values(seed: int, names: tuple[str, ...]) -> None:
    """A log that holds nothing else is judged, too."""
    rng = np.random.default_rng(seed)
    table = MemoryTable(np.arange(90), {name: rng.choice(EXTREMES, 90) for name in names})
    for detector in (FirstBadStepDetector(), LossCurveDetector()):
        assert "</html>" in detector.predict(table).to_html()


def test_an_infinite_count() -> None:
    """A count of NaN entries that is itself infinite is a finding with words."""
    table = MemoryTable(np.arange(3), {"nonfinite": [0.0, np.inf, np.inf]})
    finding = FirstBadStepDetector().predict(table).bad
    assert finding is not None
    assert finding.step == 1
    assert finding.evidence == ("countless gradient entries were NaN or infinite at step 1.",)


@pytest.mark.parametrize("value", EXTREMES)
def test_a_batch_that_no_recorder_wrote(value: float) -> None:
    """Exact columns made by hand may hold anything; what is no batch is not known."""
    columns = {f"exact:{n}": np.full(3, value) for n in ("batch_hash", "epoch", "batch_index")}
    batch = batch_at(MemoryTable(np.arange(3), columns), 1)
    known = 0 <= value < 2.0**64
    assert (batch is not None) == known
