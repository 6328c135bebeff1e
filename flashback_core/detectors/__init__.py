"""Detectors: a run in, a report out. `base.Detector` is the shape that all of them have."""

from flashback_core.detectors.base import Detector
from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.detectors.loss_curve import LossCurveDetector

__all__ = ["Detector", "FirstBadStepDetector", "LossCurveDetector"]
