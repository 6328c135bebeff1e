"""CSV exports: of flashback, and of trackers (one row per step, a column per metric)."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import SourceError
from flashback_core.export import EVENTS_COLUMN
from flashback_core.readers.columns import (
    LABELS,
    STEP_NAMES,
    canonical,
    choose_run,
    dtype_of,
    table_of,
)
from flashback_core.table import MemoryTable, StepTable

__all__ = ["read_csv"]

_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_LONGEST_CELL = 1 << 30
_SINGLE_DIGITS = 9


def read_csv(path: Path, run_id: str | None = None, source: str | None = None) -> StepTable:
    """The run in a CSV file.

    Cells that are empty or no number are NaN; a loss that turns empty for good while rows go on
    stays NaN, which is evidence. Rows without any training metric (evaluation rows) are left out.
    An export of flashback reads back as it was.

    Args:
        path: The file.
        run_id: Which run, where a column ``run_id`` holds several.
        source: What the table is called; the path if None.

    Raises:
        SourceError: If it is no CSV with a metric that we know.
    """
    source = source or str(path)
    rows = _rows(path)
    header, body = [name.strip() for name in rows[0]], rows[1:]
    body = _one_run(header, body, run_id, source)
    texts = {
        name: [row[i] if i < len(row) else "" for row in body]
        for i, name in enumerate(header)
        if name and name not in LABELS
    }
    if "step" in texts and any(name.startswith("exact:") for name in texts):
        return _own_export(texts, source)
    return _of_a_tracker(texts, source)


def _own_export(texts: dict[str, list[str]], source: str) -> MemoryTable:
    events = [e for cell in texts.pop(EVENTS_COLUMN, []) if cell for e in _events(cell)]
    steps = _column(texts.pop("step"))
    columns = {name: _in_dtype(cells, dtype_of(name)) for name, cells in texts.items()}
    return table_of(steps, columns, events=events, source=source)


def _events(cell: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(cell)
    except ValueError:
        return []
    return [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []


def _in_dtype(texts: list[str], dtype: str | None) -> npt.NDArray[Any]:
    """A column in the dtype that it had: that of its metric, unless its numbers need a wider one.

    Integers of which one is not known are float64, and so are floats with more digits than float32
    has.
    """
    values = _column(texts)
    if dtype is None or (dtype[0] in "iu" and values.dtype.kind == "f"):
        return values
    if dtype == "f4" and not all(map(_is_single, texts)):
        dtype = "f8"
    return values.astype(dtype)


def _is_single(text: str) -> bool:
    """Whether `text` has no more digits than it takes to write a float32."""
    return len(text.partition("e")[0].replace(".", "").strip("-0")) <= _SINGLE_DIGITS


def _of_a_tracker(texts: dict[str, list[str]], source: str) -> MemoryTable:
    cells = {name: _column(column) for name, column in texts.items()}
    empty = [name for name, values in cells.items() if np.isnan(values).all()]
    cells = {name: values for name, values in cells.items() if name not in empty}
    _refuse_empty(cells, empty, source)
    step = next((name for name in STEP_NAMES if name in cells), None)
    n = len(next(iter(texts.values()), []))
    steps = cells.pop(step) if step else np.arange(n, dtype=np.float64)
    keep = np.isfinite(steps) & _is_training(cells, n)
    columns = {name: values[keep] for name, values in cells.items()}
    return table_of(steps[keep], columns, source=source)


def _refuse_empty(cells: Mapping[str, Any], empty: list[str], source: str) -> None:
    """Say so where all metrics that we know are there without a number."""
    known = [name for name in empty if dtype_of(name) or name in canonical(empty)]
    if known and not (canonical(list(cells)) or any(map(dtype_of, cells))):
        which = ", ".join(map(repr, known[:3]))
        msg = (
            f"{source}: no number in any row of {which}: empty or NaN from the first one on; "
            "expected a metric with numbers"
        )
        raise SourceError(msg)


def _column(texts: list[str]) -> npt.NDArray[Any]:
    """Numbers of a column: integers exactly (hashes need 64 bits), else float64 with NaN."""
    if texts and all(map(_INTEGER.fullmatch, texts)):
        numbers = [int(text) for text in texts]
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= min(numbers) and max(numbers) <= np.iinfo(dtype).max:
                return np.array(numbers, dtype)
    return np.array([_number(text) for text in texts], np.float64)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _rows(path: Path) -> list[list[str]]:
    try:
        with (
            _long_cells(),
            open(path, newline="", encoding="utf-8-sig", errors="replace") as file,
        ):
            rows = [row for row in csv.reader(file) if row]
    except (csv.Error, OSError) as error:
        msg = f"{path} cannot be read as CSV ({error}); export the run again"
        raise SourceError(msg) from error
    if len(rows) < 2:
        msg = f"{path} holds {len(rows)} rows; expected a header and one row per step"
        raise SourceError(msg)
    return rows


@contextmanager
def _long_cells() -> Iterator[None]:
    """The table of groups of a large model is one long cell."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _one_run(
    header: list[str], body: list[list[str]], run_id: str | None, source: str
) -> list[list[str]]:
    if "run_id" not in header:
        return body
    at = header.index("run_id")
    runs = list(dict.fromkeys(row[at] for row in body if len(row) > at))
    chosen = choose_run(runs, run_id, source)
    return body if chosen is None else [r for r in body if len(r) > at and r[at] == chosen]


def _is_training(cells: dict[str, npt.NDArray[Any]], n: int) -> npt.NDArray[np.bool_]:
    """Rows that hold a training metric, or nothing at all (a loss that was NaN)."""
    known = canonical(list(cells))
    training, evaluation = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for name, values in cells.items():
        if name in known:
            training |= ~np.isnan(values)
        else:
            evaluation |= ~np.isnan(values)
    return training | ~evaluation
