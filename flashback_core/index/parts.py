"""The rows of an index as a list of parts: sealed segments, then the tail."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import IndexFormatError
from flashback_core.index.format import Damage, Event, Header, NewerFormatError
from flashback_core.index.tail import TailRows, read_tail
from flashback_core.schema import EXACT_FIELDS

if TYPE_CHECKING:
    from flashback_core.index.segment import Segment

__all__ = ["Parts", "is_index", "is_name", "numbered", "read_parts", "segment_path", "tail_path"]

_NAME = re.compile(r"(segment)-(\d{6,})\.parquet|(tail)-(\d{6,})\.bin")
_LOOKS = 20
_PAUSE_SECONDS = 0.002
_OPEN_FILES = 400
"""Segments whose files stay open between two columns; more would meet the limit of a process."""


def segment_path(folder: Path, number: int) -> Path:
    """Path of segment `number`."""
    return folder / f"segment-{number:06d}.parquet"


def tail_path(folder: Path, number: int) -> Path:
    """Path of tail `number`."""
    return folder / f"tail-{number:06d}.bin"


def is_index(folder: Path) -> bool:
    """Whether `folder` holds files of an index."""
    return folder.is_dir() and any(numbered(folder))


def numbered(folder: Path) -> Iterator[tuple[int, str, Path]]:
    """(number, ``segment`` or ``tail``, path) of each file of the index in `folder`."""
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            yield int(match[2] or match[4]), match[1] or match[3], path


def is_name(name: str) -> bool:
    """Whether `name` is that of a segment or tail."""
    return _NAME.fullmatch(name) is not None


@dataclass(kw_only=True)
class Parts:
    """What stands in the folder of an index, in the order it was written.

    Attributes:
        parts: Segments and tails by number.
        damage: Files that could not be read at all or are missing.
        next_number: Number of the next segment or tail.
    """

    parts: dict[int, Segment | TailRows] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    next_number: int = 0

    @property
    def header(self) -> Header | None:
        """The header of the last part."""
        return self.parts[max(self.parts)].header if self.parts else None

    @cached_property
    def steps(self) -> npt.NDArray[np.int64]:
        """Steps of all rows in the order they were written."""
        pieces = [part.steps() for part in self.parts.values()]
        known = [p for p in pieces if p is not None]
        return np.concatenate(known) if known else np.empty(0, np.int64)

    @cached_property
    def events(self) -> list[tuple[int, Event]]:
        """(number of rows before it, event) over all parts, damage included."""
        out, before = [], 0
        for part in self.parts.values():
            out += [(before + at, event) for at, event in part.events]
            before += part.n_rows
        return out + [(before, d.event()) for d in self.damage]

    @cached_property
    def kept(self) -> npt.NDArray[np.intp]:
        """Numbers of the rows that no resume superseded, in order."""
        keep = np.ones(len(self.steps), np.bool_)
        for at, event in self.events:
            if event["event"] == "resume":
                keep[:at] &= self.steps[:at] < event["step"]
        return np.flatnonzero(keep)

    @cached_property
    def kept_steps(self) -> npt.NDArray[np.int64]:
        """Steps of the rows that count, increasing, read-only."""
        steps = self.steps[self.kept]
        steps.flags.writeable = False
        return steps

    def column(self, name: str, first: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """The column `name` of the rows `first` to `stop`, superseded ones included.

        Where a part lacks or lost the column, metrics are NaN and exact fields have their absent
        value; a count is float64 then.
        """
        stop = len(self.steps) if stop is None else stop
        pieces, begin = [], 0
        for i, part in enumerate(self.parts.values()):
            end = begin + part.n_rows
            low, high = max(first, begin), min(stop, end)
            if low < high:
                pieces.append(self._piece(part, name)[low - begin : high - begin])
                if i >= _OPEN_FILES and not isinstance(part, TailRows):
                    part.release()
            begin = end
        return np.concatenate(pieces) if pieces else np.empty(0)

    def _piece(self, part: Segment | TailRows, name: str) -> npt.NDArray[Any]:
        if name in part.names():
            return part.column(name)
        dtype = self.header.columns.get(name, "f8") if self.header else "f8"
        nothing = _ABSENT.get(name, _NAN.get(dtype, np.array([np.nan])))
        return np.repeat(nothing, part.n_rows)


_ABSENT: Mapping[str, npt.NDArray[Any]] = {
    f.column: np.array([f.absent], f.dtype) for f in EXACT_FIELDS
}
_NAN = {"f4": np.array([np.nan], np.float32)}


def read_parts(folder: Path, before: Parts | None = None) -> Parts:
    """Everything that can be read in `folder`.

    A live writer renames and removes files meanwhile. Where a file vanishes or a number is missing
    the folder is listed again; only what stays missing is damage.

    Args:
        folder: The index.
        before: An earlier reading of the same folder; its segments, which never change, are used
            again.

    Raises:
        NewerFormatError: If a later version of flashback wrote it.
    """
    known = _segments(before) if before else {}
    for look in range(_LOOKS):
        parts, is_whole = _read_once(folder, known)
        if is_whole:
            break
        time.sleep(_PAUSE_SECONDS * look)
    return parts


def _segments(parts: Parts) -> dict[int, Segment]:
    return {n: p for n, p in parts.parts.items() if not isinstance(p, TailRows)}


def _read_once(folder: Path, known: dict[int, Segment]) -> tuple[Parts, bool]:
    files: dict[int, dict[str, Path]] = {}
    for number, kind, path in numbered(folder):
        if kind == "segment" or _has_bytes(path):
            files.setdefault(number, {})[kind] = path
    parts = Parts(next_number=max(files, default=-1) + 1)
    is_whole = True
    for number in range(parts.next_number):
        try:
            part = _unchanged(known.get(number)) or _read_part(files.get(number, {}), parts)
        except FileNotFoundError:
            part, is_whole = None, False
            name = segment_path(folder, number).name
            parts.damage.append(Damage(file=name, offset=0, length=0, why="the file is missing"))
        if part is not None:
            parts.parts[number] = part
    known.update(_segments(parts))
    return parts, is_whole


def _unchanged(segment: Segment | None) -> Segment | None:
    return segment if segment is not None and segment.is_current() else None


def _read_part(files: dict[str, Path], parts: Parts) -> Segment | TailRows | None:
    if not files:
        raise FileNotFoundError
    segment = _segment(files["segment"], parts) if "segment" in files else None
    if segment is not None and len(parts.parts) >= _OPEN_FILES:
        segment.release()
    if segment is not None or "tail" not in files:
        return segment
    return _tail(files["tail"], parts)


def _segment(path: Path, parts: Parts) -> Segment | None:
    from flashback_core.index.segment import Segment

    try:
        segment = Segment(path, like=next(iter(_segments(parts).values()), None))
    except NewerFormatError:
        raise
    except IndexFormatError as error:
        parts.damage.append(_whole_file(path, str(error)))
        return None
    if segment.steps() is None:
        parts.damage.append(_whole_file(path, "its steps are damaged, so its rows have no place"))
        return None
    return segment


def _tail(path: Path, parts: Parts) -> TailRows | None:
    try:
        return read_tail(path)
    except NewerFormatError:
        raise
    except IndexFormatError as error:
        parts.damage.append(_whole_file(path, str(error)))
        return None


def _has_bytes(path: Path) -> bool:
    """False for an empty file, which is what a loss of power leaves of a new tail."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return True  # sealed meanwhile, which its reading will notice


def _whole_file(path: Path, why: str) -> Damage:
    return Damage(file=path.name, offset=0, length=path.stat().st_size, why=why)
