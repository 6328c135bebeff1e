"""Rows -> the bytes of a segment, complete or not at all.

The bytes are specified in `flashback_core.index.format`.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from flashback_core.index.format import FORMAT_VERSION, Event, Header, typed

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["FACTS_KEY", "CheckBlock", "chunk_places", "encode_segment", "write_segment"]

FACTS_KEY = b"flashback"
"""Key of the facts in the key-value metadata of the Parquet file."""

_BLOCK = struct.Struct("<8sII8s")
_BLOCK_MAGIC = b"FBCHECK1"
_MOST_RUNS = 64
_ENCODINGS = {"f4": "BYTE_STREAM_SPLIT", "f8": "BYTE_STREAM_SPLIT", "u8": "PLAIN", "u4": "PLAIN"}


def write_segment(
    path: Path,
    header: Header,
    rows: npt.NDArray[np.void],
    events: Sequence[tuple[int, Event]],
) -> None:
    """Write `rows` to `path`, complete or not at all, and wait until the disk has them.

    Raises:
        OSError: If the disk does not take them.
    """
    data = encode_segment(header, rows, events)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def encode_segment(
    header: Header, rows: npt.NDArray[np.void], events: Sequence[tuple[int, Event]]
) -> bytes:
    """The bytes of a segment that holds `rows`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _table(header, rows)
    facts = {
        "format": FORMAT_VERSION, "groups": list(header.groups), "run": dict(header.run),
        "events": [list(pair) for pair in events], "steps": _runs(rows["step"]),
    }  # fmt: skip
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,  # higher levels save 1 % and double the time
        use_dictionary=False,
        column_encoding={"step": "DELTA_BINARY_PACKED"}
        | {n: _ENCODINGS.get(d, "DELTA_BINARY_PACKED") for n, d in header.columns.items()},
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(len(table), 1))
        writer.add_key_value_metadata({FACTS_KEY: json.dumps(facts, separators=(",", ":"))})
    return _with_check_block(sink.getvalue().to_pybytes())


def _table(header: Header, rows: npt.NDArray[np.void]) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {"step": np.ascontiguousarray(rows["step"])}
    values = np.ascontiguousarray(rows["values"].T)
    for i, (name, dtype) in enumerate(header.metrics):
        column = typed(values[i], dtype)
        if dtype == "i8" and column.dtype != np.int64:  # some counts are not known
            unknown = np.isnan(column)
            column = pa.array(np.where(unknown, 0, column).astype(np.int64), mask=unknown)
        columns[name] = column
    for name, _ in header.exact:
        columns[f"exact:{name}"] = np.ascontiguousarray(rows[f"exact:{name}"])
    return pa.table(columns)


def _runs(steps: npt.NDArray[np.int64]) -> list[list[int]] | None:
    """`steps` as [first, number of consecutive ones], None where that list would be long."""
    starts = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 2) != 1)
    if len(starts) > _MOST_RUNS:
        return None
    counts = np.diff(starts, append=len(steps))
    return [[int(steps[at]), int(n)] for at, n in zip(starts, counts, strict=True)]


def _with_check_block(parquet: bytes) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    reader = pq.ParquetReader()  # `pq.read_metadata` also names nested columns, which takes longer
    reader.open(pa.BufferReader(parquet))
    chunks = chunk_places(reader.metadata)
    footer = max((at + size for at, size in chunks), default=4)
    sums = b"".join(xxh3_64_digest(parquet[at : at + size]) for at, size in chunks)
    copy = zlib.compress(parquet[footer:])
    whole = xxh3_64_digest(parquet[:footer])
    block = _BLOCK.pack(_BLOCK_MAGIC, len(chunks), len(copy), whole) + sums + copy
    return parquet[:footer] + block + xxh3_64_digest(block) + parquet[footer:]


def chunk_places(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """(offset, size) of each column chunk; a segment has one row group at most."""
    if metadata.num_row_groups == 0:
        return []
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return [(c.data_page_offset, c.total_compressed_size) for c in columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckBlock:
    """What stands between the last column and the footer.

    Attributes:
        start: Offset of the block.
        end: Offset behind it.
        whole: Checksum of all bytes before it.
        sums: Checksum of each column chunk, 8 bytes each.
        footer: Copy of all bytes behind it.
    """

    start: int
    end: int
    whole: bytes
    sums: bytes
    footer: bytes

    @classmethod
    def find(cls, data: bytes) -> CheckBlock | None:
        """The check block in the bytes of a segment, None where it is damaged."""
        at = data.rfind(_BLOCK_MAGIC)
        if at < 0 or at + _BLOCK.size > len(data):
            return None
        _, n, size, whole = _BLOCK.unpack_from(data, at)
        copy = at + _BLOCK.size + 8 * n
        end = copy + size
        if xxh3_64_digest(data[at:end]) != data[end : end + 8]:
            return None
        sums, footer = data[at + _BLOCK.size : copy], zlib.decompress(data[copy:end])
        return cls(start=at, end=end + 8, whole=whole, sums=sums, footer=footer)
