"""The sketches of a run on disk: `StepSketchIndex`, its bytes, its lock and its export."""

from flashback_core.index.index import StepSketchIndex

__all__ = ["StepSketchIndex"]
