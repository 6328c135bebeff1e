r"""The bytes of an index. Format version 1.

Purpose: one row of numbers per training step, written by one process while it trains, readable by
any other process at any time, whatever happens to the writer. Limits: rows of one size, records of
less than 2**32 bytes, steps that fit int64. All numbers are little-endian, all checksums are
xxh3-64 (seed 0, the 8 bytes of its canonical, big-endian form).

An index is a folder:

====================================  ===========================================================
``segment-NNNNNN.parquet``            sealed rows
``tail-NNNNNN.bin``                   rows after the last segment
``lock``                              held by the process that writes, see `index.lock`
====================================  ===========================================================

NNNNNN counts from 0 without holes. When tail N is full, tail N + 1 is made, the rows of tail N are
written as segment N, and tail N is removed; every file gets its name by a rename when it is
complete. Where segment N and tail N both exist, the segment counts (the writer died before it
removed the tail). A reader needs no consent of the writer and ignores files of other names; where a
number is missing it lists the folder again, since it may have looked between two of those acts.

**Tail.** Two equal copies of a header, then records, one behind the other:

========  ======  =====================================================================
offset    size    header
========  ======  =====================================================================
0         8       ``FBTAIL`` 0x0D 0x0A
8         4       length of the JSON text
12        8       checksum of the 4 bytes before and the JSON text
20        length  JSON text: ``format``, ``groups`` (of the schema), ``metrics`` [[name, dtype]],
                  ``exact`` [[name, dtype]], ``run`` (facts of the run)
========  ======  =====================================================================

========  ======  =====================================================================
offset    size    record
========  ======  =====================================================================
0         2       0xFB 0x5B
2         1       kind: 1 row, 2 event
3         1       0
4         4       length of the payload
8         length  payload
8 + len   8       checksum of all bytes of the record before
========  ======  =====================================================================

A row's payload is the step (int64), the metrics (float64 each, in the order of the header), then
the exact fields in their own dtypes, without padding. The dtype of a metric is the one that readers
see and that segments hold: ``f8``; ``f4``, rounded to float32; ``i8``, a whole number, where NaN
stands for a count that is not known.

An event's payload is a JSON object; its place among the rows is where it stands. The first record
of a tail is an event of 192 bytes, padded with spaces: ``{"event":"reserve"}``. When the disk takes
no more bytes it is overwritten in place with a ``gap``, which is written again as a record of its
own once the disk takes one.

**Segment.** A Parquet file of one row group with the columns ``step``, the metrics,
``exact:<name>`` (f4 and f8: BYTE_STREAM_SPLIT; integers: DELTA_BINARY_PACKED, uint64 plain; all
zstd; page checksums; a count that is not known is null). Key-value metadata ``flashback`` holds
JSON: ``format``, ``groups``, ``run``, ``events`` [[rows of this segment before it, event]] and
``steps`` [[first step, number of consecutive steps]] (null where that list would be long).
Parquet's own checksums leave the footer and the page headers uncovered, so between the last column
and the footer, where Parquet readers do not look, stands:

==========  ======  ===================================================================
offset      size    check block
==========  ======  ===================================================================
0           8       ``FBCHECK1``
8           4       number n of column chunks
12          4       length z of the copy of the footer
16          8       checksum of all bytes of the file before this block
24          8 × n   checksum of each column chunk, in the order of the columns
24 + 8n     z       zlib-compressed copy of all that follows the check block
24 + 8n+z   8       checksum of all bytes of the block before
==========  ======  ===================================================================

**What a damaged byte costs.** A reader refuses a format version above its own. Everything else it
reports as an event ``damage`` (file, offset, length, why) and goes on: in a record, that record; in
one copy of a header or footer, nothing, the other copy counts; in a column chunk, that column in
that segment (metrics read NaN, exact fields their absent value; steps are made again from
``steps``); in a check block, nothing, the page checksums are used instead. An incomplete record at
the end of a tail is what a writer leaves that was killed in the middle of a write; it was never
acknowledged. It is reported too, and the next writer cuts it off and records that it did.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from flashback_core.errors import IndexFormatError
from flashback_core.schema import EXACT_FIELDS, SketchSchema

__all__ = [
    "FORMAT_VERSION", "Damage", "Event", "Header", "NewerFormatError", "encode_header",
    "read_header", "refuse_newer", "typed",
]  # fmt: skip

FORMAT_VERSION = 1
_MAGIC = b"FBTAIL\r\n"
_HEADER = struct.Struct("<8sI8s")

Event = dict[str, Any]


class NewerFormatError(IndexFormatError):
    """The index was written by a later version of flashback."""


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
            run=json.loads(json.dumps(dict(run or {}), default=str)),
        )

    def same_columns(self, other: Header) -> bool:
        """Whether rows of both can stand in one file."""
        return (self.groups, self.metrics, self.exact) == (other.groups, other.metrics, other.exact)

    @cached_property
    def places(self) -> dict[str, int]:
        """Position of each metric."""
        return {name: i for i, (name, _) in enumerate(self.metrics)}

    @cached_property
    def columns(self) -> dict[str, str]:
        """Dtype of each column but the step: the metrics, then ``exact:<name>``."""
        return dict(self.metrics) | {f"exact:{name}": dtype for name, dtype in self.exact}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(name for name, _ in self.metrics)

    @cached_property
    def exact_names(self) -> tuple[str, ...]:
        """Columns of the exact fields."""
        return tuple(f"exact:{name}" for name, _ in self.exact)

    @cached_property
    def row_dtype(self) -> np.dtype[np.void]:
        """The structure of one row's payload."""
        exact = [(f"exact:{name}", f"<{dtype}") for name, dtype in self.exact]
        return np.dtype([("step", "<i8"), ("values", "<f8", (len(self.metrics),)), *exact])

    def column_of(self, rows: npt.NDArray[np.void], name: str) -> npt.NDArray[Any]:
        """The column `name` of decoded rows in its dtype; counts with a NaN stay float64."""
        if name not in self.places:
            return np.ascontiguousarray(rows[name])
        return typed(rows["values"][:, self.places[name]], self.columns[name])

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
            NewerFormatError: If it was written by a newer format version.
        """
        refuse_newer(data, where)
        return cls(
            groups=tuple(data["groups"]),
            metrics=tuple((n, d) for n, d in data["metrics"]),
            exact=tuple((n, d) for n, d in data["exact"]),
            run=data["run"],
        )


def refuse_newer(data: Mapping[str, Any], where: str) -> None:
    """Raise `NewerFormatError` if `data` is of a format version that this one cannot read."""
    version = data.get("format")
    if version != FORMAT_VERSION:
        msg = (
            f"{where}: index format version {version}, and this flashback reads version "
            f"{FORMAT_VERSION}; upgrade flashback-plugins"
        )
        raise NewerFormatError(msg)


def typed(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    """`values` in the dtype of their metric; counts stay float64 where one is not known."""
    if dtype == "i8":
        with np.errstate(invalid="ignore"):
            counts = values.astype(np.int64)
        if np.array_equal(counts, values):
            return counts
        known = np.abs(values) < 2.0**63
        whole = np.where(known, np.rint(values), np.nan)
        return whole.astype(np.int64) if known.all() else whole
    with np.errstate(over="ignore"):
        return values.astype(dtype)


# -- header ------------------------------------------------------------------------------------


def encode_header(header: Header) -> bytes:
    """Both copies of the header of a tail."""
    text = json.dumps(header.to_json(), separators=(",", ":")).encode()
    length = len(text).to_bytes(4, "little")
    return 2 * (_HEADER.pack(_MAGIC, len(text), xxh3_64_digest(length + text)) + text)


def read_header(data: bytes, where: str) -> tuple[Header, int, list[Damage]]:
    """The header at the start of a tail, where its records begin, and damage that was seen.

    Raises:
        IndexFormatError: If neither copy can be read.
    """
    first = _header_text(data, 0)
    if first is not None:
        size = _HEADER.size + len(first)
        second_fits = data[size : 2 * size] == data[:size]
        damage = Damage(file=where, offset=size, length=size, why="second copy of the header")
        header = Header.from_json(json.loads(first), where)
        return header, 2 * size, [] if second_fits else [damage]
    at = data.find(_MAGIC, 1)
    second = _header_text(data, at) if at > 0 else None
    if second is None:
        msg = f"{where}: neither copy of the header can be read; this is not a tail of an index"
        raise IndexFormatError(msg)
    damage = Damage(file=where, offset=0, length=at, why="first copy of the header")
    start = at + _HEADER.size + len(second)
    return Header.from_json(json.loads(second), where), start, [damage]


def _header_text(data: bytes, at: int) -> bytes | None:
    if data[at : at + 8] != _MAGIC or len(data) < at + _HEADER.size:
        return None
    _, length, digest = _HEADER.unpack_from(data, at)
    text = data[at + _HEADER.size : at + _HEADER.size + length]
    return text if xxh3_64_digest(data[at + 8 : at + 12] + text) == digest else None
