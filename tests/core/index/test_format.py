"""The bytes are those that the docstring of `format` says: read here by hand."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import xxhash

from flashback_core.errors import IndexFormatError
from flashback_core.index import StepSketchIndex
from flashback_core.index.format import Header, encode_header, read_header, typed
from flashback_core.index.records import RESERVE_BYTES, RowEncoder, encode_event, record_at
from flashback_core.schema import EXACT_FIELDS, SketchSchema

SCHEMA = SketchSchema(groups=("embed",))


def checksum(data: bytes) -> bytes:
    """xxh3-64 in its canonical form."""
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "big")


def test_a_tail_byte_by_byte(tmp_path: Path) -> None:
    """Header twice, the reserve, then a row and an event, as specified."""
    index = StepSketchIndex(tmp_path / "i", "a", schema=SCHEMA, run={"a": 1})
    values = np.arange(len(SCHEMA)) / 3
    index.append(7, values, {"batch_hash": 2**63, "loss_scale": 0.5})
    index.add_event({"event": "expect", "step": 9, "kind": "data"})
    data = (tmp_path / "i" / "tail-000000.bin").read_bytes()
    index.close()

    length = struct.unpack_from("<I", data, 8)[0]
    text = data[20 : 20 + length]
    assert data[:8] == b"FBTAIL\r\n"
    assert data[12:20] == checksum(data[8:12] + text)
    header = json.loads(text)
    assert header["format"] == 1
    assert header["groups"] == ["embed"]
    assert header["run"] == {"a": 1}
    assert [name for name, _ in header["metrics"]] == list(SCHEMA.names)
    assert [name for name, _ in header["exact"]] == [f.name for f in EXACT_FIELDS]
    size = 20 + length
    assert data[size : 2 * size] == data[:size]

    records, at = [], 2 * size
    while at < len(data):
        sync, kind, zero, n = struct.unpack_from("<2sBBI", data, at)
        assert (sync, zero) == (b"\xfb\x5b", 0)
        assert data[at + 8 + n : at + 16 + n] == checksum(data[at : at + 8 + n])
        records.append((kind, data[at + 8 : at + 8 + n]))
        at += 16 + n
        if len(records) == 1:
            assert at == 2 * size + 192
    (_, reserve), (kind, row), (other, event) = records
    assert json.loads(reserve) == {"event": "reserve"}
    assert (kind, other) == (1, 2)
    assert json.loads(event) == {"event": "expect", "step": 9, "kind": "data"}
    step, *found = struct.unpack_from(f"<q{len(SCHEMA)}d", row)
    assert step == 7
    assert found == values.tolist()
    codes = {"i4": "i", "i8": "q", "u8": "Q", "f8": "d"}
    exact = struct.unpack_from(
        "<" + "".join(codes[d] for _, d in header["exact"]), row, 8 + 8 * len(SCHEMA)
    )
    given = {"batch_hash": 2**63, "loss_scale": 0.5}
    wanted = [given.get(f.name, f.absent) for f in EXACT_FIELDS]
    assert [repr(value) for value in exact] == [repr(value) for value in wanted]  # NaN too


def test_a_segment_byte_by_byte(tmp_path: Path) -> None:
    """The check block stands between the last column and the footer, as specified."""
    import pyarrow.parquet as pq

    with StepSketchIndex(tmp_path / "i", "a", schema=SCHEMA, run={"a": 1}) as index:
        index.append(3, np.zeros(len(SCHEMA)))
        index.add_event({"event": "resume", "step": 9})
        index.append(4, np.zeros(len(SCHEMA)))
        index.append(9, np.zeros(len(SCHEMA)))
    path = tmp_path / "i" / "segment-000000.parquet"
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    facts = json.loads(metadata.metadata[b"flashback"])
    assert facts == {
        "format": 1, "groups": ["embed"], "run": {"a": 1},
        "events": [[1, {"event": "resume", "step": 9}]], "steps": [[3, 2], [9, 1]],
    }  # fmt: skip
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    assert [c.path_in_schema for c in columns] == [
        "step", *SCHEMA.names, *(f.column for f in EXACT_FIELDS),
    ]  # fmt: skip
    start = max(c.data_page_offset + c.total_compressed_size for c in columns)
    magic, n, size, whole = struct.unpack_from("<8sII8s", data, start)
    assert (magic, n) == (b"FBCHECK1", len(columns))
    assert whole == checksum(data[:start])
    for i, c in enumerate(columns):
        chunk = data[c.data_page_offset : c.data_page_offset + c.total_compressed_size]
        assert data[start + 24 + 8 * i : start + 32 + 8 * i] == checksum(chunk)
    end = start + 24 + 8 * n + size
    assert data[end : end + 8] == checksum(data[start:end])
    assert zlib.decompress(data[end - size : end]) == data[end + 8 :]
    for c in columns:
        assert set(c.encodings) <= {"RLE", "PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"}
        assert c.compression == "ZSTD"


def test_header_copies() -> None:
    """Either copy of the header is enough; with neither the error says so."""
    header = Header.of(SCHEMA, {"name": "x" * 500})
    data = encode_header(header)
    half = len(data) // 2
    assert read_header(data, "t") == (header, len(data), [])
    found, start, damage = read_header(b"\0" * 8 + data[8:], "t")
    assert (found, start) == (header, len(data))
    assert (damage[0].offset, damage[0].length) == (0, half)
    found, start, damage = read_header(data[:-1] + b"?", "t")
    assert (found, start) == (header, len(data))
    assert (damage[0].offset, damage[0].length) == (half, half)
    with pytest.raises(IndexFormatError, match="t: neither copy of the header"):
        read_header(b"\0" * 8 + data[8:-1], "t")


def test_typed_columns() -> None:
    """Floats are rounded to float32; counts are whole, float64 with NaN where one is unknown."""
    assert typed(np.array([0.1, 1e300]), "f4").tolist() == [np.float32(0.1), np.inf]
    assert typed(np.array([3.0, -(2.0**53)]), "i8").dtype == np.int64
    for odd in (np.nan, np.inf, 2.0**63):
        np.testing.assert_array_equal(typed(np.array([2.0**62, odd]), "i8"), [2.0**62, np.nan])
    assert typed(np.array([1.5, 2.4]), "i8").tolist() == [2, 2]


def test_records_are_found_again_behind_noise() -> None:
    """After bytes that are no record the next whole one is found, also behind false starts."""
    header = Header.of(SCHEMA)
    row = RowEncoder(header)(1, np.zeros(len(SCHEMA)), {})
    noise = b"\xfb\x5b\x01\x00" + b"\xff" * 9 + b"\xfb\x5b\xfb"
    kind, damage, end = record_at(noise + row, 0, "t")
    assert (kind, end, damage.length) == ("damage", len(noise), len(noise))
    assert record_at(noise + row, end, "t")[::2] == ("row", len(noise + row))


def test_the_reserve_has_its_size() -> None:
    """The reserve and the widest gap fit the same place."""
    assert len(encode_event({"event": "reserve"}, RESERVE_BYTES)) == RESERVE_BYTES
    widest = {"event": "gap", "step": 2**63 - 1, "last_step": 2**63 - 1, "rows": 2**63 - 1}
    assert len(encode_event(widest, RESERVE_BYTES)) == RESERVE_BYTES
