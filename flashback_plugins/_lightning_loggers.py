"""Sinks for a trainer's own loggers, chosen by what the logger is called and what it offers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flashback_core.report.model import DetectionReport, Finding
from flashback_core.sink import RunFiles, Sink
from flashback_core.warn import Guard
from flashback_plugins.panels import (
    LOG2_EDGES,
    PREFIX,
    alert_text,
    alert_title,
    live_scalars,
    summary,
    tracker_name,
)

__all__ = ["LoggerSink", "TensorBoardSink", "logger_sinks"]

_MAX_SCALARS = 10


def logger_sinks(loggers: Iterable[Any], guard: Guard) -> list[Sink]:
    """One sink per logger; a logger that cannot be used costs one warning."""
    sinks: list[Sink] = []
    for logger in loggers:
        name = type(logger).__name__
        if name == "DummyLogger":
            continue
        with guard(name, keep=True):
            sinks.append(_sink(logger))
    return sinks


def _sink(logger: Any) -> Sink:
    """The sink of one logger; subclasses of Lightning's loggers count as what they extend."""
    names = {base.__name__ for base in type(logger).__mro__}
    if "WandbLogger" in names:
        from flashback_plugins.wandb import WandbSink

        return WandbSink(logger.experiment)
    if "MLFlowLogger" in names:
        from flashback_plugins.mlflow import MlflowSink

        return MlflowSink(logger.experiment, logger.run_id)
    if hasattr(logger.experiment, "add_histogram_raw"):
        return TensorBoardSink(logger)
    return LoggerSink(logger)


class LoggerSink(Sink):
    """Sends a few scalars to any Lightning logger through `log_metrics`, and nothing else.

    Args:
        logger: A logger of either namespace.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Send the most telling scalars of one step."""
        live = live_scalars(values, _MAX_SCALARS)
        named = {f"{PREFIX}{tracker_name(name)}": value for name, value in live.items()}
        self._logger.log_metrics(named, step=step)

    def log_histograms(self, counts: Mapping[str, list[int]], step: int) -> None:
        """Loggers in general have no histograms."""

    def alert(self, finding: Finding) -> None:
        """Loggers in general have no alerts; the report says it."""

    def log_report(self, report: DetectionReport, files: RunFiles) -> None:
        """Send the verdict as scalars: -1 stands for no bad step."""
        step = report.first_bad_step
        verdict = {"first_bad_step": -1 if step is None else step, "confidence": report.confidence}
        named = {f"{PREFIX}{name}": float(value) for name, value in verdict.items()}
        self._logger.log_metrics(named, step=report.last_step or 0)

    def close(self) -> None:
        """Let the logger write what it has buffered."""
        save = getattr(self._logger, "save", None)
        if callable(save):
            save()


class TensorBoardSink(LoggerSink):
    """Sends scalars, histograms and the report as text to TensorBoard.

    Args:
        logger: A `TensorBoardLogger` of either namespace.
    """

    def __init__(self, logger: Any) -> None:
        super().__init__(logger)
        self._writer = logger.experiment

    def log_histograms(self, counts: Mapping[str, list[int]], step: int) -> None:
        """Send histograms over powers of two."""
        centers = [(low + high) / 2 for low, high in itertools.pairwise(LOG2_EDGES)]
        for name, bins in counts.items():
            n = np.asarray(bins, np.float64)
            if not n.sum():
                continue
            self._writer.add_histogram_raw(
                f"{PREFIX}{tracker_name(name)}_log2",
                min=float(LOG2_EDGES[0]),
                max=float(LOG2_EDGES[-1]),
                num=int(n.sum()),
                sum=float(n @ centers),
                sum_squares=float(n @ np.square(centers)),
                bucket_limits=[float(edge) for edge in LOG2_EDGES[1:]],
                bucket_counts=[int(c) for c in bins],
                global_step=step,
            )

    def alert(self, finding: Finding) -> None:
        """Send the finding as text, at its step."""
        text = alert_text(finding).replace("\n", "\n\n")
        self._writer.add_text(
            f"{PREFIX}alert", f"**{alert_title(finding)}**\n\n{text}", finding.step
        )

    def log_report(self, report: DetectionReport, files: RunFiles) -> None:
        """Send the verdict, and the report as Markdown."""
        super().log_report(report, files)
        step = report.last_step or 0
        self._writer.add_text(f"{PREFIX}report", report.to_markdown(), step)
        self._writer.add_text(f"{PREFIX}verdict", f"`{json.dumps(summary(report))}`", step)
