"""`open_run`: whatever a person points at -> the table that detectors read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from flashback_core.errors import SourceError
from flashback_core.index.index import StepSketchIndex
from flashback_core.index.parts import is_index, is_name
from flashback_core.index.remote import RemoteFolder, join_url, url_of
from flashback_core.table import StepTable

__all__ = ["open_run"]

_EXPECTED = (
    "expected a run folder (runs/my-run), its index (runs/my-run/sketch), or an export "
    "(.parquet, .csv)"
)


def open_run(source: str | os.PathLike[str] | StepTable, *, run_id: str | None = None) -> StepTable:
    """Open a run for reading.

    Args:
        source: A run folder, an index folder, an export, the URL of one of these (``s3://…``), or
            an open table.
        run_id: Which run of a file that holds several.

    Raises:
        SourceError: If nothing readable is there.
        IndexFormatError: If it is an index of a newer format version.
    """
    if isinstance(source, StepTable):
        return source
    if not isinstance(source, (str, os.PathLike)):
        msg = f"a {type(source).__name__} is no run; {_EXPECTED}, or an open index"
        raise SourceError(msg)
    url = url_of(source)
    if url is not None:
        return _open_url(url, run_id)
    path = Path(source)
    if not path.exists():
        msg = f"{path} does not exist; {_EXPECTED}"
        raise SourceError(msg)
    return _open_folder(path) if path.is_dir() else _reader(str(path))(path, run_id, str(path))


def _open_folder(path: Path) -> StepTable:
    for folder in (path, path / "sketch"):
        if is_index(folder):
            return StepSketchIndex(folder)
    msg = f"{path} is a folder without an index; {_EXPECTED}"
    raise SourceError(msg)


def _reader(name: str) -> Callable[[Path, str | None, str | None], StepTable]:
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        from flashback_core.readers.parquet import read_parquet

        return read_parquet
    if suffix == ".csv":
        from flashback_core.readers.csv import read_csv

        return read_csv
    msg = f"{name} is a file of another kind; {_EXPECTED}"
    raise SourceError(msg)


def _open_url(url: str, run_id: str | None) -> StepTable:
    place = url.partition("?")[0]
    if Path(place).suffix.lower() in (".parquet", ".csv"):
        return _open_remote_file(url, run_id)
    for folder in (url, join_url(url, "sketch")):
        if any(map(is_name, RemoteFolder(folder).sizes())):
            return StepSketchIndex(folder)
    msg = f"{url} holds no sealed segment of an index; {_EXPECTED}"
    raise SourceError(msg)


def _open_remote_file(url: str, run_id: str | None) -> StepTable:
    place, mark, query = url.partition("?")
    parent, _, name = place.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="flashback-") as folder:
        copy = Path(folder) / name
        RemoteFolder(parent + mark + query).download(name, copy)
        return _reader(name)(copy, run_id, url)
