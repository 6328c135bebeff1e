"""flashback: the first bad step of a training run, found and explained.

At which step did this run first go wrong, what moved first, and where is it safe to go back to?

    import flashback_core as fb

    with fb.Recorder("runs/my-run", model, optimizer) as rec:
        ...                      # your loop; hooks on the optimizer record every step
        rec.log(loss=loss)       # optional, once per step
    report = fb.detect("runs/my-run")

Names load on first use: reading and detecting need numpy and pyarrow, recording needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashback_core import errors, faults
    from flashback_core.detection import detect
    from flashback_core.detectors.first_bad_step import FirstBadStepDetector
    from flashback_core.detectors.loss_curve import LossCurveDetector
    from flashback_core.index import StepSketchIndex
    from flashback_core.recorder import Recorder
    from flashback_core.report.model import DetectionReport, Finding, MetricScore
    from flashback_core.schema import SketchSchema
    from flashback_core.source import open_run
    from flashback_core.table import MemoryTable, StepTable
    from flashback_core.version import __version__

__all__ = [
    "DetectionReport",
    "Finding",
    "FirstBadStepDetector",
    "LossCurveDetector",
    "MemoryTable",
    "MetricScore",
    "Recorder",
    "SketchSchema",
    "StepSketchIndex",
    "StepTable",
    "__version__",
    "detect",
    "errors",
    "faults",
    "open_run",
]

_HOMES = {
    "DetectionReport": "report.model",
    "Finding": "report.model",
    "FirstBadStepDetector": "detectors.first_bad_step",
    "LossCurveDetector": "detectors.loss_curve",
    "MemoryTable": "table",
    "MetricScore": "report.model",
    "Recorder": "recorder",
    "SketchSchema": "schema",
    "StepSketchIndex": "index",
    "StepTable": "table",
    "__version__": "version",
    "detect": "detection",
    "open_run": "source",
}
_MODULES = {"errors", "faults"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"flashback_core.{name}")
    if name not in _HOMES:
        msg = f"module 'flashback_core' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"flashback_core.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
