"""`open_run`: what people point at."""

from __future__ import annotations

from pathlib import Path

import pytest

import flashback_core as fb
from flashback_core.errors import SourceError
from flashback_core.export import export_table
from flashback_core.testing import healthy_run


def test_whatever_people_point_at(tmp_path: Path) -> None:
    """A run folder, its index, its exports, an open index, as text or as path: the same run."""
    index = fb.StepSketchIndex(tmp_path / "run" / "sketch", "a")
    for step, values in enumerate(healthy_run(5).values):
        index.append(step, values)
    index.close()
    files = [export_table(index, tmp_path / name) for name in ("a.parquet", "b.CSV", "c.PARQUET")]
    for source in (tmp_path / "run", tmp_path / "run" / "sketch", *files):
        assert len(fb.open_run(source)) == len(fb.open_run(str(source))) == 5
    assert fb.open_run(index) is index


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "nowhere does not exist; expected a run folder"),
        ("", "folder without an index|does not exist"),
        (".", "folder without an index"),
        ("x.txt", "file of another kind; expected"),
        ("x", "file of another kind; expected"),
        (None, "a NoneType is no run; expected"),
        (3, "a int is no run"),
        ({"loss": [1]}, "a dict is no run"),
    ],
)
def test_what_is_no_run(tmp_path: Path, monkeypatch, source, message: str) -> None:
    """Anything else is one clear error that says what is expected."""
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("loss 1")
    Path("x").write_text("loss 1")
    with pytest.raises(SourceError, match=message):
        fb.open_run(source)
