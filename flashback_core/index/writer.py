"""The writing side of an index: rows into the tail, full tails into segments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flashback_core.index.format import Event, Header, encode_event, encode_row
from flashback_core.index.lock import WriterLock
from flashback_core.index.parts import Parts, read_parts, segment_path, tail_path
from flashback_core.index.segment import segment_table, write_segment
from flashback_core.index.tail import TailWriter, read_tail

__all__ = ["IndexWriter"]


class IndexWriter:
    """Appends to the index in `folder`, continuing what is there.

    Args:
        folder: Made if missing.
        header: Columns of the rows to come. A tail with other columns is sealed first.
        segment_rows: Rows of a segment.

    Raises:
        IndexLockedError: If somebody else writes there.
        OSError: If the folder cannot be written.
    """

    def __init__(self, folder: Path, header: Header, segment_rows: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.header, self._segment_rows = folder, header, segment_rows
        self._lock = WriterLock(folder)
        try:
            self._begin(read_parts(folder))
        except BaseException:
            self._lock.release()
            raise
        self._absent = self._absent_exact()
        self._places = {f"exact:{n}": i for i, (n, _) in enumerate(header.exact)}
        self._places |= {n: i for i, (n, _) in enumerate(header.exact)}
        self._closed = False
        self._lost: list[int] = []
        self._n_lost = 0

    def _begin(self, parts: Parts) -> None:
        steps = parts.steps()
        self.last_step = int(steps[-1]) if len(steps) else -1
        self.n_rows = len(steps)
        self._number, self._tail_rows = parts.next_number, 0
        end = None
        if parts.tail_number is not None:
            tail = parts.tails[-1]
            same = tail.header.to_json() | {"run": None} == self.header.to_json() | {"run": None}
            if same:
                self._number, end, self._tail_rows = parts.tail_number, tail.end, len(tail.rows)
            else:
                self._seal_file(parts.tail_number)
        self._tail = TailWriter(tail_path(self.folder, self._number), self.header, end)

    def _absent_exact(self) -> list[float]:
        from flashback_core.schema import EXACT_FIELDS

        absent = {f.name: f.absent for f in EXACT_FIELDS}
        return [absent.get(name, 0) for name, _ in self.header.exact]

    def append(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float]
    ) -> None:
        """Append one row; when this returns the operating system has it.

        Raises:
            ValueError: If `step` is not above the last one.
            OSError: If it could not be written. The gap is recorded once writing works again.
        """
        if step <= self.last_step:
            msg = (
                f"{self.folder}: step {step} came after step {self.last_step}; steps must "
                "increase. To repeat steps after a resume call resume_at(step) first"
            )
            raise ValueError(msg)
        row = self._absent.copy()
        for name, value in exact.items():
            row[self._places[name]] = value
        try:
            if self._n_lost:
                self._record_gap()
            self._tail.write(encode_row(self.header, step, values, tuple(row)))
        except OSError:
            self._lost = [self._lost[0] if self._lost else step, step]
            self._n_lost += 1
            self.last_step = step
            raise
        self.last_step = step
        self.n_rows += 1
        self._tail_rows += 1
        self._tail.sync_if_due()
        if self._tail_rows >= self._segment_rows:
            self.seal()

    def _record_gap(self) -> None:
        first, last = self._lost
        self._tail.write(
            encode_event({"event": "gap", "step": first, "last_step": last, "rows": self._n_lost})
        )
        self._lost, self._n_lost = [], 0

    def add_event(self, event: Event) -> None:
        """Append an event between the rows.

        Raises:
            OSError: If it could not be written.
        """
        self._tail.write(encode_event(event))

    def resume_at(self, step: int) -> None:
        """Go on at `step`: rows at or past it are superseded, and kept."""
        if step <= self.last_step:
            self.add_event({"event": "resume", "step": step, "after_step": self.last_step})
            self.last_step = step - 1

    def flush(self) -> None:
        """Fsync what was written."""
        self._tail.sync()

    def seal(self) -> None:
        """Turn the tail into a segment and begin a new one."""
        self._tail.sync()
        self._seal_file(self._number)
        self._tail.close()
        with contextlib.suppress(OSError):
            tail_path(self.folder, self._number).unlink()
        self._number += 1
        self._tail_rows = 0
        self._tail = TailWriter(tail_path(self.folder, self._number), self.header)

    def _seal_file(self, number: int) -> None:
        tail = read_tail(tail_path(self.folder, number))
        table = segment_table(tail.header, tail.rows, tail.events)
        write_segment(segment_path(self.folder, number), table)

    def close(self) -> None:
        """Seal what is left and let another writer in. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._n_lost:
                with contextlib.suppress(OSError):
                    self._record_gap()
            if self._tail_rows:
                self.seal()
            last = tail_path(self.folder, self._number)
            if self._has_no_records():
                last.unlink(missing_ok=True)
        finally:
            self._tail.close()
            self._lock.release()

    def _has_no_records(self) -> bool:
        tail = read_tail(tail_path(self.folder, self._number))
        return not len(tail.rows) and not tail.events
