"""Reading the data set: labelled runs, one at a time, as tables for detectors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flashback_core.errors import SourceError
from flashback_core.forensics.dataset import FACTS_KEY, run_files
from flashback_core.readers.columns import LABELS
from flashback_core.table import MemoryTable

__all__ = ["LabelledRun", "data_files", "fingerprint", "load_runs", "runs_in"]

_ROWS_ONLY = LABELS | {"step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A run and its label.

    Attributes:
        run_id: ``<kind>__s<seed>``.
        table: Its rows, with the metrics of its own schema and its events.
        facts: Its row of ``runs``.
        is_twin: Whether it is the healthy twin of a fault run.
    """

    run_id: str
    table: MemoryTable
    facts: dict[str, Any] = field(repr=False)
    is_twin: bool = False

    @property
    def first_bad_step(self) -> int | None:
        """The label; None for a run in which nothing is wrong."""
        step = int(self.facts.get("first_bad_step", -1))
        return None if step < 0 else step

    @property
    def split(self) -> str:
        """``train``, ``calibration`` or ``test``."""
        return str(self.facts.get("split", "test"))

    @property
    def bad_steps(self) -> list[int]:
        """Steps of all its faults, in order."""
        listed = json.loads(self.facts.get("all_bad_steps") or "[]")
        first = self.first_bad_step
        return sorted(map(int, listed)) or ([] if first is None else [first])


def data_files(
    folder: str | Path, *, twins: bool = False, splits: Sequence[str] | None = None
) -> list[Path]:
    """The files of steps of a data set, and those of the twins.

    Args:
        folder: The data set.
        twins: Whether the twins come along.
        splits: Splits whose files may be wanted; None are all.

    Raises:
        SourceError: If the folder holds no data set.
    """
    paths = run_files(folder, "steps") + (run_files(folder, "twins") if twins else [])
    if not paths:
        msg = f"{folder} holds no steps/*.parquet; build it with flashback forensics build"
        raise SourceError(msg)
    if splits is not None and "test" not in splits:
        paths = [p for p in paths if not p.name.startswith("test-")]
    if splits is not None and set(splits) == {"test"}:
        paths = [p for p in paths if p.name.startswith("test-")]
    return paths


def load_runs(
    folder: str | Path, *, twins: bool = False, splits: Sequence[str] | None = None
) -> Iterator[LabelledRun]:
    """The runs of a data set, one at a time; see `data_files`."""
    for path in data_files(folder, twins=twins, splits=splits):
        for run in runs_in(path):
            if splits is None or run.split in splits:
                yield run


def runs_in(path: Path) -> Iterator[LabelledRun]:
    """The runs in one file of steps, with a run in each or with many.

    Raises:
        SourceError: If the file cannot be read as Parquet.
    """
    try:
        data = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        msg = f"{path} cannot be read as Parquet ({error}); build or download it again"
        raise SourceError(msg) from error
    facts = (data.schema.metadata or {}).get(FACTS_KEY)
    if facts is not None:
        yield _run(data, json.loads(facts))
        return
    known = _facts_beside(path)
    for run_id in pc.unique(data.column("run_id")).to_pylist():
        part = data.filter(pc.equal(data.column("run_id"), run_id))
        yield _run(part, known.get(run_id) or _facts_of_rows(part, path))


def _run(data: pa.Table, facts: dict[str, Any]) -> LabelledRun:
    columns = {
        name: _values(data.column(name))
        for name in data.column_names
        if name not in _ROWS_ONLY and data.column(name).null_count < len(data)
    }
    run_id, twin = str(facts["run_id"]), bool(facts.get("is_twin"))
    table = MemoryTable(
        data.column("step").to_numpy(),
        columns,
        events=json.loads(facts.get("events") or "[]"),
        source=f"{run_id}{' (twin)' if twin else ''}",
    )
    return LabelledRun(run_id=run_id, table=table, facts=facts, is_twin=twin)


def _values(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[Any]]:
    if column.null_count:
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy())


def _facts_beside(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of the tables ``runs`` of the data set of `path`, by run id."""
    folder = path.parent.parent
    rows = (row for p in run_files(folder, "runs") for row in pq.read_table(p).to_pylist())
    return {row["run_id"]: row for row in rows}


def _facts_of_rows(data: pa.Table, path: Path) -> dict[str, Any]:
    """What the rows themselves tell of a run."""
    bad = data.filter(pc.equal(data.column("is_after_first_bad"), 1))
    return {
        "run_id": data.column("run_id")[0].as_py(),
        "fault_kind": data.column("fault_kind")[0].as_py(),
        "first_bad_step": bad.column("step")[0].as_py() if len(bad) else -1,
        "n_steps": len(data),
        "split": path.name.partition("-")[0],
    }


def fingerprint(folder: str | Path) -> str:
    """16 hexadecimal digits that differ when runs or labels differ, whatever the times are."""
    import hashlib

    digest = hashlib.sha256()
    for run in load_runs(folder):
        digest.update(f"{run.run_id} {run.first_bad_step} {len(run.table)}".encode())
        if "loss" in run.table:
            digest.update(np.asarray(run.table.column("loss"), np.float64).tobytes())
    return digest.hexdigest()[:16]
