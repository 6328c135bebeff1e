"""The data set on disk: one Parquet file per run, in the layout of its card.

::

    steps/train-<run_id>.parquet    steps/test-<run_id>.parquet    one row per step
    runs/train-00000.parquet        runs/test-00000.parquet        one row per run
    twins/train-<run_id>.parquet    twins/test-<run_id>.parquet    same-seed healthy twins
    README.md                       the card

A file of steps holds the columns of *every* model: the groups of transformers and those of models
by depth; what a run's own schema lacks is null. Its metadata holds the events of the run, so that
``flashback detect`` reads it like an export, and all facts of the run. Runs of the split
``calibration`` lie in the files ``train``; the column ``split`` of ``runs`` tells them apart.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flashback_core.errors import SourceError
from flashback_core.export import EXPORT_KEY
from flashback_core.schema import BODY_GROUPS, EXACT_FIELDS, TRANSFORMER_GROUPS, SketchSchema
from flashback_core.table import StepTable

__all__ = [
    "FACTS_KEY", "METRIC_TYPES", "NONE", "RUN_COLUMNS", "facts_of", "run_files", "steps_path",
    "write_run", "write_runs_tables",
]  # fmt: skip

FACTS_KEY = b"flashback_forensics"
NONE = -1
"""Stands for *none* in ``runs``."""
_TYPES = {"f4": pa.float32(), "f8": pa.float64(), "i4": pa.int32(), "i8": pa.int64(),
          "u8": pa.uint64()}  # fmt: skip
_GROUPS = tuple(dict.fromkeys((*TRANSFORMER_GROUPS, *BODY_GROUPS)))

METRIC_TYPES: dict[str, pa.DataType] = {
    m.name: _TYPES[m.dtype] for m in SketchSchema(_GROUPS).metrics
} | {f.column: _TYPES[f.dtype] for f in EXACT_FIELDS}
"""Type of every metric and exact field that a file of steps has."""

_TEXT, _NUMBER, _COUNT = pa.string(), pa.float64(), pa.int64()
RUN_COLUMNS: dict[str, pa.DataType] = {
    "run_id": _TEXT, "fault_kind": _TEXT, "fault_description": _TEXT, "expected_behaviour": _TEXT,
    "first_bad_step": _COUNT, "n_steps": _COUNT, "seed": _COUNT, "preset": _TEXT,
    "param_count": _COUNT, "batch": _COUNT, "lr": _NUMBER, "sketch_bytes_per_step": _NUMBER,
    "loss_only_prediction": _COUNT, "loss_only_error": _COUNT, "flashback_prediction": _COUNT,
    "flashback_error": _COUNT, "flashback_metric": _TEXT, "flashback_votes": _COUNT,
    "final_loss": _NUMBER, "split": _TEXT,
    "model_family": _TEXT, "model_size": _TEXT, "optimizer": _TEXT, "precision": _TEXT,
    "schedule": _TEXT, "data": _TEXT, "planned_steps": _COUNT, "clip": _NUMBER, "dropout": _NUMBER,
    "kind_set": _TEXT, "is_held_out": pa.bool_(), "healthy_kind": _TEXT, "is_declared": pa.bool_(),
    "strength": _NUMBER, "tensor": _TEXT, "injected_step": _COUNT, "all_bad_steps": _TEXT,
    "all_kinds": _TEXT, "has_twin": pa.bool_(), "visibility": _NUMBER, "visibility_point": _NUMBER,
    "visibility_window": _NUMBER, "visibility_metric": _TEXT, "is_finite": pa.bool_(),
    "n_skipped": _COUNT, "cpu_ms_per_step": _NUMBER, "events": _TEXT,
}  # fmt: skip
"""Columns of ``runs`` and their types; ``all_bad_steps``, ``all_kinds``, ``events`` are JSON."""


def steps_path(folder: str | Path, facts: Mapping[str, Any]) -> Path:
    """Where the file of a run lies, from its ``split``, ``run_id`` and ``is_twin``."""
    part = "test" if facts["split"] == "test" else "train"
    where = "twins" if facts.get("is_twin") else "steps"
    return Path(folder) / where / f"{part}-{facts['run_id']}.parquet"


def write_run(folder: str | Path, table: StepTable, facts: Mapping[str, Any]) -> Path:
    """Write the steps of a run, its label and its facts as one file, all or nothing.

    Args:
        folder: The data set.
        table: The recorded run.
        facts: What is known of it: the columns of ``runs``; others are left out.

    Raises:
        SourceError: If the table has a column that the layout does not know.
    """
    known = {name: _plain(facts.get(name), kind) for name, kind in RUN_COLUMNS.items()}
    known["events"] = json.dumps(list(table.events), default=str)
    known["is_twin"] = bool(facts.get("is_twin"))
    export = {"version": 1, "run_id": facts["run_id"], "events": list(table.events),
              "source": facts["run_id"]}  # fmt: skip
    metadata = {
        EXPORT_KEY: json.dumps(export, default=str).encode(),
        FACTS_KEY: json.dumps(known).encode(),
    }
    data = _labelled(table, known).replace_schema_metadata(metadata)
    return _write(steps_path(folder, known), data)


def _labelled(table: StepTable, facts: Mapping[str, Any]) -> pa.Table:
    unknown = [name for name in table if name not in METRIC_TYPES]
    if unknown:
        msg = f"the run has {unknown[0]!r} and {len(unknown) - 1} more columns that no schema has"
        raise SourceError(msg)
    n, bad = len(table), facts["first_bad_step"]
    missing = pa.nulls(n, pa.int64())
    columns: dict[str, pa.Array] = {
        "run_id": pa.array([facts["run_id"]] * n, _TEXT),
        "step": pa.array(table.steps, pa.int64()),
        "fault_kind": pa.array([facts["fault_kind"]] * n, _TEXT),
    }
    for name, kind in METRIC_TYPES.items():
        columns[name] = (
            pa.array(table.column(name), from_pandas=False).cast(kind)
            if name in table
            else pa.nulls(n, kind)
        )
    after = np.zeros(n, np.int8) if bad < 0 else (table.steps >= bad).astype(np.int8)
    columns["is_after_first_bad"] = pa.array(after)
    columns["steps_to_first_bad"] = missing if bad < 0 else pa.array(table.steps - bad)
    return pa.table(columns)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of a column of ``runs`` as strict JSON; what is not known is `NONE` or empty."""
    if kind == _TEXT:
        if isinstance(value, (list, tuple)):
            return json.dumps(list(value))
        return "" if value is None else str(value)
    if kind == pa.bool_():
        return bool(value)
    if value is None or not math.isfinite(float(value)):
        return NONE
    return int(value) if kind == _COUNT else float(value)


