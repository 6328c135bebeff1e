"""Parquet exports: of flashback itself, of the data-set layout, or any with a metric in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from flashback_core.errors import SourceError
from flashback_core.export import EXPORT_KEY
from flashback_core.readers.columns import table_of
from flashback_core.table import StepTable

__all__ = ["read_parquet"]

_LABELS = {"run_id", "fault_kind", "is_after_first_bad", "steps_to_first_bad"}


def read_parquet(path: Path, run_id: str | None = None) -> StepTable:
    """The run in a Parquet file.

    Args:
        path: The file.
        run_id: Which run, where the column ``run_id`` holds several.

    Raises:
        SourceError: If the file is not Parquet, holds several runs and `run_id` names none, or has
            no column that can be a metric.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        data = pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        msg = f"{path} cannot be read as Parquet ({error}); export the run again"
        raise SourceError(msg) from error
    data = _one_run(data, run_id, path)
    facts = _facts(data.schema.metadata)
    columns = {
        name: data.column(name).to_numpy()
        for name in data.column_names
        if name not in _LABELS and _is_number(data.schema.field(name).type)
    }
    steps = columns.pop("step", np.arange(len(data)))
    return table_of(steps, columns, events=facts.get("events", ()), source=str(path))


def _facts(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    raw = (metadata or {}).get(EXPORT_KEY)
    return json.loads(raw) if raw else {}


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )


def _one_run(data: Any, run_id: str | None, path: Path) -> Any:
    import pyarrow.compute as pc

    if "run_id" not in data.column_names:
        return data
    runs = pc.unique(data.column("run_id")).to_pylist()
    if run_id is None and len(runs) <= 1:
        return data
    if run_id not in runs:
        shown = ", ".join(map(str, runs[:5])) + (" …" if len(runs) > 5 else "")
        what = f"run {run_id!r} is not in it" if run_id else f"it holds {len(runs)} runs"
        msg = f"{path}: {what}; give run_id (--run-id), one of: {shown}"
        raise SourceError(msg)
    return data.filter(pc.equal(data.column("run_id"), run_id))
