"""The published detector: the card's configuration and weights, and what is known of its limits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.detectors.published import PUBLISHED, WEIGHTS, PublishedDetector
from flashback_core.errors import DetectorError, NoBaselineError
from flashback_core.testing import healthy_run, run_with_fault

CARD = {
    "win": 32, "gap": 1, "mode": "diff", "k_cal": 8.0, "k_min": 8.0, "min_votes": 3,
    "vote_window": 2, "exclude": ["lr", "step_wall_ms", "batch_id_mean", "batch_uniq_frac"],
    "use_logistic": True, "logistic_threshold": 0.5, "version": "1",
}  # fmt: skip
CARD_WEIGHTS = (
    -9.8951, 0.1471, 0.1950, 18.4084, 1.2226, 0.3008, 0.1584, 0.0378, 0.2497, 15.0875,
)  # fmt: skip


def test_folder_is_the_card() -> None:
    """The folder that ships holds the published configuration and the ten published weights."""
    assert json.loads((PUBLISHED / "config.json").read_text()) == CARD
    weights = json.loads((PUBLISHED / "weights.json").read_text())
    assert tuple(weights) == WEIGHTS
    assert tuple(weights.values()) == CARD_WEIGHTS


def test_loads_through_the_public_name() -> None:
    """`FirstBadStepDetector.load` of a version 1 folder predicts with the published rule."""
    detector = FirstBadStepDetector.load(PUBLISHED)
    assert isinstance(detector, PublishedDetector)
    report = detector.predict(run_with_fault(first_bad_step=250))
    assert report.first_bad_step in (249, 250)
    assert report.detector["version"] == "1"
    assert report.kind == "consensus"


def test_round_trip(tmp_path: Path) -> None:
    """Saved and loaded it is the same detector, with the card's keys and no others."""
    PublishedDetector().save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == CARD
    again = PublishedDetector.load(tmp_path)
    assert vars(again) == vars(PublishedDetector())
    PublishedDetector(log=False, win=16).save(tmp_path)
    assert (PublishedDetector.load(tmp_path).log, PublishedDetector.load(tmp_path).win) == (
        False,
        16,
    )


def test_position_is_a_clock() -> None:
    """Its known limit: the probability of a step rises with nothing but its place in the run."""
    quiet = healthy_run(400)
    probability = PublishedDetector().score(quiet)
    assert probability[380] > 100 * probability[60]
    longer = PublishedDetector().score(healthy_run(800))
    assert longer[380] < probability[380]


def test_fit_chooses_settings_and_weights() -> None:
    """A fit on labelled runs finds them again and leaves healthy runs alone."""
    runs = [run_with_fault(first_bad_step=60 + 90 * i, seed=i, n_steps=330) for i in range(3)]
    healthy = [healthy_run(330, seed=9 + i) for i in range(2)]
    labels = [60, 150, 240, None, None]
    detector = PublishedDetector().fit([*runs, *healthy], labels)
    found = [detector.predict(run).first_bad_step for run in (*runs, *healthy)]
    assert found == labels
    assert set(detector.weights) == set(WEIGHTS)
    assert np.isfinite(list(detector.weights.values())).all()


def test_fit_needs_runs() -> None:
    """Runs shorter than the window are refused."""
    with pytest.raises(NoBaselineError, match="longer runs"):
        PublishedDetector().fit([healthy_run(20)], [None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "7"}, "version '7'"),
        ({"windows": 3}, "windows"),
        ({"mode": "slope"}, "mode"),
    ],
)
def test_bad_folders(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """An unknown version, key or mode is one clear error."""
    PublishedDetector().save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CARD | change))
    with pytest.raises(DetectorError, match=message):
        PublishedDetector.load(tmp_path)


def test_missing_weight() -> None:
    """A weight that is not there is named."""
    with pytest.raises(DetectorError, match="rel_position"):
        PublishedDetector(weights=dict.fromkeys(WEIGHTS[:-1], 0.0))