def _write(path: Path, data: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    floats = [f.name for f in data.schema if pa.types.is_floating(f.type)]
    texts = [f.name for f in data.schema if pa.types.is_string(f.type)]
    pq.write_table(
        data, temporary, compression="zstd", use_dictionary=texts,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"), write_page_checksum=True,
    )  # fmt: skip
    os.replace(temporary, path)
    return path


def run_files(folder: str | Path, where: str = "steps") -> list[Path]:
    """The files of ``steps`` or ``twins``, by name."""
    return sorted((Path(folder) / where).glob("[!.]*.parquet"))


def facts_of(path: Path) -> dict[str, Any]:
    """The facts in a file that `write_run` wrote.

    Raises:
        SourceError: If it cannot be read, or is not such a file.
    """
    try:
        metadata = pq.read_schema(path).metadata or {}
        facts: dict[str, Any] = json.loads(metadata[FACTS_KEY])
    except (KeyError, ValueError, OSError, pa.ArrowException) as error:
        msg = f"{path} holds no facts of a run ({error!r}); delete it and build it again"
        raise SourceError(msg) from error
    return facts


def write_runs_tables(
    folder: str | Path, updates: Mapping[str, Mapping[str, Any]] | None = None
) -> int:
    """Write ``runs/`` anew from the facts in the files of steps; returns the number of runs.

    Args:
        folder: The data set.
        updates: Columns to set by run id, e.g. predictions; what an earlier table has stays.
    """
    kept = _predictions(folder)
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for path in run_files(folder):
        facts = facts_of(path)
        run_id = facts["run_id"]
        facts |= kept.get(run_id, {})
        facts |= dict((updates or {}).get(run_id, {}))
        rows[path.name.partition("-")[0]].append(facts)
    for part, found in rows.items():
        if found:
            _write(Path(folder) / "runs" / f"{part}-00000.parquet", _runs_table(found))
    return sum(map(len, rows.values()))


PREDICTIONS = (
    "loss_only_prediction", "loss_only_error", "flashback_prediction", "flashback_error",
    "flashback_metric", "flashback_votes",
)  # fmt: skip


def _predictions(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Predictions that stand in ``runs`` already, by run id."""
    kept: dict[str, dict[str, Any]] = {}
    for path in run_files(folder, "runs"):
        for row in pq.read_table(path, columns=["run_id", *PREDICTIONS]).to_pylist():
            kept[row.pop("run_id")] = row
    return kept


def _runs_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    found = list(rows)
    columns = {
        name: pa.array([_plain(row.get(name), kind) for row in found], kind)
        for name, kind in RUN_COLUMNS.items()
    }
    return pa.table(columns)
