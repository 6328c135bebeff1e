"""StepSketchIndex: the sketches of a run on disk, one row per step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.errors import IndexFormatError, SchemaError
from flashback_core.index.format import Event, Header
from flashback_core.index.parts import Parts, is_index, read_parts
from flashback_core.index.writer import IndexWriter
from flashback_core.schema import EXACT_FIELDS, SketchSchema, unknown_metric
from flashback_core.table import MemoryTable, StepTable

__all__ = ["SEGMENT_ROWS", "StepSketchIndex"]

SEGMENT_ROWS = 4096


class StepSketchIndex(StepTable):
    """Append-only, crash-safe index of sketches; see `flashback_core.index.format` for the bytes.

    Args:
        path: Folder of the index.
        mode: ``"r"`` reads (a live run too; see `refresh`), ``"a"`` continues or creates,
            ``"w"`` starts anew and keeps what was there beside it under another name.
        schema: Metrics of the rows to come; the default schema, or the one that is there.
        run: Facts of the run, kept with the rows (plain JSON values).
        segment_rows: Rows of a sealed segment.

    Raises:
        IndexFormatError: If `path` is not an index (mode ``"r"``).
        IndexLockedError: If another process writes there (modes ``"a"`` and ``"w"``).
        ValueError: If `mode` is something else.

    Examples:
        >>> index = StepSketchIndex("runs/my-run/sketch")  # doctest: +SKIP
        >>> index["grad_norm"][100:110], len(index)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        mode: str = "r",
        *,
        schema: SketchSchema | None = None,
        run: Mapping[str, Any] | None = None,
        segment_rows: int = SEGMENT_ROWS,
    ) -> None:
        self.path = Path(path)
        self.mode = mode
        self._writer: IndexWriter | None = None
        if mode == "r":
            _refuse_foreign(self.path)
        elif mode in ("a", "w"):
            if mode == "w" and is_index(self.path):
                _set_aside(self.path)
            header = Header.of(schema or _schema_there(self.path) or SketchSchema(), run)
            self._writer = IndexWriter(self.path, header, segment_rows)
        else:
            msg = f"mode {mode!r} is none of 'r' (read), 'a' (continue or create), 'w' (new)"
            raise ValueError(msg)

    # -- reading -----------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> Parts:
        return read_parts(self.path)

    def refresh(self) -> Self:
        """See the rows that were written since; returns self."""
        for name in ("_parts", "_all_steps", "_keep", "steps", "_dtypes"):
            self.__dict__.pop(name, None)
        return self

    @cached_property
    def _all_steps(self) -> npt.NDArray[np.int64]:
        return self._parts.steps()

    @cached_property
    def _keep(self) -> npt.NDArray[np.bool_] | None:
        """Rows that no resume superseded; None where that is all of them."""
        resumes = [(at, e["step"]) for at, e in self._parts.events() if e["event"] == "resume"]
        if not resumes:
            return None
        keep = np.ones(len(self._all_steps), np.bool_)
        for at, step in resumes:
            keep[:at] &= self._all_steps[:at] < step
        return keep

    @cached_property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each row, int64, increasing."""
        return self._kept(self._all_steps)

    def _kept(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self._keep is None else column[self._keep]

    @cached_property
    def _dtypes(self) -> dict[str, tuple[str, float]]:
        """Dtype and absent value of each column."""
        header = self._parts.header or Header.of(SketchSchema())
        absent = {f.name: f.absent for f in EXACT_FIELDS}
        columns: dict[str, tuple[str, float]] = {
            n: (d, 0 if d == "i8" else np.nan) for n, d in header.metrics
        }
        return columns | {f"exact:{n}": (d, absent.get(n, 0)) for n, d in header.exact}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(n for n in self._dtypes if not n.startswith("exact:"))

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Columns of the exact fields."""
        return tuple(n for n in self._dtypes if n.startswith("exact:"))

    @property
    def schema(self) -> SketchSchema:
        """The schema of the rows."""
        header = self._parts.header
        return SketchSchema(header.groups) if header else SketchSchema()

    @property
    def run(self) -> Mapping[str, Any]:
        """Facts of the run, as given when it was recorded."""
        header = self._parts.header
        return header.run if header else {}

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened beside the steps, in order; damage that was met so far included."""
        return tuple(event for _, event in self._parts.events())

    @property
    def source(self) -> str:
        """The folder."""
        return str(self.path)

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`; metrics of damaged or older parts are NaN there.

        Raises:
            SchemaError: If there is no such column.
        """
        if name not in self._dtypes:
            raise SchemaError(unknown_metric(name, tuple(self._dtypes)))
        return self._kept(self._parts.column(name, *self._dtypes[name]))

    @property
    def superseded(self) -> MemoryTable:
        """Rows that a resume replaced, in the order they were written."""
        gone = np.zeros(len(self._all_steps), np.bool_) if self._keep is None else ~self._keep
        columns = {n: self._parts.column(n, *self._dtypes[n])[gone] for n in self}
        return MemoryTable(
            self._all_steps[gone], columns, source=f"{self.path} (superseded)", ordered=False
        )

    # -- writing -----------------------------------------------------------------------------

    @property
    def _open_writer(self) -> IndexWriter:
        if self._writer is None:
            msg = f"{self.path} is open for reading (mode {self.mode!r}) or closed; open with 'a'"
            raise IndexFormatError(msg)
        return self._writer

    @property
    def last_step(self) -> int:
        """Step of the last row that was written, -1 before the first."""
        return self._open_writer.last_step

    def append(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float] | None = None
    ) -> None:
        """Append one row. When this returns the row survives the death of the process.

        Args:
            step: Above the last one.
            values: One number per metric, in the order of the schema.
            exact: Exact fields by name; the others get their absent value.

        Raises:
            ValueError: If `step` or the shape of `values` does not fit.
            OSError: If the disk did not take it.
        """
        writer = self._open_writer
        values = np.asarray(values, np.float64)
        if values.shape != (len(writer.header.metrics),):
            msg = f"values have shape {values.shape}, expected ({len(writer.header.metrics)},)"
            raise ValueError(msg)
        writer.append(step, values, exact or {})

    def add_event(self, event: Event) -> None:
        """Append an event between the rows, e.g. ``{"event": "expect", "step": 9, "kind": …}``."""
        self._open_writer.add_event(event)

    def resume_at(self, step: int) -> None:
        """Go on at `step`: rows at or past it are superseded and kept, see `superseded`."""
        self._open_writer.resume_at(step)

    def flush(self) -> None:
        """Ask the disk to hold all rows against a loss of power too."""
        self._open_writer.flush()

    def close(self) -> None:
        """Seal and let go. Idempotent; reading goes on working."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
            self.refresh()

    def __enter__(self) -> Self:
        """The index itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Folder and mode."""
        return f"StepSketchIndex({str(self.path)!r}, mode={self.mode!r})"


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        msg = f"{path} does not exist; expected the folder of an index, e.g. runs/my-run/sketch"
        raise IndexFormatError(msg)
    if not is_index(path):
        msg = (
            f"{path} is not an index: it holds no segment-*.parquet and no tail-*.bin; "
            "expected the folder that a Recorder wrote, e.g. runs/my-run/sketch"
        )
        raise IndexFormatError(msg)


def _schema_there(path: Path) -> SketchSchema | None:
    header = read_parts(path).header if path.is_dir() else None
    return SketchSchema(header.groups) if header else None


def _set_aside(path: Path) -> None:
    """Rename the index at `path`, so that a new one takes its place and nothing is lost."""
    number = 1
    while (kept := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    path.rename(kept)
