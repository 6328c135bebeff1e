"""The rows of an index as a list of parts: sealed segments, then the tail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import IndexFormatError
from flashback_core.index.format import Damage, Event, Header
from flashback_core.index.segment import Segment
from flashback_core.index.tail import TailRows, read_tail

__all__ = ["Parts", "is_index", "read_parts", "segment_path", "tail_path"]

_NAME = re.compile(r"(segment|tail)-(\d{6,})\.(parquet|bin)")


def segment_path(folder: Path, number: int) -> Path:
    """Path of segment `number`."""
    return folder / f"segment-{number:06d}.parquet"


def tail_path(folder: Path, number: int) -> Path:
    """Path of tail `number`."""
    return folder / f"tail-{number:06d}.bin"


def is_index(folder: Path) -> bool:
    """Whether `folder` holds files of an index."""
    return folder.is_dir() and any(_numbered(folder))


def _numbered(folder: Path) -> Iterator[tuple[int, str, Path]]:
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and (match[1] == "segment") == (match[3] == "parquet"):
            yield int(match[2]), match[1], path


@dataclass(kw_only=True)
class Parts:
    """What stands in the folder of an index, in the order it was written.

    Attributes:
        segments: Sealed segments that can be read.
        tails: Tails that no segment replaces; normally one.
        damage: Files that could not be read at all.
        next_number: Number of the next segment or tail.
        tail_number: Number of the last tail, if a tail is the last part.
    """

    segments: list[Segment] = field(default_factory=list)
    tails: list[TailRows] = field(default_factory=list)
    order: list[Segment | TailRows] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    next_number: int = 0
    tail_number: int | None = None

    @property
    def header(self) -> Header | None:
        """The header of the last part."""
        return self.order[-1].header if self.order else None

    def column(self, name: str, dtype: str, absent: float) -> npt.NDArray[Any]:
        """The column `name` over all parts; `absent` where a part lacks or lost it."""
        pieces = [self._piece(part, name, dtype, absent) for part in self.order]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype)

    @staticmethod
    def _piece(part: Segment | TailRows, name: str, dtype: str, absent: float) -> npt.NDArray[Any]:
        if isinstance(part, TailRows):
            known = {n for n, _ in part.header.metrics} | {
                f"exact:{n}" for n, _ in part.header.exact
            }
            if name in known:
                return part.header.column_of(part.rows, name)
            return np.full(len(part.rows), absent, dtype)
        values = part.column(name)
        return np.full(part.n_rows, absent, dtype) if values is None else values

    def steps(self) -> npt.NDArray[np.int64]:
        """Steps of all rows in the order they were written."""
        pieces = [p.rows["step"] if isinstance(p, TailRows) else p.steps() for p in self.order]
        known = [p for p in pieces if p is not None]
        return np.concatenate(known) if known else np.empty(0, np.int64)

    def events(self) -> list[tuple[int, Event]]:
        """(number of rows before it, event) over all parts, damage included."""
        out, before = [], 0
        for part in self.order:
            out += [(before + at, event) for at, event in part.events]
            if isinstance(part, Segment):
                out += [(before, d.event()) for d in part.damage]
                before += part.n_rows
            else:
                before += len(part.rows)
        return out + [(before, d.event()) for d in self.damage]


def read_parts(folder: Path) -> Parts:
    """Everything that can be read in `folder`."""
    parts = Parts()
    by_number: dict[int, dict[str, Path]] = {}
    for number, kind, path in _numbered(folder):
        by_number.setdefault(number, {})[kind] = path
    for number in sorted(by_number):
        files = by_number[number]
        parts.next_number, parts.tail_number = number + 1, None
        segment = _segment(files["segment"], parts) if "segment" in files else None
        if segment is not None:
            parts.segments.append(segment)
            parts.order.append(segment)
        elif "tail" in files:
            _tail(files["tail"], number, parts)
    return parts


def _segment(path: Path, parts: Parts) -> Segment | None:
    try:
        segment = Segment(path)
    except IndexFormatError as error:
        if "upgrade" in str(error):
            raise
        size = path.stat().st_size
        parts.damage.append(Damage(file=path.name, offset=0, length=size, why=str(error)))
        return None
    if segment.steps() is None:
        size = path.stat().st_size
        why = "the steps cannot be read, so its rows have no place"
        parts.damage.append(Damage(file=path.name, offset=0, length=size, why=why))
        return None
    return segment


def _tail(path: Path, number: int, parts: Parts) -> None:
    try:
        tail = read_tail(path)
    except FileNotFoundError:
        return  # sealed by its writer since the folder was listed
    except IndexFormatError as error:
        if "upgrade" in str(error):
            raise
        size = path.stat().st_size
        if size:  # an empty file is a writer that died at the start: it held nothing
            parts.damage.append(Damage(file=path.name, offset=0, length=size, why=str(error)))
        return
    parts.tails.append(tail)
    parts.order.append(tail)
    parts.tail_number = number
