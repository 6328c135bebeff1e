"""A table of steps -> one Parquet or CSV file, in the layout of the data-set card.

Columns: ``run_id``, ``step``, the metrics under their own names, then the exact fields. Events and
facts of the run travel in the file's metadata (Parquet only), so that a report of the export equals
a report of the index.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from flashback_core.errors import SourceError
from flashback_core.table import StepTable

__all__ = ["EXPORT_KEY", "export_csv", "export_parquet", "export_table"]

EXPORT_KEY = b"flashback_export"


def export_table(table: StepTable, out: str | Path, *, run_id: str | None = None) -> Path:
    """Write `table` to `out`; the suffix decides: ``.parquet`` or ``.csv``.

    Returns:
        The path that was written.

    Raises:
        SourceError: If the suffix is another.
    """
    path = Path(out)
    if path.suffix == ".parquet":
        return export_parquet(table, path, run_id=run_id)
    if path.suffix == ".csv":
        return export_csv(table, path, run_id=run_id)
    msg = f"cannot write {path}: the suffix {path.suffix!r} is neither .parquet nor .csv"
    raise SourceError(msg)


def default_run_id(table: StepTable) -> str:
    """Name of the run: of the run folder where there is one."""
    path = Path(table.source)
    return path.parent.name if path.name == "sketch" else path.stem or "run"


def export_parquet(table: StepTable, out: str | Path, *, run_id: str | None = None) -> Path:
    """Write `table` as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = Path(out)
    name = run_id or default_run_id(table)
    data = table.to_arrow()
    data = data.add_column(0, "run_id", pa.array([name] * len(data), pa.string()))
    facts = {"version": 1, "events": list(table.events), "source": table.source}
    metadata = {EXPORT_KEY: json.dumps(facts, default=str).encode()}
    split = [f.name for f in data.schema if pa.types.is_floating(f.type)]
    temporary = out.with_name(out.name + ".tmp")
    pq.write_table(
        data.replace_schema_metadata(metadata),
        temporary,
        compression="zstd",
        use_dictionary=["run_id"],
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_page_checksum=True,
    )
    os.replace(temporary, out)
    return out


def export_csv(table: StepTable, out: str | Path, *, run_id: str | None = None) -> Path:
    """Write `table` as CSV; NaN and infinity as ``nan``, ``inf`` and ``-inf``."""
    import pyarrow as pa
    from pyarrow import csv

    out = Path(out)
    name = run_id or default_run_id(table)
    data = table.to_arrow()
    data = data.add_column(0, "run_id", pa.array([_plain_cell(name)] * len(data), pa.string()))
    csv.write_csv(data, out)
    return out


def _plain_cell(text: str) -> str:
    """`text` such that no spreadsheet takes it for a formula."""
    return "'" + text if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text
