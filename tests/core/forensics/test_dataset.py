"""The data set on disk: layout, columns, and what else can read it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import flashback_core as fb
from flashback_core.errors import SourceError
from flashback_core.forensics.dataset import (
    METRIC_TYPES,
    RUN_COLUMNS,
    facts_of,
    run_files,
    steps_path,
    write_run,
    write_runs_tables,
)
from flashback_core.forensics.tables import LabelledRun, runs_in
from flashback_core.schema import EXACT_FIELDS
from flashback_core.table import MemoryTable

CARD_COLUMNS = {
    "run_id", "fault_kind", "fault_description", "expected_behaviour", "first_bad_step", "n_steps",
    "seed", "preset", "param_count", "batch", "lr", "sketch_bytes_per_step",
    "loss_only_prediction", "loss_only_error", "flashback_prediction", "flashback_error",
    "flashback_metric", "flashback_votes", "final_loss", "split",
}  # fmt: skip


def test_files_have_the_layout_of_the_card(data: Path) -> None:
    """Steps, runs and twins, by split."""
    assert all(p.name.startswith(("train-", "test-")) for p in run_files(data))
    names = [p.name for p in run_files(data, "runs")]
    assert names == ["test-00000.parquet", "train-00000.parquet"]
    assert set(RUN_COLUMNS) >= CARD_COLUMNS


def test_steps_have_the_columns_of_the_card(data: Path) -> None:
    """Identity, metrics, exact fields, labels; 128 of the metrics have values."""
    table = pq.read_table(run_files(data)[0])
    names = table.column_names
    assert names[:3] == ["run_id", "step", "fault_kind"]
    assert names[-2:] == ["is_after_first_bad", "steps_to_first_bad"]
    younger = {f.column for f in EXACT_FIELDS[25:]}  # than the files that are kept for the tests
    assert set(METRIC_TYPES) - younger <= set(names)
    known = [n for n in names if n in METRIC_TYPES and table.column(n).null_count < len(table)]
    assert sum(not name.startswith("exact:") for name in known) == 128


def test_labels_follow_the_first_bad_step(runs: list[LabelledRun], data: Path) -> None:
    """The label is 1 from that step on, and the distance is signed."""
    run = next(r for r in runs if r.run_id == "lr_spike_loud__s6" and not r.is_twin)
    table = pq.read_table(steps_path(data, run.facts))
    after = table.column("is_after_first_bad").to_numpy()
    assert int(np.argmax(after)) == run.first_bad_step
    assert table.column("steps_to_first_bad")[0].as_py() == -int(run.first_bad_step or 0)


def test_every_file_is_a_run_for_detect(runs: list[LabelledRun], data: Path) -> None:
    """`detect` on the file says what the detector says of the loaded table, events and all."""
    run = next(r for r in runs if r.run_id == "lr_spike_loud__s6")
    report = fb.detect(steps_path(data, run.facts))
    assert report.first_bad_step == run.first_bad_step
    assert report == fb.FirstBadStepDetector().predict(run.table)


def test_written_run_reads_back(tmp_path: Path, runs: list[LabelledRun]) -> None:
    """Values, dtypes, events and facts survive."""
    run = runs[0]
    path = write_run(tmp_path, run.table, run.facts)
    (again,) = runs_in(path)
    assert again.table.events == run.table.events
    assert again.facts == run.facts
    for name in run.table:
        column = run.table.column(name)
        np.testing.assert_array_equal(again.table.column(name), column)
        assert again.table.column(name).dtype == column.dtype


def test_unknown_column_is_an_error(tmp_path: Path, runs: list[LabelledRun]) -> None:
    """A run of another schema is refused by name."""
    table = MemoryTable([0, 1], {"loss": [1.0, 2.0], "perplexity": [1.0, 2.0]})
    with pytest.raises(SourceError, match="perplexity"):
        write_run(tmp_path, table, runs[0].facts)


def test_file_of_something_else_has_no_facts(data: Path) -> None:
    """The error names the file."""
    with pytest.raises(SourceError, match="test-00000"):
        facts_of(run_files(data, "runs")[0])


def test_runs_table_keeps_predictions(tmp_path: Path, runs: list[LabelledRun]) -> None:
    """Written once, they stay when the table is written anew."""
    run = runs[0]
    write_run(tmp_path, run.table, run.facts)
    write_runs_tables(tmp_path, {run.run_id: {"flashback_prediction": 17}})
    assert write_runs_tables(tmp_path) == 1
    (row,) = pq.read_table(run_files(tmp_path, "runs")[0]).to_pylist()
    assert row["flashback_prediction"] == 17
    assert json.loads(row["events"]) == list(run.table.events)


@pytest.mark.slow
def test_datasets_library_loads_it(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`datasets.load_dataset` gives steps, runs and twins, offline."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for name, rows in (("steps", 2_400), ("runs", 8), ("twins", 500)):
        found = datasets.load_dataset(str(data), name, cache_dir=str(tmp_path))
        total = sum(part.num_rows for part in found.values())
        assert total == rows if name == "runs" else total > rows / 2
        assert set(found) == {"train", "test"}
    steps = datasets.load_dataset(str(data), "steps", split="test", cache_dir=str(tmp_path))
    assert set(steps.features) >= {"loss", "group:attn_qkv:max_abs", "group:body_1:var"}
