"""SinkSet: all sinks of a run, each guarded, so that no tracker can stop a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.report.model import DetectionReport, Finding
from flashback_core.schema import N_BINS, SketchSchema
from flashback_core.sink import RunFiles, Sink
from flashback_core.warn import Guard

__all__ = ["LIVE_METRICS", "SinkSet", "Told"]

LIVE_METRICS = ("loss", "lr", "grad_norm", "grad_max", "update_norm", "update_max",
                "param_norm", "nonfinite", "step_wall_ms")  # fmt: skip
"""Scalars that go to trackers while the run goes on; the whole sketch stays in the index."""

NEAR = 2
"""Bad findings whose steps are this close are one fault."""


class Told:
    """Which bad findings people know of.

    A report merges the signs of one fault, so the kind of a finding may be another one in the end;
    the step is what stays.
    """

    def __init__(self) -> None:
        self._steps: set[int] = set()
        self._others: set[tuple[int, str]] = set()

    def is_new(self, finding: Finding) -> bool:
        """Whether nobody was told of this fault; from now on they are."""
        if finding.severity != "bad":
            is_new = (finding.step, finding.kind) not in self._others
            self._others.add((finding.step, finding.kind))
            return is_new
        near = range(finding.step - NEAR, finding.step + NEAR + 1)
        is_new = self._steps.isdisjoint(near)
        self._steps.add(finding.step)
        return is_new


class SinkSet:
    """Sends a step to every sink every `every` steps; a sink that fails is left out.

    Args:
        sinks: Where to send.
        guard: Warns once per sink.
        every: Steps between two sends.
    """

    def __init__(self, sinks: Sequence[Sink], guard: Guard, every: int) -> None:
        self._sinks, self._guard, self._every = list(sinks), guard, max(int(every), 1)
        names = [type(sink).__name__ for sink in self._sinks]
        self._names = [
            name if names.count(name) == 1 else f"{name} {i + 1}" for i, name in enumerate(names)
        ]
        self._told = Told()

    def _each(self, act: Callable[[Sink], Any]) -> None:
        for name, sink in zip(self._names, self._sinks, strict=True):
            if not self._guard.failed(name):
                with self._guard(name):
                    act(sink)

    def step(self, step: int, values: npt.NDArray[np.float64], schema: SketchSchema) -> None:
        """Send the live metrics and the two histograms of `step`, if it is its turn."""
        if not self._sinks or step % self._every:
            return
        live = {name: float(values[schema.position(name)]) for name in LIVE_METRICS}
        live = {name: value for name, value in live.items() if math.isfinite(value)}
        counts = {
            "hist_grad": [int(c) for c in values[-2 * N_BINS : -N_BINS]],
            "hist_update": [int(c) for c in values[-N_BINS:]],
        }
        self._each(lambda sink: sink.log_metrics(live, step))
        self._each(lambda sink: sink.log_histograms(counts, step))

    def alert(self, finding: Finding) -> None:
        """Tell people of `finding`, unless they know of a bad one within two steps."""
        if self._told.is_new(finding):
            self._each(lambda sink: sink.alert(finding))

    def report(self, report: DetectionReport, files: RunFiles) -> None:
        """Alert of the first bad step and attach the report."""
        if report.bad is not None:
            self.alert(report.bad)
        self._each(lambda sink: sink.log_report(report, files))

    def close(self) -> None:
        """Let every sink send what it has buffered."""
        self._each(lambda sink: sink.close())
