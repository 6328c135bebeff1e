"""A made-up run and its report, for the tests of the tracker adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashback_core.report.model import DetectionReport, Finding, MetricScore
from flashback_core.schema import SketchSchema
from flashback_core.table import MemoryTable

FIRST_BAD_STEP = 37


def table(n_steps: int = 60, seed: int = 0) -> MemoryTable:
    """A run with all 128 metrics, drawn at random."""
    rng = np.random.default_rng(seed)
    names = SketchSchema().names
    columns = {name: rng.lognormal(size=n_steps) for name in names}
    return MemoryTable(np.arange(n_steps), columns, source="made up")


def finding(step: int = FIRST_BAD_STEP, **other: object) -> Finding:
    """A bad step, confirmed."""
    fields: dict[str, object] = {
        "step": step,
        "interval": (step - 1, step + 1),
        "kind": "update_shift",
        "confidence": 0.97,
        "severity": "bad",
        "evidence": ("group:attn_qkv:update_norm left its baseline by 14 deviations",),
        "top_metrics": (
            MetricScore(metric="group:attn_qkv:update_norm", score=14.2, step=step),
            MetricScore(metric="grad_norm", score=8.1, step=step + 1),
        ),
    }
    return Finding(**(fields | other))  # type: ignore[arg-type]  # fields of many types


def report(step: int = FIRST_BAD_STEP) -> DetectionReport:
    """A bad run with a benign change beside the fault."""
    change = finding(20, kind="lr_change", severity="change", confidence=0.5)
    return DetectionReport(
        status="bad",
        n_steps=60,
        first_step=0,
        last_step=59,
        findings=(change, finding(step)),
        detector={"name": "FirstBadStepDetector", "version": "2"},
    )


def healthy() -> DetectionReport:
    """A run without a finding."""
    return DetectionReport(status="healthy", n_steps=60, first_step=0, last_step=59)


@dataclass(frozen=True)
class FolderFiles:
    """The files of a run folder, as a recorder offers them to its sinks."""

    folder: Path
    report: DetectionReport

    def export(self) -> Path:
        """Write the index as Parquet."""
        import pyarrow.parquet as pq

        path = self.folder / "export.parquet"
        pq.write_table(table().to_arrow(), path)
        return path

    def reports(self) -> dict[str, Path]:
        """Write the three forms of the report; the pages are short ones of our own."""
        texts = {
            "json": self.report.to_json(),
            "md": f"# first bad step {self.report.first_bad_step}",
            "html": f"<!doctype html><title>r</title><h1>step {self.report.first_bad_step}</h1>",
        }
        paths = {suffix: self.folder / f"report.{suffix}" for suffix in texts}
        for suffix, text in texts.items():
            paths[suffix].write_text(text, encoding="utf-8")
        return paths
