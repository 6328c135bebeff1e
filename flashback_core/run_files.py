"""The files of a run folder, for sinks."""

from __future__ import annotations

from pathlib import Path

from flashback_core.export import export_parquet
from flashback_core.table import StepTable

__all__ = ["FolderFiles"]


class FolderFiles:
    """Files of the run in `folder`; see `flashback_core.sink.RunFiles`.

    Args:
        folder: The run folder.
        table: Its index.
        reports: Paths of the report by suffix.
    """

    def __init__(self, folder: Path, table: StepTable, reports: dict[str, Path]) -> None:
        self._folder, self._table, self._reports = folder, table, reports

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder

    def export(self) -> Path:
        """The index as one Parquet file in the run folder, written when first asked for."""
        path = self._folder / "index.parquet"
        if not path.exists():
            export_parquet(self._table, path)
        return path

    def reports(self) -> dict[str, Path]:
        """Paths of the report by suffix."""
        return dict(self._reports)
