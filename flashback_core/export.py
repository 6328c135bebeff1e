"""A table of steps -> one Parquet or CSV file, in the layout of the data-set card.

Columns: ``run_id``, ``step``, the metrics under their own names, then the exact fields. Events and
facts of the run travel along, so that a report of the export equals a report of the index: in
Parquet in the metadata of the file (key ``flashback_export``, JSON), in CSV in a last column
``events`` (JSON in the row that they stand before, empty elsewhere; left out where there are none).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashback_core.errors import SourceError
from flashback_core.table import StepTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EVENTS_COLUMN", "EXPORT_KEY", "export_csv", "export_parquet", "export_table"]

EXPORT_KEY = b"flashback_export"
EVENTS_COLUMN = "events"


def export_table(table: StepTable, out: str | Path, *, run_id: str | None = None) -> Path:
    """Write `table` to `out`; the suffix decides: ``.parquet`` or ``.csv``.

    Args:
        table: What to write.
        out: The file; replaced if it exists, once the new one is complete.
        run_id: Value of the column ``run_id``; the name of the run folder if None.

    Returns:
        The path that was written.

    Raises:
        SourceError: If the suffix is another, or the folder does not exist.
        OSError: If it cannot be written.
    """
    path = Path(out)
    writers = {".parquet": export_parquet, ".csv": export_csv}
    write = writers.get(path.suffix.lower())
    if write is None:
        msg = f"cannot write {path}: the suffix {path.suffix!r} is neither .parquet nor .csv"
        raise SourceError(msg)
    return write(table, path, run_id=run_id)


def export_parquet(table: StepTable, out: str | Path, *, run_id: str | None = None) -> Path:
    """Write `table` as one Parquet file; see `export_table`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = run_id or default_run_id(table)
    facts = {"version": 1, "run_id": name, "events": list(table.events), "source": table.source}
    data = _with_run_id(table, name)
    data = data.replace_schema_metadata({EXPORT_KEY: json.dumps(facts, default=str).encode()})
    split = [f.name for f in data.schema if pa.types.is_floating(f.type)]

    def write(path: Path) -> None:
        pq.write_table(
            data,
            path,
            compression="zstd",
            use_dictionary=["run_id"],
            column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
            write_page_checksum=True,
        )

    return _complete(Path(out), write)


def export_csv(table: StepTable, out: str | Path, *, run_id: str | None = None) -> Path:
    """Write `table` as CSV, NaN and infinity as ``nan``, ``inf`` and ``-inf``.

    See `export_table`. Every number reads back as it was.
    """
    from pyarrow import csv

    data = _with_run_id(table, _plain_cell(run_id or default_run_id(table)))
    if table.events and len(table):
        data = data.append_column(EVENTS_COLUMN, [_events_by_row(table)])
    return _complete(Path(out), lambda path: csv.write_csv(data, path))


def default_run_id(table: StepTable) -> str:
    """Name of the run: of the run folder where there is one."""
    source = table.source
    path = Path(source.partition("?")[0] if "://" in source else source)
    return path.parent.name if path.name == "sketch" else path.stem or "run"


def _with_run_id(table: StepTable, name: str) -> pa.Table:
    import pyarrow as pa

    data = table.to_arrow()
    return data.add_column(0, "run_id", pa.array([name] * len(data), pa.string()))


def _events_by_row(table: StepTable) -> list[str]:
    """The events as JSON lists, each in the first row at or past its step (the last, if none)."""
    lists: list[list[dict[str, Any]]] = [[] for _ in range(len(table))]
    row = 0  # never before an earlier event: their order is kept
    for event in table.events:
        step = event.get("step")
        if isinstance(step, int):
            row = max(row, int(np.searchsorted(table.steps, step)))
        lists[min(row, len(table) - 1)].append(event)
    return [json.dumps(events, default=str) if events else "" for events in lists]


def _plain_cell(text: str) -> str:
    """`text` such that no spreadsheet takes it for a formula."""
    return "'" + text if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def _complete(out: Path, write: Callable[[Path], None]) -> Path:
    """Have `write` write a temporary file, which then takes the place of `out`."""
    if not out.parent.is_dir():
        msg = f"cannot write {out}: the folder {out.parent} does not exist; make it first"
        raise SourceError(msg)
    temporary = out.with_name(out.name + ".tmp")
    try:
        write(temporary)
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return out
