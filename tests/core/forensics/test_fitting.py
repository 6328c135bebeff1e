"""Fitting on the training split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.errors import NoBaselineError
from flashback_core.forensics.fitting import fit, fitted
from flashback_core.forensics.tables import fingerprint, load_runs


def test_fit_is_on_training_runs_and_says_on_which(data: Path, tmp_path: Path) -> None:
    """The saved detector loads, equals a fit on the same runs, and tells its provenance."""
    made = fit(data, tmp_path / "d", command="flashback forensics fit")
    again = FirstBadStepDetector.load(tmp_path / "d")
    same = fitted([run for run in load_runs(data) if run.split == "train"])
    assert made.thresholds == again.thresholds == same.thresholds
    facts = json.loads((tmp_path / "d" / "provenance.json").read_text("utf-8"))
    assert (facts["n_runs"], facts["splits"]) == (4, ["train"])
    assert facts["data_fingerprints"] == [fingerprint(data)]
    assert facts["versions"]["numpy"]


def test_test_split_is_never_fitted_on(data: Path, tmp_path: Path) -> None:
    """Whatever is asked for."""
    with pytest.raises(NoBaselineError, match="never fitted"):
        fit(data, tmp_path, splits=["train", "test"])


def test_no_run_is_an_error(data: Path, tmp_path: Path) -> None:
    """The splits are named."""
    with pytest.raises(NoBaselineError, match="calibration"):
        fit(data, tmp_path, splits=["calibration"])
