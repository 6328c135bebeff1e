"""What W&B draws of a report: a chart on W&B's own preset, and pictures.

A Vega-Lite specification of one's own has to be registered with W&B's server first, which an
offline run cannot do. The presets that W&B ships need no registration.
"""

from __future__ import annotations

import io
from typing import Any

import wandb

from flashback_core.report.images import moved_lines, pictures
from flashback_core.report.model import DetectionReport
from flashback_core.warn import Guard

__all__ = ["charts"]


def charts(report: DetectionReport) -> dict[str, Any]:
    """Values to log by name, empty for a report without its run.

    ``moved_first`` is a custom chart of the metrics that moved first, in robust deviations round
    the finding; ``timeline_picture`` and ``moved_first_picture`` are images, there with the extra
    ``report`` and Pillow.
    """
    found: dict[str, Any] = {}
    guard = Guard()
    with guard("the chart for W&B"):
        moved = moved_lines(report)
        if moved is not None:
            found["moved_first"] = wandb.plot.line_series(
                xs=list(moved.steps),
                ys=[list(line) for line in moved.lines.values()],
                keys=list(moved.lines),
                title=moved.title,
                xname="step",
            )
    with guard("the pictures for W&B"):
        found |= _images(report)
    return found


def _images(report: DetectionReport) -> dict[str, Any]:
    try:
        from PIL import Image
    except ImportError:
        return {}
    return {
        f"{name}_picture": wandb.Image(Image.open(io.BytesIO(png)), caption=name.replace("_", " "))
        for name, png in pictures(report).items()
    }
