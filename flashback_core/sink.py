"""What an adapter offers to a recorder: a place where metrics and reports go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from flashback_core.report.model import DetectionReport, Finding

__all__ = ["RunFiles", "Sink"]


class RunFiles(Protocol):
    """The files of one run folder that a sink may carry to its tracker."""

    @property
    def folder(self) -> Path:
        """The run folder."""

    def export(self) -> Path:
        """Path of the index as one Parquet file, written when first asked for."""

    def reports(self) -> dict[str, Path]:
        """Paths of the report by suffix: ``json``, ``md``, ``html``."""


@runtime_checkable
class Sink(Protocol):
    """A tracker's run. Methods may raise: the recorder warns once and leaves the sink out.

    Metric names arrive in the index's own form (``group:attn_qkv:max_abs``); a sink turns them
    into what its tracker accepts with `flashback_plugins.panels.tracker_name`.
    """

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Send a few scalars of one step."""

    def log_histograms(self, counts: Mapping[str, list[int]], step: int) -> None:
        """Send histograms of 16 bins (``hist_grad``, ``hist_update``) of one step."""

    def alert(self, finding: Finding) -> None:
        """Tell people of a new finding, once."""

    def log_report(self, report: DetectionReport, files: RunFiles) -> None:
        """Attach the report and the index to the run, and set its summary or tags."""

    def close(self) -> None:
        """Send what is buffered. The tracker's run itself stays open: it is the user's."""
