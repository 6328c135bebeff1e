"""The files that a run carries in MLflow under ``flashback/``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from flashback_core.report.images import pictures
from flashback_core.report.model import DetectionReport
from flashback_core.warn import Guard
from flashback_plugins import panels

__all__ = ["FINDINGS", "FOLDER", "INDEX", "lay_out"]

FOLDER = "flashback"
"""Where our files lie among the artifacts of a run."""

INDEX = "index.parquet"
FINDINGS = "findings.json"


def lay_out(
    folder: Path, report: DetectionReport, reports: Mapping[str, Path], index: Path | None
) -> None:
    """Put everything that goes to MLflow into `folder`.

    These are ``report.json``, ``report.md``, ``report.html``, ``findings.json`` in the form that
    MLflow shows as a table, ``timeline.png`` and ``moved_first.png`` where the extra ``report`` is
    installed, and, unless `index` is None, ``index.parquet`` and ``index.schema.json``, which can
    be previewed.
    """
    for suffix, path in reports.items():
        shutil.copyfile(path, folder / f"report.{suffix}")
    table = panels.findings_table(report)
    _write(folder / FINDINGS, {"columns": list(table.columns), "data": table.rows})
    with Guard()("the pictures for MLflow"):
        for name, picture in pictures(report).items():
            (folder / f"{name}.png").write_bytes(picture)
    if index is not None:
        shutil.copyfile(index, folder / INDEX)
        _write(folder / "index.schema.json", _schema(index))


def _schema(index: Path) -> dict[str, object]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(index)
    columns = [{"name": field.name, "type": str(field.type)} for field in file.schema_arrow]
    return {"rows": file.metadata.num_rows, "columns": columns}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, allow_nan=False, indent=1), encoding="utf-8")
