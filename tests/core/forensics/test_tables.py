"""Reading labelled runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flashback_core.errors import SourceError
from flashback_core.forensics.dataset import run_files
from flashback_core.forensics.tables import LabelledRun, fingerprint, load_runs


def test_runs_have_their_own_columns_only(runs: list[LabelledRun]) -> None:
    """What the schema of another model has is left out."""
    assert {len(run.table.names) for run in runs} == {128}


def test_labels(runs: list[LabelledRun]) -> None:
    """Faults have a step; healthy runs, placebos and twins have none."""
    faults = {r.facts["fault_kind"] for r in runs if r.first_bad_step is not None}
    assert faults == {"lr_spike_loud", "opt_lost"}
    assert all(r.first_bad_step is None for r in runs if r.is_twin)
    assert all(r.bad_steps[0] == r.first_bad_step for r in runs if r.first_bad_step is not None)


def test_split_is_kept(data: Path) -> None:
    """Training runs come without a run of test."""
    train = list(load_runs(data, splits=["train"]))
    assert {run.split for run in train} == {"train"}
    assert len(train) == 4


def test_file_of_many_runs_is_read_too(tmp_path: Path, data: Path) -> None:
    """The layout of the published data set: no metadata, several runs in a file."""
    parts = [pq.read_table(p).replace_schema_metadata(None) for p in run_files(data)[:3]]
    (tmp_path / "steps").mkdir()
    pq.write_table(pa.concat_tables(parts), tmp_path / "steps" / "test-00000-of-00001.parquet")
    found = {run.run_id: run for run in load_runs(tmp_path)}
    ours = {run.run_id: run for run in load_runs(data)}
    assert len(found) == 3
    assert all(run.first_bad_step == ours[name].first_bad_step for name, run in found.items())
    assert all(run.split == "test" for run in found.values())


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    """It says how to get a data set."""
    with pytest.raises(SourceError, match="flashback forensics build"):
        list(load_runs(tmp_path))


def test_broken_file_is_an_error(tmp_path: Path) -> None:
    """It is named."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "test-a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(SourceError, match="test-a"):
        list(load_runs(tmp_path))


def test_fingerprint_is_of_the_runs(data: Path, tmp_path: Path) -> None:
    """It is the same at each call, and another one for fewer runs."""
    part = tmp_path / "steps"
    part.mkdir()
    for path in run_files(data)[:2]:
        (part / path.name).write_bytes(path.read_bytes())
    assert fingerprint(data) == fingerprint(data) != fingerprint(tmp_path)
