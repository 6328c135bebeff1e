"""StepSketchIndex: the sketches of a run on disk, one row per step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.errors import IndexFormatError, SchemaError
from flashback_core.index.format import Event, Header
from flashback_core.index.lock import WriterLock
from flashback_core.index.parts import Parts, is_index, read_parts
from flashback_core.index.remote import Mirror, Uploader, cache_folder, url_of
from flashback_core.index.writer import IndexWriter
from flashback_core.schema import EXACT_FIELDS, SketchSchema, unknown_metric
from flashback_core.table import MemoryTable, StepTable

__all__ = ["SEGMENT_ROWS", "StepSketchIndex"]

SEGMENT_ROWS = 4096
_NO_ROWS = Header.of(SketchSchema())
_EXACT = {f.column: f.dtype for f in EXACT_FIELDS}


class StepSketchIndex(StepTable):
    """Append-only, crash-safe index of sketches; see `flashback_core.index.format` for the bytes.

    Args:
        path: Folder of the index, or a URL (``s3://…``), see `flashback_core.index.remote`.
        mode: ``"r"`` reads (a live run too; see `refresh`), ``"a"`` continues or creates,
            ``"w"`` starts anew and keeps what was there beside it under another name.
        schema: Metrics of the rows to come; the default schema, or the one that is there.
        run: Facts of the run, kept with the rows (plain JSON values).
        segment_rows: Rows of a sealed segment.

    Attributes:
        path: The folder that is read or written; behind a URL, its copy on this machine.
        url: The URL, None for a folder.

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
        if mode not in ("r", "a", "w"):
            msg = f"mode {mode!r} is none of 'r' (read), 'a' (continue or create), 'w' (new)"
            raise ValueError(msg)
        self.mode = mode
        self.url = url_of(path)
        self._view: Parts | None = None
        self._is_stale = False
        self._mirror: Mirror | None = None
        self._uploader: Uploader | None = None
        self._writer: IndexWriter | None = None
        if mode == "r":
            self.path = self._readable(Path(path))
        else:
            self.path = self._writable(Path(path))
            header = Header.of(schema or _schema_there(self.path) or SketchSchema(), run)
            # not a method of ours: an index in no cycle is closed when nobody holds it any more
            on_sealed = self._uploader.start if self._uploader is not None else None
            self._writer = IndexWriter(self.path, header, segment_rows, on_sealed)

    def _readable(self, path: Path) -> Path:
        if self.url is not None:
            self._mirror = Mirror(self.url)
            path = self._mirror.folder
        _refuse_foreign(path, self.url or str(path))
        return path

    def _writable(self, path: Path) -> Path:
        if self.url is not None:
            path = cache_folder(self.url)
            self._uploader = Uploader(self.url, path)
        if self.mode == "w" and is_index(path):
            if self.url is not None:
                msg = f"mode 'w' does not replace the index at {self.url}; give another URL"
                raise IndexFormatError(msg)
            _set_aside(path)
        return path

    # -- reading -----------------------------------------------------------------------------

    @property
    def _parts(self) -> Parts:
        if self._view is None or self._is_stale:
            if self._mirror is not None and self._is_stale:
                self._mirror.sync()
            self._view, self._is_stale = read_parts(self.path, self._view), False
        return self._view

    def refresh(self) -> Self:
        """See the rows that another process wrote since; returns self."""
        self._is_stale = True
        return self

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each row, int64, increasing, read-only."""
        return self._parts.kept_steps

    @property
    def _dtypes(self) -> Mapping[str, str]:
        return (self._parts.header or _NO_ROWS).columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return (self._parts.header or _NO_ROWS).names

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Columns of the exact fields."""
        return (self._parts.header or _NO_ROWS).exact_names

    @property
    def schema(self) -> SketchSchema:
        """The schema of the rows."""
        header = self._parts.header
        return SketchSchema(header.groups) if header else SketchSchema()

    @property
    def run(self) -> Mapping[str, Any]:
        """Facts of the run, as given when it was last continued."""
        told = [event["run"] for _, event in self._parts.events if event["event"] == "run"]
        header = self._parts.header
        return told[-1] if told else header.run if header else {}

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened beside the steps, in order; damaged bytes included."""
        return tuple(event for _, event in self._parts.events)

    @property
    def source(self) -> str:
        """The folder or URL."""
        return self.url or str(self.path)

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`; metrics of damaged or older parts are NaN there.

        An exact field that the index is too old to have is not known at all steps.

        Raises:
            SchemaError: If there is no such column.
        """
        column = self._raw(name)
        kept = self._parts.kept
        return column if len(kept) == len(column) else column[kept]

    def _raw(self, name: str, first: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """The column `name` of rows as they were written, superseded ones included."""
        dtype = self._dtypes.get(name) or _EXACT.get(name)
        if dtype is None:
            raise SchemaError(unknown_metric(name, tuple(self._dtypes)))
        column = self._parts.column(name, first, stop)
        return column if len(column) else column.astype(dtype)

    def _rows(self, rows: slice) -> MemoryTable:
        chosen = self._parts.kept[rows]  # reads only the segments that hold them
        first, stop = (int(chosen.min()), int(chosen.max()) + 1) if len(chosen) else (0, 0)
        columns = {name: self._raw(name, first, stop)[chosen - first] for name in self}
        return MemoryTable(self.steps[rows], columns, events=self.events, source=self.source)

    @property
    def superseded(self) -> MemoryTable:
        """Rows that a resume replaced, in the order they were written."""
        gone = np.setdiff1d(np.arange(len(self._parts.steps)), self._parts.kept)
        columns = {name: self._raw(name)[gone] for name in self}
        source = f"{self.source} (superseded)"
        return MemoryTable(self._parts.steps[gone], columns, source=source, ordered=False)

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
        writer = self._writer or self._open_writer
        values = np.asarray(values, np.float64)
        if values.shape != writer.row_shape:
            msg = f"values have shape {values.shape}, expected {writer.row_shape}"
            raise ValueError(msg)
        self._is_stale = True
        writer.append(step, values, exact or {})

    def add_event(self, event: Event) -> None:
        """Append an event between the rows, e.g. ``{"event": "expect", "step": 9, "kind": …}``.

        Where the disk does not take it, it is written before the next row.

        Raises:
            TypeError: If it is no JSON.
        """
        self._is_stale = True
        self._open_writer.add_event(event)

    def resume_at(self, step: int) -> None:
        """Go on at `step`: rows at or past it are superseded and kept, see `superseded`."""
        self._is_stale = True
        self._open_writer.resume_at(step)

    def flush(self) -> None:
        """Have the disk hold all rows against a loss of power too."""
        self._open_writer.flush()

    def close(self) -> None:
        """Seal and let go. Idempotent; reading goes on working."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            finally:
                if self._uploader is not None:
                    self._uploader.close()
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
        return f"StepSketchIndex({self.source!r}, mode={self.mode!r})"


def _refuse_foreign(path: Path, name: str) -> None:
    if not path.exists():
        msg = f"{name} does not exist; expected the folder of an index, e.g. runs/my-run/sketch"
        raise IndexFormatError(msg)
    if not is_index(path):
        msg = (
            f"{name} is not an index: it holds no segment-*.parquet and no tail-*.bin; "
            "expected the folder that a Recorder wrote, e.g. runs/my-run/sketch"
        )
        raise IndexFormatError(msg)


def _schema_there(path: Path) -> SketchSchema | None:
    header = read_parts(path).header if path.is_dir() else None
    return SketchSchema(header.groups) if header else None


def _set_aside(path: Path) -> None:
    """Rename the index at `path`, so that a new one takes its place and nothing is lost."""
    lock = WriterLock(path)
    number = 1
    while (kept := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    try:
        path.rename(kept)
    finally:
        lock.release()
