"""CSV exports: of flashback, and of trackers (one row per step, a column per metric)."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import SourceError
from flashback_core.readers.columns import canonical, table_of
from flashback_core.table import StepTable

__all__ = ["read_csv"]

_STEP = ("step", "global_step", "trainer/global_step", "_step", "iteration", "iter")


def read_csv(path: Path, run_id: str | None = None) -> StepTable:
    """The run in a CSV file.

    Cells that are empty or no number are NaN; a loss that turns empty for good while rows go on
    stays NaN, which is evidence. Rows without any training metric (evaluation rows) are left out.

    Args:
        path: The file.
        run_id: Which run, where a column ``run_id`` holds several.

    Raises:
        SourceError: If it is no CSV with a metric that we know.
    """
    rows = _rows(path)
    header, body = [name.strip() for name in rows[0]], rows[1:]
    body = _one_run(header, body, run_id, path)
    cells = {
        name: _column([r[i] if i < len(r) else "" for r in body])
        for i, name in enumerate(header)
        if name and name not in {"run_id", "fault_kind"}
    }
    cells = {name: values for name, values in cells.items() if not np.isnan(values).all()}
    step = next((n for n in _STEP if n in cells), None)
    steps = cells.pop(step) if step else np.arange(len(body), dtype=np.float64)
    keep = ~np.isnan(steps) & _is_training(cells)
    columns = {name: values[keep] for name, values in cells.items()}
    return table_of(steps[keep].astype(np.int64), columns, source=str(path))


def _column(texts: list[str]) -> npt.NDArray[Any]:
    """Numbers of a column: integers exactly (hashes need 64 bits), else float64 with NaN."""
    if all(text.isdecimal() for text in texts):
        numbers = [int(text) for text in texts]
        return np.array(numbers, np.uint64 if max(numbers, default=0) >= 2**63 else np.int64)
    return np.array([_number(text) for text in texts])


def _rows(path: Path) -> list[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            rows = [row for row in csv.reader(file) if row]
    except (csv.Error, OSError) as error:
        msg = f"{path} cannot be read as CSV ({error}); export the run again"
        raise SourceError(msg) from error
    if len(rows) < 2:
        msg = f"{path} holds {len(rows)} rows; expected a header and one row per step"
        raise SourceError(msg)
    return rows


def _one_run(
    header: list[str], body: list[list[str]], run_id: str | None, path: Path
) -> list[list[str]]:
    if "run_id" not in header:
        return body
    at = header.index("run_id")
    runs = list(dict.fromkeys(row[at] for row in body))
    if run_id is None and len(runs) <= 1:
        return body
    if run_id not in runs:
        msg = f"{path} holds {len(runs)} runs; give run_id (--run-id), one of: {runs[:5]}"
        raise SourceError(msg)
    return [row for row in body if row[at] == run_id]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _is_training(cells: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Rows that hold a training metric, or nothing at all (a loss that was NaN)."""
    n = len(next(iter(cells.values()))) if cells else 0
    known = [cells[theirs] for theirs in canonical(list(cells))]
    others = [v for name, v in cells.items() if name not in canonical(list(cells))]
    training = np.any([~np.isnan(v) for v in known], axis=0) if known else np.zeros(n, np.bool_)
    evaluation = np.any([~np.isnan(v) for v in others], axis=0) if others else ~np.ones(n, np.bool_)
    return training | ~evaluation
