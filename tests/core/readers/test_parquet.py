"""Parquet files of ours and of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flashback_core as fb
from flashback_core.errors import SourceError
from flashback_core.export import export_table
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run, run_with_fault


def two_runs(folder: Path) -> Path:
    """Two exports put into one file, as a data set has them, with its labels."""
    parts = []
    for name, run in (("a", healthy_run(300)), ("b", run_with_fault(first_bad_step=150))):
        events = [{"event": "expect", "step": 9, "kind": name}]
        run = MemoryTable(run.steps, {n: run[n] for n in run}, events=events)
        data = pq.read_table(export_table(run, folder / f"{name}.parquet", run_id=name))
        parts.append(data.append_column("fault_kind", [[name] * len(data)]))
    path = folder / "both.parquet"
    pq.write_table(pa.concat_tables(parts), path)  # keeps the metadata of the first
    return path


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    """`run_id` picks a run; without it, or with a wrong one, the error names the runs."""
    path = two_runs(tmp_path)
    a, b = fb.open_run(path, run_id="a"), fb.open_run(path, run_id="b")
    assert len(a) == 300
    assert fb.detect(a).status == "healthy"
    assert fb.detect(b).first_bad_step == 150
    assert "fault_kind" not in b
    assert a.events != ()
    assert b.events == ()  # the file carries the events of the first run only
    with pytest.raises(SourceError, match=r"holds 2 runs; give run_id \(--run-id\), one of: a, b"):
        fb.open_run(path)
    with pytest.raises(SourceError, match="run 'c' is not in it"):
        fb.open_run(path, run_id="c")


def test_files_of_others(tmp_path: Path) -> None:
    """Other names, nulls, booleans, text, steps out of order and twice, steps of other names."""
    data = pa.table({
        "train/loss": pa.array([3.0, None, 1.0, 9.0, 1.5]),
        "learning_rate": pa.array([1, 1, 2, None, 3], pa.int32()),
        "is_warm": [True, False, None, True, True],
        "note": ["a", "b", "c", "d", "e"],
        "global_step": pa.array([20, 10, 30, None, 30]),
    })  # fmt: skip
    pq.write_table(data, tmp_path / "x.parquet")
    table = fb.open_run(tmp_path / "x.parquet")
    assert table.steps.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(table["loss"], [np.nan, 3.0, 1.5])
    np.testing.assert_array_equal(table["lr"], [1, 1, 3])
    np.testing.assert_array_equal(table["is_warm"], [0, 1, 1])
    assert "note" not in table
    assert table.events[0]["text"] == "1 rows repeat a step; the last of each counts"


def test_runs_named_by_numbers(tmp_path: Path) -> None:
    """A run_id that is a number is asked for by its text."""
    pq.write_table(pa.table({"run_id": [1, 1, 2], "loss": [1.0, 2.0, 3.0]}), tmp_path / "x.parquet")
    assert fb.open_run(tmp_path / "x.parquet", run_id="1")["loss"].tolist() == [1.0, 2.0]


def test_no_folder_name_becomes_a_column(tmp_path: Path) -> None:
    """A path like ``loss=3/x.parquet`` adds nothing to the table."""
    folder = tmp_path / "lr=3"
    folder.mkdir()
    export_table(healthy_run(5)[["loss"]], folder / "x.parquet")
    assert list(fb.open_run(folder / "x.parquet")) == ["loss"]


@pytest.mark.parametrize("n", [0, 3])
def test_tables_without_rows_or_metrics(tmp_path: Path, n: int) -> None:
    """No rows is a run with too little data; no metric is an error that shows the columns."""
    pq.write_table(pa.table({"loss": np.zeros(n), "step": np.arange(n)}), tmp_path / "a.parquet")
    assert fb.detect(tmp_path / "a.parquet").status == "not_enough_data"
    pq.write_table(pa.table({"apples": np.zeros(n)}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"no column is a metric .*\(columns: apples\)"):
        fb.open_run(tmp_path / "b.parquet")


def test_damaged_files_are_clear_errors(tmp_path: Path) -> None:
    """A file that is no Parquet, cut short or flipped is an error, never wrong values."""
    path = export_table(healthy_run(50), tmp_path / "x.parquet")
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[3000] ^= 4
    for bad in (b"", b"loss,step\n1,2\n", data[:2000], data[:-3], bytes(flipped)):
        path.write_bytes(bad)
        with pytest.raises(SourceError, match="cannot be read as Parquet"):
            fb.open_run(path)


def test_strange_metadata_is_ignored(tmp_path: Path) -> None:
    """Metadata under our key that is not ours costs the events, not the rows."""
    for facts in (
        b"nonsense",
        b"[]",
        b'{"events": 3}',
        b'{"events": [1, {"event": "x"}]}',
        b"\xff",
    ):
        data = pa.table({"loss": [1.0]}).replace_schema_metadata({b"flashback_export": facts})
        pq.write_table(data, tmp_path / "x.parquet")
        assert len(fb.open_run(tmp_path / "x.parquet")) == 1
