"""Sealed rows: one Parquet file and the checksums of its parts.

Parquet's own checksums cover the data of pages, not the footer and not the page headers. So each
segment has a file of checksums beside it, and no flipped bit goes unnoticed:

========  ======  =====================================================================
offset    size    ``segment-NNNNNN.check``
========  ======  =====================================================================
0         8       ``FBCHECK1``
8         8       size of the Parquet file
16        8       xxh3-64 of its first 4 bytes and its footer (from the last column to the end)
24        8 × n   xxh3-64 of each column chunk, in the order of the columns
24 + 8n   8       xxh3-64 of all that stands before
========  ======  =====================================================================

Columns: ``step``, the metrics, the exact fields. Parquet key-value metadata ``flashback`` holds
JSON: the header of the index, the events with their places, first and last step.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from flashback_core.errors import IndexFormatError
from flashback_core.index.format import Damage, Event, Header

__all__ = ["Segment", "segment_table", "write_segment"]

_CHECK_MAGIC = b"FBCHECK1"
_METADATA_KEY = b"flashback"


def segment_table(
    header: Header, rows: npt.NDArray[np.void], events: Sequence[tuple[int, Event]]
) -> pa.Table:
    """Rows as a table in the layout of a segment."""
    names = ["step", *(n for n, _ in header.metrics), *(f"exact:{n}" for n, _ in header.exact)]
    steps = rows["step"]
    facts = {
        "header": header.to_json(),
        "events": [[at, event] for at, event in events],
        "first_step": int(steps[0]) if len(steps) else None,
        "last_step": int(steps[-1]) if len(steps) else None,
    }
    table = pa.table({name: header.column_of(rows, name) for name in names})
    return table.replace_schema_metadata({_METADATA_KEY: json.dumps(facts, default=str)})


def write_segment(path: Path, table: pa.Table) -> None:
    """Write `table` to `path` and its checksums beside it, each complete or not at all."""
    data = parquet_bytes(table)
    _write_atomic(path.with_suffix(".check"), _checksums(data))
    _write_atomic(path, data)
    _sync_folder(path.parent)


def parquet_bytes(table: pa.Table) -> bytes:
    """`table` as Parquet: lossless and small."""
    split = [f.name for f in table.schema if not pa.types.is_uint64(f.type)]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(table), 1))
        writer.add_key_value_metadata(table.schema.metadata)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _write_atomic(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _chunks(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """(offset, size) of each column chunk; a segment has one row group."""
    if metadata.num_row_groups == 0:
        return []
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return [(c.data_page_offset, c.total_compressed_size) for c in columns]


def _checksums(data: bytes) -> bytes:
    chunks = _chunks(pq.read_metadata(pa.BufferReader(data)))
    hashes = [xxhash.xxh3_64_intdigest(data[at : at + size]) for at, size in chunks]
    body = _CHECK_MAGIC + struct.pack(
        f"<QQ{len(hashes)}Q", len(data), _frame_hash(data, chunks), *hashes
    )
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def _frame_hash(data: bytes | memoryview, chunks: Sequence[tuple[int, int]]) -> int:
    end = max((at + size for at, size in chunks), default=4)
    return xxhash.xxh3_64_intdigest(bytes(data[:4]) + bytes(data[end:]))


@dataclass(frozen=True)
class _Check:
    size: int
    frame: int
    chunks: tuple[int, ...]


def _read_check(path: Path) -> _Check | None:
    """The checksums in `path`; None where there are none that can be trusted."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    body, tail = raw[:-8], raw[-8:]
    if len(raw) < 32 or raw[:8] != _CHECK_MAGIC or len(raw) % 8:
        return None
    if struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) != tail:
        return None
    numbers = struct.unpack(f"<{len(body) // 8 - 1}Q", body[8:])
    return _Check(size=numbers[0], frame=numbers[1], chunks=numbers[2:])


class Segment:
    """Reads one sealed segment, column by column, each against its checksum.

    Args:
        path: The Parquet file.

    Raises:
        IndexFormatError: If its footer cannot be trusted: nothing of it can be read then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[Damage] = []
        self._damaged: set[str] = set()
        try:
            self._map = pa.memory_map(str(path)) if path.stat().st_size else None
            if self._map is None:
                raise pa.ArrowInvalid("the file is empty")
            self._metadata = pq.read_metadata(self._map)
            self._facts = json.loads(self._metadata.metadata[_METADATA_KEY])
            self.header = Header.from_json(self._facts["header"], path.name)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, IndexFormatError):
                raise
            msg = f"{path.name}: the footer cannot be read ({error})"
            raise IndexFormatError(msg) from error
        self._check = _read_check(path.with_suffix(".check"))
        self._verify_frame()

    @cached_property
    def _view(self) -> memoryview:
        assert self._map is not None  # the constructor refuses an empty file
        self._map.seek(0)
        return memoryview(self._map.read_buffer())

    def _verify_frame(self) -> None:
        check = self._check
        if check is None:
            name = self.path.with_suffix(".check").name
            self.damage.append(
                Damage(file=name, offset=0, length=0, why="checksums cannot be read; values "
                       "are covered by Parquet's page checksums only")
            )  # fmt: skip
            return
        chunks = _chunks(self._metadata)
        whole = len(self._view) == check.size and len(chunks) == len(check.chunks)
        if not whole or _frame_hash(self._view, chunks) != check.frame:
            msg = f"{self.path.name}: the footer does not fit its checksum"
            raise IndexFormatError(msg)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self._metadata.num_rows)

    @property
    def events(self) -> list[tuple[int, Event]]:
        """(number of rows before it in this segment, event) in order."""
        return [(at, event) for at, event in self._facts["events"]]

    def names(self) -> set[str]:
        """Names of the columns."""
        return set(self._columns)

    @cached_property
    def _columns(self) -> dict[str, int]:
        schema = self._metadata.schema
        return {schema.column(i).name: i for i in range(self._metadata.num_columns)}

    def column(self, name: str) -> npt.NDArray[Any] | None:
        """The column `name`; None where it is damaged (then `damage` says so) or missing."""
        if name not in self._columns or name in self._damaged:
            return None
        if not self._chunk_fits(name):
            return None
        try:
            file = pq.ParquetFile(
                pa.py_buffer(self._view), metadata=self._metadata, page_checksum_verification=True
            )
            return np.asarray(file.read(columns=[name], use_threads=False).column(0).to_numpy())
        except (pa.ArrowException, OSError) as error:
            self._report(name, str(error))
            return None

    def _chunk_fits(self, name: str) -> bool:
        if self._check is None:
            return True
        i = self._columns[name]
        at, size = _chunks(self._metadata)[i]
        if xxhash.xxh3_64_intdigest(self._view[at : at + size]) == self._check.chunks[i]:
            return True
        self._report(name, "checksum does not fit")
        return False

    def _report(self, name: str, why: str) -> None:
        at, size = _chunks(self._metadata)[self._columns[name]]
        self._damaged.add(name)
        why = f"column {name!r}: {why}"
        self.damage.append(Damage(file=self.path.name, offset=at, length=size, why=why))

    def steps(self) -> npt.NDArray[np.int64] | None:
        """The steps; made again from first and last step where the column is damaged."""
        steps = self.column("step")
        if steps is not None:
            return steps
        first, last = self._facts["first_step"], self._facts["last_step"]
        if first is not None and last - first + 1 == self.n_rows:
            return np.arange(first, last + 1, dtype=np.int64)
        return None
