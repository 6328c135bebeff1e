"""Every detector keeps the promises of the protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashback_core.detectors import Detector, FirstBadStepDetector, LossCurveDetector
from flashback_core.detectors.published import PublishedDetector
from flashback_core.testing import DETECTOR_CHECKS

DETECTORS: tuple[Detector, ...] = (
    LossCurveDetector(),
    FirstBadStepDetector(),
    PublishedDetector(),
)


@pytest.mark.parametrize("check", DETECTOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: type(detector).__name__)
def test_detector(detector: Detector, check: Callable[[Detector], None]) -> None:
    """Every detector keeps the promises of the protocol."""
    check(detector)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: type(detector).__name__)
def test_is_a_detector(detector: Detector) -> None:
    """Each of them has the shape of `Detector`."""
    assert isinstance(detector, Detector)
