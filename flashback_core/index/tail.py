"""The append-only tail of an index: a writer that survives its own death, and a reader."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.index.format import (
    Damage,
    Event,
    Header,
    encode_header,
    read_header,
    scan_records,
)

__all__ = ["TailRows", "TailWriter", "read_tail"]

SYNC_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class TailRows:
    """What a tail holds.

    Attributes:
        header: Its columns.
        rows: Structured rows, see `Header.row_dtype`.
        events: (number of rows before it, event) in order.
        end: Offset behind the last whole record.
    """

    header: Header
    rows: npt.NDArray[np.void]
    events: list[tuple[int, Event]] = field(default_factory=list)
    end: int = 0


def read_tail(path: Path, where: str | None = None) -> TailRows:
    """Everything of a tail that can be read; damage stands among the events.

    Raises:
        IndexFormatError: If its header cannot be read.
    """
    data = path.read_bytes()
    name = where or path.name
    header, start, damage = read_header(data, name)
    payloads: list[bytes] = []
    events: list[tuple[int, Event]] = [(0, d.event()) for d in damage]
    end = start
    for kind, content, stop in scan_records(data, start, name):
        if isinstance(content, Damage):
            events.append((len(payloads), content.event()))
            continue
        end = stop
        if kind == "row" and len(content) == header.row_dtype.itemsize:
            payloads.append(content)
        elif kind == "event":
            events.append((len(payloads), json.loads(content)))
    rows = np.frombuffer(b"".join(payloads), header.row_dtype)
    return TailRows(header=header, rows=rows, events=events, end=end)


class TailWriter:
    """Appends records to a tail. Each record is handed to the operating system at once.

    A record that cannot be written whole (disk full) is cut away again, so that what follows can be
    read. `fsync` runs every 2 s at most: it costs milliseconds and only guards against power loss.

    Args:
        path: File of the tail; continued behind its last whole record if it exists.
        header: Written if the file is new.
        end: Where to continue an existing file.
    """

    def __init__(self, path: Path, header: Header, end: int | None = None) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if end is None:
                os.ftruncate(self._fd, 0)
                self._end = 0
                self.write(encode_header(header))
            else:
                os.ftruncate(self._fd, end)
                os.lseek(self._fd, end, os.SEEK_SET)
                self._end = end
        except BaseException:
            os.close(self._fd)
            raise
        self._synced = time.monotonic()

    def write(self, record: bytes) -> None:
        """Append `record`.

        Raises:
            OSError: If it could not be written whole; the file is then as it was before.
        """
        try:
            written = os.write(self._fd, record)
            while written < len(record):
                written += os.write(self._fd, record[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
                os.lseek(self._fd, self._end, os.SEEK_SET)
            raise
        self._end += len(record)

    def sync_if_due(self) -> None:
        """Fsync when the last one is 2 s ago."""
        now = time.monotonic()
        if now - self._synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Fsync now."""
        self._synced = time.monotonic()
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def close(self, **_: Any) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
