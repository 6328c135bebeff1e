"""The writing side of an index: rows into the tail, full tails into segments."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flashback_core.index.format import Event, Header
from flashback_core.index.lock import WriterLock
from flashback_core.index.parts import Parts, read_parts, segment_path, tail_path
from flashback_core.index.records import RESERVE, RowEncoder, decode_rows, encode_event
from flashback_core.index.tail import TailRows, TailWriter
from flashback_core.warn import Guard

__all__ = ["IndexWriter"]

_DISK_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


class IndexWriter:
    """Appends to the index in `folder`, continuing what is there.

    Args:
        folder: Made if missing.
        header: Columns of the rows to come. A tail with other columns is sealed first.
        segment_rows: Rows of a segment.
        on_sealed: Called once a segment is sealed.

    Attributes:
        last_step: Step of the last row that counts, -1 before the first.
        row_shape: Shape of the values of a row.

    Raises:
        IndexLockedError: If somebody else writes there.
        OSError: If the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        segment_rows: int,
        on_sealed: Callable[[], None] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.header, self._segment_rows = folder, header, segment_rows
        self._on_sealed = on_sealed
        self.row_shape = (len(header.metrics),)
        self._encode = RowEncoder(header)
        self._gap: Event | None = None
        self._late: list[Event] = []
        self._guard = Guard()
        self._lock = WriterLock(folder)
        try:
            self._begin(read_parts(folder))
        except BaseException:
            self._lock.release()
            raise
        _open_writers.add(self)

    # -- start -------------------------------------------------------------------------------

    def _begin(self, parts: Parts) -> None:
        self.last_step = int(parts.steps[parts.kept[-1]]) if len(parts.kept) else -1
        tails = {n: p for n, p in parts.parts.items() if isinstance(p, TailRows)}
        last = tails.pop(parts.next_number - 1, None)
        if last is not None and last.header.same_columns(self.header):
            self._continue(parts.next_number - 1, last)
        else:
            tail = TailWriter.create(tail_path(self.folder, parts.next_number), self.header)
            self._go_on_with(tail, parts.next_number)
            if last is not None:
                tails[parts.next_number - 1] = last
        self._tidy(parts, tails)

    def _go_on_with(self, tail: TailWriter, number: int) -> None:
        self._tail, self._number = tail, number
        self._records: list[bytes] = []  # written since; sealing needs not read them again
        self._before = np.empty(0, self.header.row_dtype)  # rows of the tail that was continued
        self._events: list[tuple[int, Event]] = []
        self._n_rows, self._seal_at = 0, self._segment_rows

    def _continue(self, number: int, tail: TailRows) -> None:
        self._go_on_with(TailWriter(tail_path(self.folder, number), tail.start, tail.end), number)
        self._before, self._events, self._n_rows = tail.rows, list(tail.events), tail.n_rows
        if tail.cut is not None:
            self.add_event(tail.cut.event() | {"why": f"{tail.cut.why}, cut off"})
        if tail.gap is not None:
            self._gap = tail.gap
            self._events = [(at, e) for at, e in self._events if e != tail.gap]
            with contextlib.suppress(OSError):
                self._write_late()
        if self.header.run and tail.header.run != self.header.run:
            self.add_event({"event": "run", "run": dict(self.header.run)})

    def _tidy(self, parts: Parts, unsealed: Mapping[int, TailRows]) -> None:
        """Finish what a writer left that died between two acts."""
        for number, part in parts.parts.items():
            old = tail_path(self.folder, number)
            with contextlib.suppress(OSError):  # a full disk: the tail can be read as it is
                if number in unsealed:
                    tail = unsealed[number]
                    self._write_segment(number, tail.header, tail.rows, tail.events)
                if number in unsealed or not isinstance(part, TailRows):
                    old.unlink(missing_ok=True)

    # -- rows --------------------------------------------------------------------------------

    def append(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float]
    ) -> None:
        """Append one row; when this returns the operating system has it.

        Raises:
            ValueError: If `step` is not above the last one or a value does not fit.
            OSError: If it could not be written; the gap is stated in the index.
        """
        if step <= self.last_step:
            msg = (
                f"{self.folder}: step {step} came after step {self.last_step}; steps must "
                "increase. To repeat steps after a resume call resume_at(step) first"
            )
            raise ValueError(msg)
        record = self._encode(step, values, exact)
        try:
            if self._late or self._gap is not None:
                self._write_late(record)
            else:
                self._tail.write(record)
        except OSError:
            self._note_gap(step)
            raise
        self.last_step = step
        self._n_rows += 1
        self._records.append(record)
        self._tail.sync_if_due()
        if self._n_rows >= self._seal_at:
            self._seal_when_full()

    def _note_gap(self, step: int) -> None:
        first, n = (self._gap["step"], self._gap["rows"]) if self._gap else (step, 0)
        self._gap = {"event": "gap", "step": first, "last_step": step, "rows": n + 1}
        self.last_step = step
        with contextlib.suppress(OSError):
            self._tail.reserve(self._gap)

    def _write_late(self, record: bytes = b"") -> None:
        """Write what the disk did not take before, then `record`; all of it or nothing."""
        gap = [self._gap] if self._gap is not None else []
        events = gap + self._late
        self._tail.write(b"".join(map(encode_event, events)) + record)
        self._events += [(self._n_rows, event) for event in events]
        self._gap, self._late = None, []
        if gap:
            self._tail.reserve(RESERVE)

    def add_event(self, event: Event) -> None:
        """Append an event between the rows; where the disk is full, before the next row."""
        encode_event(event)  # refuses what is no JSON now rather than later
        self._late.append(event)
        if self._gap is None:
            with contextlib.suppress(OSError):
                self._write_late()

    def resume_at(self, step: int) -> None:
        """Go on at `step`: rows at or past it are superseded, and kept."""
        if step <= self.last_step:
            self.add_event({"event": "resume", "step": step, "after_step": self.last_step})
            self.last_step = step - 1

    def flush(self) -> None:
        """Fsync what was written."""
        self._tail.sync()

    # -- sealing -----------------------------------------------------------------------------

    def _seal_when_full(self) -> None:
        """Seal; where that fails the rows are safe in the tail, and it is tried again later."""
        try:
            self.seal()
        except OSError as error:
            self._seal_at = self._n_rows + self._segment_rows
            if getattr(error, "errno", None) not in _DISK_FULL:  # that one is told row by row
                self._guard.warn("sealing", f"{self._tail.path} could not be sealed ({error}); "
                                 "check that its folder is still there")  # fmt: skip

    def seal(self) -> None:
        """Turn the tail into a segment and go on with a new tail.

        Raises:
            OSError: If the disk does not take it. The tail then goes on as it was.
        """
        following = TailWriter.create(tail_path(self.folder, self._number + 1), self.header)
        try:
            rows = decode_rows(self._records, self.header)
            if len(self._before):
                rows = np.concatenate([self._before, rows])
            self._write_segment(self._number, self.header, rows, self._events)
        except BaseException:
            following.close()
            following.path.unlink(missing_ok=True)
            raise
        old = self._tail
        self._go_on_with(following, self._number + 1)
        old.close()
        with contextlib.suppress(OSError):
            old.path.unlink()

    def _write_segment(
        self,
        number: int,
        header: Header,
        rows: npt.NDArray[np.void],
        events: list[tuple[int, Event]],
    ) -> None:
        from flashback_core.index.seal import write_segment

        path = segment_path(self.folder, number)
        write_segment(path, header, rows, events)
        if self._on_sealed is not None:
            self._on_sealed()

    # -- end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Seal what is left and let another writer in. Idempotent."""
        if self not in _open_writers:
            return
        _open_writers.discard(self)
        try:
            with contextlib.suppress(OSError):
                self._write_late()
            if self._n_rows:
                self._seal_when_full()
            if not self._n_rows and not self._events:
                with contextlib.suppress(OSError):
                    self._tail.path.unlink()
        finally:
            self._tail.close()
            self._lock.release()

    def _forget(self) -> None:
        """In a forked child: the rows belong to the parent."""
        _open_writers.discard(self)
        self._tail.close()


_open_writers: weakref.WeakSet[IndexWriter] = weakref.WeakSet()


def _forget_all() -> None:
    for writer in list(_open_writers):
        writer._forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_all)
