"""`open_run`: whatever a person points at -> the table that detectors read."""

from __future__ import annotations

from pathlib import Path

from flashback_core.errors import SourceError
from flashback_core.index.index import StepSketchIndex
from flashback_core.index.parts import is_index
from flashback_core.table import StepTable

__all__ = ["open_run"]

_EXPECTED = (
    "expected a run folder (runs/my-run), its index (runs/my-run/sketch), or an export "
    "(.parquet, .csv)"
)


def open_run(source: str | Path | StepTable, *, run_id: str | None = None) -> StepTable:
    """Open a run for reading.

    Args:
        source: A run folder, an index folder, an export, or an open table.
        run_id: Which run of a file that holds several.

    Raises:
        SourceError: If nothing readable is there.
        IndexFormatError: If it is an index of a newer format version.
    """
    if isinstance(source, StepTable):
        return source
    path = Path(source)
    if not path.exists():
        msg = f"{path} does not exist; {_EXPECTED}"
        raise SourceError(msg)
    if path.is_dir():
        return _open_folder(path)
    return _open_file(path, run_id)


def _open_folder(path: Path) -> StepTable:
    for folder in (path, path / "sketch"):
        if is_index(folder):
            return StepSketchIndex(folder)
    msg = f"{path} is a folder without an index; {_EXPECTED}"
    raise SourceError(msg)


def _open_file(path: Path, run_id: str | None) -> StepTable:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        from flashback_core.readers.parquet import read_parquet

        return read_parquet(path, run_id)
    if suffix == ".csv":
        from flashback_core.readers.csv import read_csv

        return read_csv(path, run_id)
    msg = f"{path} is a file of another kind; {_EXPECTED}"
    raise SourceError(msg)
