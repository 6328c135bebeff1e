"""The model card that lies beside a saved detector: what it is, its settings, its score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["model_card"]

_HEAD = """---
library_name: flashback-plugins
license: apache-2.0
tags:
- debugging
- anomaly-detection
- change-point-detection
- observability
---

# First-bad-step detector

Given the sketch index of a training run (128 summary statistics and some exact fields of every
optimizer step), it names the step at which the run first went wrong, what moved first, and how sure
it is.

```python
import flashback_core as fb

detector = fb.FirstBadStepDetector.load("this-folder")
report = detector.predict(fb.StepSketchIndex("runs/my-run/sketch"))
print(report.first_bad_step, report.confidence, report.top_metrics)
```

`config.json` holds all there is, as plain numbers: the level of each statistic, the tail of the
largest ratio to its level, and the confidence as a logistic function. Certain rules (NaN, writes
from outside, repeated batches …) are code and have no weights.
"""

_LIMITS = """
## Limits

- A nominal budget is an extrapolation from the kinds of runs that it was fitted on; a kind of
  healthy run that is new brings a tail of its own. Declare what is known (`rec.expect`), and
  measure on runs of yours where it matters.
- The statistics need {min_steps} rows before they say anything; before that only certain rules
  speak.
- A fault that ramps in slowly has no single first step; the report says so and gives an interval.
- Faults that move none of the metrics and none of the exact fields are not seen.
"""


def model_card(settings: Mapping[str, Any]) -> str:
    """The card of a detector with these settings, as Markdown for the Hugging Face hub."""
    return _HEAD + _settings(settings) + _LIMITS.format(min_steps=settings["min_steps"])


def _settings(settings: Mapping[str, Any]) -> str:
    rate = settings.get("false_alarms_per_100k")
    measured = "not measured with these settings" if rate is None else f"{rate:g}"
    lines = [
        "\n## Settings\n",
        "| setting | value |",
        "|---|---|",
        f"| format version | {settings['version']} |",
        f"| nominal false alarms per 100,000 healthy steps | {settings['budget']:g} |",
        f"| measured on a test split | {measured} |",
        f"| statistics with a level | {len(settings['levels'])} |",
        f"| rows before the first statistic | {settings['min_steps']} |",
    ]
    tail = settings.get("tail")
    if tail:
        lines.append(
            f"| tail of the largest ratio | {tail['rate']:g} per 100,000 steps at "
            f"{tail['ratio']:g}, index {tail['index']:g} |"
        )
    return "\n".join(lines) + "\n"
