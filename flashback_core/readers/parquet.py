"""Parquet exports: of flashback itself, of the data-set layout, or any with a metric in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import SourceError
from flashback_core.export import EXPORT_KEY
from flashback_core.readers.columns import LABELS, STEP_NAMES, choose_run, table_of
from flashback_core.table import StepTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_parquet"]


def read_parquet(path: Path, run_id: str | None = None, source: str | None = None) -> StepTable:
    """The run in a Parquet file.

    Args:
        path: The file.
        run_id: Which run, where the column ``run_id`` holds several.
        source: What the table is called; the path if None.

    Raises:
        SourceError: If the file is not Parquet, holds several runs and `run_id` names none, or has
            no column that can be a metric.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            data = file.read()
    except (pa.ArrowException, OSError) as error:
        msg = f"{path} cannot be read as Parquet ({str(error)[:200]}); export the run again"
        raise SourceError(msg) from error
    source = source or str(path)
    data, run = _one_run(data, run_id, source)
    columns = {
        name: _numbers(data.column(i))
        for i, name in enumerate(data.column_names)
        if name not in LABELS and _is_number(data.field(i).type)
    }
    step = next((name for name in STEP_NAMES if name in columns), None)
    steps = columns.pop(step) if step else np.arange(len(data))
    return table_of(steps, columns, events=_events(data, run), source=source)


def _one_run(data: pa.Table, run_id: str | None, source: str) -> tuple[pa.Table, str | None]:
    """The rows of one run, and its id where the file names it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "run_id" not in data.column_names:
        return data, None
    ids = pc.cast(data.column("run_id"), pa.string())
    runs = [str(run) for run in pc.unique(ids).to_pylist()]
    chosen = choose_run(runs, run_id, source)
    if chosen is None:
        return data, runs[0] if runs else None
    return data.filter(pc.equal(ids, chosen)), chosen


def _events(data: pa.Table, run: str | None) -> list[dict[str, Any]]:
    """Events that an export of ours carries, if they are of this run."""
    try:
        facts = json.loads((data.schema.metadata or {})[EXPORT_KEY])
        events = facts["events"] if facts.get("run_id", run) == run else []
        return [event for event in events if isinstance(event, dict)]
    except (KeyError, ValueError, TypeError, AttributeError):
        return []


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values; with a null, or of booleans, as float64 with NaN."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.null_count:
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy())
