"""The append-only tail of an index: a writer that survives its own death, and a reader."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flashback_core.index.format import Damage, Event, Header, encode_header, read_header
from flashback_core.index.records import RESERVE, RESERVE_BYTES, encode_event, record_at, whole_rows

__all__ = ["TailRows", "TailWriter", "read_tail"]

SYNC_SECONDS = 2.0
_LOOKS = 5
_PAUSE_SECONDS = 0.003


@dataclass(slots=True, kw_only=True)
class TailRows:
    """What a tail holds.

    Attributes:
        header: Its columns.
        rows: Structured rows, see `Header.row_dtype`.
        events: (number of rows before it, event) in order; damage included.
        start: Offset of the first record, the one kept in reserve.
        end: Offset behind the last whole record.
        gap: What the reserve says was lost, if anything.
        cut: The incomplete record at the end, if there is one.
    """

    header: Header
    rows: npt.NDArray[np.void]
    events: list[tuple[int, Event]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    gap: Event | None = None
    cut: Damage | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.header.columns)

    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each row."""
        return np.ascontiguousarray(self.rows["step"])

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """The column `name`."""
        return self.header.column_of(self.rows, name)


def read_tail(path: Path) -> TailRows:
    """Everything of a tail that can be read; damage stands among the events.

    Where something does not fit it looks again: a live writer may be in the middle of a write.

    Raises:
        IndexFormatError: If its header cannot be read.
        FileNotFoundError: If its writer has sealed it.
    """
    data = path.read_bytes()
    tail = _parse(data, path.name)
    for _ in range(_LOOKS):
        if not any(event["event"] == "damage" for _, event in tail.events):
            break
        time.sleep(_PAUSE_SECONDS)
        before, data = data, path.read_bytes()
        if data == before:
            break
        tail = _parse(data, path.name)
    return tail


def _parse(data: bytes, name: str) -> TailRows:
    header, start, damage = read_header(data, name)
    tail = TailRows(header=header, rows=np.empty(0, header.row_dtype), start=start, end=start)
    tail.events = [(0, d.event()) for d in damage]
    pieces, n, at = [tail.rows], 0, start
    while at < len(data):
        rows = whole_rows(data, at, header)
        if len(rows):
            pieces.append(rows)
            n += len(rows)
            at = tail.end = at + len(rows) * (16 + header.row_dtype.itemsize)
            continue
        kind, content, at = record_at(data, at, name)
        if kind == "damage":
            tail.events.append((n, content.event()))
            tail.cut = content if at == len(data) else None
        else:
            tail.end = at
        if kind == "event":
            _add_event(tail, n, json.loads(content), at)
    tail.rows = np.concatenate(pieces)
    if tail.gap is not None and tail.gap not in [event for _, event in tail.events]:
        tail.events.append((tail.n_rows, tail.gap))
    return tail


def _add_event(tail: TailRows, at: int, event: Event, stop: int) -> None:
    if stop == tail.start + RESERVE_BYTES and event["event"] in ("reserve", "gap"):
        tail.gap = None if event == RESERVE else event
    else:
        tail.events.append((at, event))


class TailWriter:
    """Appends records to a tail. Each record is handed to the operating system at once.

    A record that cannot be written whole (disk full) is cut away again, so that what follows can be
    read. `fsync` runs every 2 s at most: it costs milliseconds and only guards against power loss.

    Args:
        path: File of the tail; must exist.
        start: Offset of its first record.
        end: Offset behind its last whole record.
    """

    def __init__(self, path: Path, start: int, end: int) -> None:
        self.path = path
        self._start = start
        self._fd = -1
        self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)
        self._synced = time.monotonic()

    @classmethod
    def create(cls, path: Path, header: Header) -> TailWriter:
        """A new tail at `path`, which appears under its name when its header is complete."""
        head = encode_header(header)
        temporary = path.with_name(path.name + ".tmp")
        try:
            with open(temporary, "wb", buffering=0) as file:
                _write_all(file.fileno(), head + encode_event(RESERVE, RESERVE_BYTES))
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return cls(path, len(head), len(head) + RESERVE_BYTES)

    def write(self, record: bytes) -> None:
        """Append `record`.

        Raises:
            OSError: If it could not be written whole; the file is then as it was before.
        """
        written = os.write(self._fd, record)
        if written != len(record):
            self._write_rest(record, written)

    def _write_rest(self, record: bytes, written: int) -> None:
        begin = os.lseek(self._fd, 0, os.SEEK_CUR) - written
        try:
            _write_all(self._fd, record[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, begin)
                os.lseek(self._fd, begin, os.SEEK_SET)
            raise

    def reserve(self, event: Event) -> None:
        """Put `event` into the place in reserve, which needs no new bytes on the disk."""
        record = encode_event(event, RESERVE_BYTES)
        if len(record) == RESERVE_BYTES and hasattr(os, "pwrite"):  # Windows has none
            os.pwrite(self._fd, record, self._start)

    def sync_if_due(self) -> None:
        """Fsync when the last one is 2 s ago."""
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Fsync now.

        Raises:
            OSError: If the disk could not take what the operating system had accepted.
        """
        self._synced = time.monotonic()
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def __del__(self) -> None:
        """Close the file of an index that was dropped without `close`."""
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write_all(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])
