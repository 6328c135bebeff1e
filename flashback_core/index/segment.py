"""Reads sealed rows: one Parquet file that carries the checksums of its own parts.

The bytes are specified in `flashback_core.index.format`.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from flashback_core.errors import IndexFormatError
from flashback_core.index.format import Damage, Event, Header, refuse_newer
from flashback_core.index.seal import FACTS_KEY, CheckBlock, chunk_places

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["Segment"]

_DTYPES = {
    "int64": "i8", "int32": "i4", "uint64": "u8", "uint32": "u4", "float": "f4", "double": "f8",
}  # fmt: skip


class Segment:
    """Reads one sealed segment. All its bytes are checked once, when it is opened.

    Args:
        path: The Parquet file.
        like: A segment of the same index, whose columns are named already.

    Raises:
        IndexFormatError: If nothing of it can be read.
        NewerFormatError: If a later version of flashback wrote it.
        FileNotFoundError: If it is not there.
    """

    def __init__(self, path: Path, like: Segment | None = None) -> None:
        self.path = path
        self.header: Header
        self._dtypes: dict[str, str]
        self._places: dict[str, int]
        self.damage: list[Damage] = []
        self._damaged: set[str] = set()
        self._identity = _identity(path)
        data = path.read_bytes()
        block = CheckBlock.find(data)
        self._metadata, facts = self._footer(data, block)
        self._events: list[list[Any]] = facts["events"]
        self._step_runs: list[list[int]] | None = facts["steps"]
        self._name_columns(facts, like)
        if block is None:
            self._report(0, 0, "the check block is damaged; page checksums are used instead")
            self._check_pages()
        else:
            self._check_chunks(data, block)

    def _footer(self, data: bytes, block: CheckBlock | None) -> tuple[pq.FileMetaData, Event]:
        """Metadata and facts, from the copy of the footer where there is one."""
        import pyarrow as pa

        if block is not None and data[block.end :] != block.footer:
            length = max(len(data) - block.end, 0)
            self._report(block.end, length, "the footer is damaged; its copy is used")
        try:
            metadata = self._reader_of(data, block).metadata
            facts = json.loads(metadata.metadata[FACTS_KEY])
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            msg = f"{self.path.name}: the footer cannot be read ({str(error)[:120]})"
            raise IndexFormatError(msg) from error
        refuse_newer(facts, self.path.name)
        return metadata, facts

    def _reader_of(self, data: bytes, block: CheckBlock | None) -> pq.ParquetReader:
        import pyarrow as pa

        if block is None:
            return _open(pa.BufferReader(data))
        if self.damage:  # of the footer
            return _open(pa.BufferReader(b"PAR1" + block.footer))
        self._reader = _open(str(self.path))
        return self._reader

    def _name_columns(self, facts: Event, like: Segment | None) -> None:
        if like is not None and self._metadata.schema.equals(like._metadata.schema):
            self._dtypes, self._places = like._dtypes, like._places
            self.header = replace(like.header, groups=tuple(facts["groups"]), run=facts["run"])
            return
        schema = self._metadata.schema.to_arrow_schema()
        self._dtypes = {field.name: _DTYPES[str(field.type)] for field in schema}
        self._places = {name: i for i, name in enumerate(self._dtypes)}
        columns = list(self._dtypes.items())[1:]
        n = next((i for i, (c, _) in enumerate(columns) if c.startswith("exact:")), len(columns))
        self.header = Header(
            groups=tuple(facts["groups"]),
            metrics=tuple(columns[:n]),
            exact=tuple((name[len("exact:") :], dtype) for name, dtype in columns[n:]),
            run=facts["run"],
        )

    def _check_chunks(self, data: bytes, block: CheckBlock) -> None:
        if xxh3_64_digest(memoryview(data)[: block.start]) == block.whole:
            return
        if data[:4] != b"PAR1":
            self._report(0, 4, "the magic bytes are damaged, which costs nothing")
        places = chunk_places(self._metadata)
        for i, (name, (at, size)) in enumerate(zip(self._dtypes, places, strict=False)):
            if xxh3_64_digest(data[at : at + size]) != block.sums[8 * i : 8 * i + 8]:
                self._lose(name, "checksum does not fit")

    def _check_pages(self) -> None:
        import pyarrow as pa

        for name in self._dtypes:
            try:
                self.column(name)
            except (pa.ArrowException, OSError) as error:
                self._lose(name, str(error)[:120])

    def _lose(self, name: str, why: str) -> None:
        at, size = chunk_places(self._metadata)[self._places[name]]
        self._damaged.add(name)
        self._report(at, size, f"column {name!r}: {why}")

    def _report(self, offset: int, length: int, why: str) -> None:
        self.damage.append(Damage(file=self.path.name, offset=offset, length=length, why=why))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self._metadata.num_rows)

    @property
    def events(self) -> list[tuple[int, Event]]:
        """(number of rows before it in this segment, event) in order; damage included."""
        return [(at, event) for at, event in self._events] + [(0, d.event()) for d in self.damage]

    def names(self) -> Set[str]:
        """Names of the columns that can be read."""
        names = self._dtypes.keys()
        return names - self._damaged if self._damaged else names

    @cached_property
    def _reader(self) -> pq.ParquetReader:
        return _open(str(self.path), self._metadata, check_pages=bool(self.damage))

    def is_current(self) -> bool:
        """Whether this very file still stands at its path."""
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    def release(self) -> None:
        """Close the file; it is opened again when needed."""
        reader = self.__dict__.pop("_reader", None)
        if reader is not None:
            reader.close()

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`, which must be among `names`; counts with a null come as float64."""
        return np.asarray(self._reader.read_column(self._places[name]).to_numpy())

    def steps(self) -> npt.NDArray[np.int64] | None:
        """The steps; None if they cannot be known any more."""
        if self._step_runs is not None:
            runs = [np.arange(first, first + n, dtype=np.int64) for first, n in self._step_runs]
            return np.concatenate(runs) if runs else np.empty(0, np.int64)
        return self.column("step") if "step" in self.names() else None


def _open(
    source: Any, metadata: pq.FileMetaData | None = None, *, check_pages: bool = False
) -> pq.ParquetReader:
    """A reader of columns by position.

    `pq.ParquetFile` is the same with names, whose tables take longer than all the rest.
    """
    import pyarrow.parquet as pq

    reader = pq.ParquetReader()
    reader.open(source, metadata=metadata, page_checksum_verification=check_pages)
    return reader


def _identity(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
