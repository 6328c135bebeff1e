r"""The bytes of an index. Format version 1.

Purpose: one row of numbers per training step, written by one process while it trains, readable by
any other process at any time, whatever happens to the writer. Limits: rows of one size, at most
2**32 - 1 bytes a record, steps that fit int64. All numbers are little-endian.

An index is a folder:

====================================  =============================================================
``segment-NNNNNN.parquet``            sealed rows, Parquet (zstd, BYTE_STREAM_SPLIT, page checksums)
``segment-NNNNNN.check``              checksums of that file, see `flashback_core.index.segment`
``tail-NNNNNN.bin``                   rows after the last segment, see below
``lock``                              held by the process that writes, see `flashback_core.index.lock`
====================================  =============================================================

NNNNNN counts from 0. Tail N becomes segment N: it is written to a temporary name, fsynced, renamed;
then tail N + 1 begins and tail N is removed. Where both exist, the segment counts and the tail is
ignored (the writer died between the two acts). A reader needs no consent of the writer and ignores
files of other names.

A tail is two equal copies of a header, then records, one behind the other:

========  ======  =====================================================================
offset    size    header
========  ======  =====================================================================
0         8       ``FBTAIL`` 0x0D 0x0A
8         4       length of the JSON text
12        4       CRC-32 of the JSON text
16        length  JSON text: ``format``, ``groups`` (of the schema), ``metrics`` [[name, dtype]],
                  ``exact`` [[name, dtype]], ``run`` (facts of the run)
========  ======  =====================================================================

========  ======  =====================================================================
offset    size    record
========  ======  =====================================================================
0         2       0xFB 0x5B
2         1       kind: 1 row, 2 event
3         1       0
4         4       length of the payload
8         4       CRC-32 of bytes 2 … 7 and the payload
12        length  payload
========  ======  =====================================================================

A row's payload is the step (int64), then all float64 metrics, all float32 metrics, all int64
metrics, then the exact fields, each in the order of the header, without padding. An event's payload
is a JSON object; its place among the rows is where it stands.

A reader refuses a format version above its own. It reports a record whose checksum does not fit
with file and offset, looks for the next record behind it and goes on; an incomplete record at the
end of a file is what a writer leaves that was killed in the middle of a write, and is reported too.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import IndexFormatError
from flashback_core.schema import EXACT_FIELDS, SketchSchema

__all__ = [
    "FORMAT_VERSION", "Damage", "Event", "Header", "encode_event", "encode_header",
    "encode_row", "read_header", "scan_records",
]  # fmt: skip

FORMAT_VERSION = 1
_MAGIC = b"FBTAIL\r\n"
_SYNC = b"\xfb\x5b"
_HEAD = struct.Struct("<8sII")
_RECORD = struct.Struct("<2sBBII")
_ROW, _EVENT = 1, 2

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes that could not be read: where, how many, and why."""

    file: str
    offset: int
    length: int
    why: str

    def event(self) -> Event:
        """As an event of the table."""
        return {
            "event": "damage", "file": self.file, "offset": self.offset,
            "length": self.length, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What the rows of a file are: its columns, and facts of the run.

    Attributes:
        groups: Groups of the schema.
        metrics: (name, dtype) of each metric, in order.
        exact: (name, dtype) of each exact field, without the ``exact:`` in front.
        run: Facts of the run, plain JSON values.
    """

    groups: tuple[str, ...]
    metrics: tuple[tuple[str, str], ...]
    exact: tuple[tuple[str, str], ...]
    run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: SketchSchema, run: Mapping[str, Any] | None = None) -> Header:
        """The header of an index with this schema and the exact fields of this version."""
        return cls(
            groups=schema.groups,
            metrics=tuple((m.name, m.dtype) for m in schema.metrics),
            exact=tuple((f.name, f.dtype) for f in EXACT_FIELDS),
            run=dict(run or {}),
        )

    @cached_property
    def positions(self) -> dict[str, npt.NDArray[np.intp]]:
        """Positions among the metrics of each dtype: ``f8``, ``f4``, ``i8``."""
        kinds = np.array([dtype for _, dtype in self.metrics])
        return {k: np.flatnonzero(kinds == k) for k in ("f8", "f4", "i8")}

    @cached_property
    def row_dtype(self) -> np.dtype[np.void]:
        """The structure of one row's payload."""
        return np.dtype(
            [
                ("step", "<i8"),
                *((k, f"<{k}", (len(self.positions[k]),)) for k in ("f8", "f4", "i8")),
                *((f"exact:{name}", f"<{dtype}") for name, dtype in self.exact),
            ]
        )

    @cached_property
    def exact_pack(self) -> struct.Struct:
        """Packs the exact fields of a row."""
        codes = {"i4": "i", "i8": "q", "u8": "Q", "f8": "d", "f4": "f", "u4": "I"}
        return struct.Struct("<" + "".join(codes[dtype] for _, dtype in self.exact))

    def column_of(self, rows: npt.NDArray[np.void], name: str) -> npt.NDArray[Any]:
        """The column `name` of decoded rows."""
        if name == "step" or name.startswith("exact:"):
            return np.ascontiguousarray(rows[name])
        position = next(i for i, (n, _) in enumerate(self.metrics) if n == name)
        kind = self.metrics[position][1]
        place = int(np.searchsorted(self.positions[kind], position))
        return np.ascontiguousarray(rows[kind][:, place])

    def to_json(self) -> Event:
        """As plain JSON values."""
        return {
            "format": FORMAT_VERSION,
            "groups": list(self.groups),
            "metrics": [list(m) for m in self.metrics],
            "exact": [list(e) for e in self.exact],
            "run": dict(self.run),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Header:
        """The header in `data`.

        Raises:
            IndexFormatError: If it was written by a newer format version.
        """
        version = data.get("format")
        if version != FORMAT_VERSION:
            msg = (
                f"{where}: index format version {version}, and this flashback reads version "
                f"{FORMAT_VERSION}; upgrade flashback-plugins"
            )
            raise IndexFormatError(msg)
        return cls(
            groups=tuple(data["groups"]),
            metrics=tuple((n, d) for n, d in data["metrics"]),
            exact=tuple((n, d) for n, d in data["exact"]),
            run=data["run"],
        )


def encode_header(header: Header) -> bytes:
    """Both copies of the header of a tail."""
    text = json.dumps(header.to_json(), separators=(",", ":"), default=str).encode()
    return 2 * (_HEAD.pack(_MAGIC, len(text), zlib.crc32(text)) + text)


def read_header(data: bytes, where: str) -> tuple[Header, int, list[Damage]]:
    """The header at the start of a tail, where its records begin, and damage that was seen.

    Raises:
        IndexFormatError: If neither copy can be read.
    """
    damage = []
    starts = [m for m in (data.find(_MAGIC), data.rfind(_MAGIC, 0, 1 << 20)) if m >= 0]
    for start in dict.fromkeys(starts):
        text = _header_text(data, start)
        if text is None:
            damage.append(Damage(file=where, offset=start, length=_HEAD.size, why="header copy"))
            continue
        first = 2 * (_HEAD.size + len(text))
        if start == 0 and data[_HEAD.size + len(text) : first] != data[: first // 2]:
            damage.append(Damage(file=where, offset=first // 2, length=first // 2, why="header"))
        elif start != 0 and not damage:
            damage.append(Damage(file=where, offset=0, length=start, why="header copy"))
        return Header.from_json(json.loads(text), where), first, damage
    msg = f"{where}: neither copy of the header can be read; this is not a tail of an index"
    raise IndexFormatError(msg)


def _header_text(data: bytes, start: int) -> bytes | None:
    if len(data) < start + _HEAD.size:
        return None
    _, length, crc = _HEAD.unpack_from(data, start)
    text = data[start + _HEAD.size : start + _HEAD.size + length]
    return text if len(text) == length and zlib.crc32(text) == crc else None


def encode_row(
    header: Header, step: int, values: npt.NDArray[np.float64], exact: tuple[float, ...]
) -> bytes:
    """A row record: `values` in the order of the metrics, `exact` in the order of the fields."""
    at = header.positions
    with np.errstate(over="ignore", invalid="ignore"):
        payload = b"".join(
            (
                step.to_bytes(8, "little", signed=True),
                values[at["f8"]].tobytes(),
                values[at["f4"]].astype("<f4").tobytes(),
                values[at["i8"]].astype("<i8").tobytes(),
                header.exact_pack.pack(*exact),
            )
        )
    return _record(_ROW, payload)


def encode_event(event: Event) -> bytes:
    """An event record."""
    return _record(_EVENT, json.dumps(event, separators=(",", ":"), default=str).encode())


def _record(kind: int, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<BBI", kind, 0, len(payload))))
    return _RECORD.pack(_SYNC, kind, 0, len(payload), crc) + payload


def scan_records(data: bytes, start: int, where: str) -> Iterator[tuple[str, bytes | Damage, int]]:
    """Records of a tail from `start` on: (``row`` | ``event`` | ``damage``, content, end offset)."""
    at, size = start, len(data)
    while at < size:
        end = _record_end(data, at)
        if end is not None:
            kind = "row" if data[at + 2] == _ROW else "event"
            yield kind, data[at + _RECORD.size : end], end
            at = end
            continue
        following = _next_record(data, at + 1)
        stop = size if following is None else following
        why = "incomplete record at the end" if following is None else "checksum does not fit"
        yield "damage", Damage(file=where, offset=at, length=stop - at, why=why), stop
        at = stop


def _record_end(data: bytes, at: int) -> int | None:
    """Where the record at `at` ends, or None where no whole record stands."""
    if len(data) < at + _RECORD.size:
        return None
    sync, kind, zero, length, crc = _RECORD.unpack_from(data, at)
    end = at + _RECORD.size + length
    if sync != _SYNC or kind not in (_ROW, _EVENT) or zero or end > len(data):
        return None
    found = zlib.crc32(data[at + _RECORD.size : end], zlib.crc32(data[at + 2 : at + 8]))
    return end if found == crc else None


def _next_record(data: bytes, start: int) -> int | None:
    at = data.find(_SYNC, start)
    while at >= 0:
        if _record_end(data, at) is not None:
            return at
        at = data.find(_SYNC, at + 1)
    return None
