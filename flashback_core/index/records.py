"""The records of a tail: rows and events to bytes and back, see `flashback_core.index.format`."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from flashback_core.errors import SchemaError
from flashback_core.index.format import Damage, Event, Header
from flashback_core.schema import EXACT_FIELDS, unknown_metric

__all__ = [
    "RESERVE",
    "RESERVE_BYTES",
    "RowEncoder",
    "decode_rows",
    "encode_event",
    "record_at",
    "whole_rows",
]

RESERVE: Event = {"event": "reserve"}
"""Content of the place that is kept for a gap."""

RESERVE_BYTES = 192
_SYNC = b"\xfb\x5b"
_RECORD = struct.Struct("<2sBBI")
_SUM = 8
_ROW, _EVENT = 1, 2
_CODES = {"i4": "i", "i8": "q", "u4": "I", "u8": "Q", "f4": "f", "f8": "d"}


class RowEncoder:
    """Makes row records; all that does not change between rows is made once.

    Args:
        header: The columns.
    """

    def __init__(self, header: Header) -> None:
        n = 8 * len(header.metrics)
        self._struct = struct.Struct(f"<8sq{n}s" + "".join(_CODES[d] for _, d in header.exact))
        self._head = _RECORD.pack(_SYNC, _ROW, 0, self._struct.size - _RECORD.size)
        absent = {f.name: f.absent for f in EXACT_FIELDS}
        self._absent = {name: absent.get(name, 0) for name, _ in header.exact}

    def __call__(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float]
    ) -> bytes:
        """The record of one row.

        Raises:
            SchemaError: If `exact` names a field that is not there.
            ValueError: If `step` or an exact value does not fit its type.
        """
        fields = {**self._absent, **exact}  # in the order of the header
        if len(fields) != len(self._absent):
            raise SchemaError(_unknown_exact(next(reversed(fields)), tuple(self._absent)))
        try:
            body = self._struct.pack(self._head, step, values.tobytes(), *fields.values())
        except (struct.error, TypeError) as error:
            msg = f"step {step!r} or an exact field of {dict(exact)} does not fit its type: {error}"
            raise ValueError(msg) from None
        return body + xxh3_64_digest(body)


def _unknown_exact(name: object, known: Sequence[str]) -> str:
    return unknown_metric(str(name), known).replace("metric", "exact field", 1).replace(
        "metrics here", "exact fields here")  # fmt: skip


def encode_event(event: Event, size: int = 0) -> bytes:
    """An event record; with `size` padded to that many bytes.

    Raises:
        ValueError: If the event is no plain JSON, or longer than `size`.
    """
    text = json.dumps(event, separators=(",", ":"), default=str).encode()
    text = text.ljust(size - _RECORD.size - _SUM)
    body = _RECORD.pack(_SYNC, _EVENT, 0, len(text)) + text
    return body + xxh3_64_digest(body)


def decode_rows(records: Sequence[bytes], header: Header) -> npt.NDArray[np.void]:
    """The rows of row records that are known to be whole."""
    size = _RECORD.size + header.row_dtype.itemsize + _SUM
    block = np.frombuffer(b"".join(records), np.uint8).reshape(-1, size)
    payload = np.ascontiguousarray(block[:, _RECORD.size : -_SUM])
    return payload.reshape(-1).view(header.row_dtype)


def whole_rows(data: bytes, at: int, header: Header) -> npt.NDArray[np.void]:
    """The row records that stand whole from `at` on, one behind the other, decoded.

    Up to 256 of them: all that can be said of many rows at once is said at once, which makes
    reading a tail five times as fast as record by record.
    """
    size = _RECORD.size + header.row_dtype.itemsize + _SUM
    n = min((len(data) - at) // size, 256)
    block = np.frombuffer(data, np.uint8, n * size, at).reshape(n, size)
    head = _RECORD.pack(_SYNC, _ROW, 0, header.row_dtype.itemsize)
    n = _first_false((block[:, : _RECORD.size] == np.frombuffer(head, np.uint8)).all(axis=1))
    view = memoryview(data)[at : at + n * size]
    sums = b"".join([xxh3_64_digest(view[i : i + size - _SUM]) for i in range(0, len(view), size)])
    found = np.frombuffer(sums, np.uint8).reshape(n, _SUM)
    n = _first_false((found == block[:n, -_SUM:]).all(axis=1))
    return decode_rows([data[at : at + n * size]], header)


def _first_false(flags: npt.NDArray[np.bool_]) -> int:
    return len(flags) if flags.all() else int(np.argmin(flags))


def record_at(data: bytes, at: int, where: str) -> tuple[str, Any, int]:
    """What stands at `at`: (``row`` | ``event`` | ``damage``, payload or `Damage`, end offset)."""
    end = _record_end(data, at)
    if end is not None:
        kind = "row" if data[at + 2] == _ROW else "event"
        return kind, data[at + _RECORD.size : end - _SUM], end
    following = _next_record(data, at + 1)
    stop = len(data) if following is None else following
    why = "incomplete record at the end" if following is None else "checksum does not fit"
    return "damage", Damage(file=where, offset=at, length=stop - at, why=why), stop


def _record_end(data: bytes, at: int) -> int | None:
    """Where the record at `at` ends, or None where no whole record stands."""
    if len(data) < at + _RECORD.size + _SUM:
        return None
    sync, kind, _, length = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + length + _SUM
    if sync != _SYNC or kind not in (_ROW, _EVENT) or end > len(data):
        return None
    return end if xxh3_64_digest(data[at : end - _SUM]) == data[end - _SUM : end] else None


def _next_record(data: bytes, start: int) -> int | None:
    at = data.find(_SYNC, start)
    while at >= 0:
        if _record_end(data, at) is not None:
            return at
        at = data.find(_SYNC, at + 1)
    return None
