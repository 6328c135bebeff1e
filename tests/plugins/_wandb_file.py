"""Reads the file of an offline W&B run: a LevelDB log of protobuf records, checksums checked."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

_MAGIC = b":W&B"
_HEADER_BYTES = 7  # of the file, and of each chunk in it
_BLOCK_BYTES = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[pb.Record]:
    """All records of `path`.

    Raises:
        ValueError: If this is no W&B file, or a checksum does not fit.
    """
    parts = b""
    for kind, data in _chunks(path.read_bytes()):
        parts = data if kind in {_FULL, _FIRST} else parts + data
        if kind in {_FULL, _LAST}:
            yield pb.Record.FromString(parts)


def _chunks(content: bytes) -> Iterator[tuple[int, bytes]]:
    if content[:4] != _MAGIC:
        raise ValueError(f"this file begins with {content[:4]!r}, expected {_MAGIC!r}")
    at = _HEADER_BYTES
    while at + _HEADER_BYTES <= len(content):
        if (left := _BLOCK_BYTES - at % _BLOCK_BYTES) < _HEADER_BYTES:
            at += left  # a chunk never begins in the last bytes of a block
            continue
        crc, length, kind = struct.unpack_from("<IHB", content, at)
        data = content[at + _HEADER_BYTES : at + _HEADER_BYTES + length]
        if crc != zlib.crc32(data, zlib.crc32(bytes([kind]))):
            raise ValueError(f"the chunk at byte {at} does not fit its checksum")
        yield kind, data
        at += _HEADER_BYTES + length


class OfflineRun:
    """What one offline run stored."""

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.alerts: list[Any] = []
        self.artifacts: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.hidden: set[str] = set()
        self.exit_code: int | None = None
        for record in records(path):
            self._take(record)

    def _take(self, record: pb.Record) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            self.rows.append(_values(record.history.item))
        elif kind == "summary":
            self.summary.update(_values(record.summary.update))
        elif kind == "alert":
            self.alerts.append(record.alert)
        elif kind == "artifact":
            self.artifacts[record.artifact.name] = record.artifact
        elif kind == "request":
            request = record.request
            if request.WhichOneof("request_type") == "log_artifact":
                self.artifacts[request.log_artifact.artifact.name] = request.log_artifact.artifact
        elif kind == "metric":
            self.axes[record.metric.name] = record.metric.step_metric
            if record.metric.options.hidden:
                self.hidden.add(record.metric.name)
        elif kind == "exit":
            self.exit_code = record.exit.exit_code

    def series(self, name: str) -> list[Any]:
        """The values of one key, row by row, where it is there."""
        return [row[name] for row in self.rows if name in row]


def _values(items: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        *outer, last = list(item.nested_key) or [item.key]
        place = values
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = json.loads(item.value_json)
    return values
