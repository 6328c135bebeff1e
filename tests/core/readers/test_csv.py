"""CSV files of ours and of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.errors import SourceError
from flashback_core.export import export_table
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run


def read(folder: Path, text: str, **options: str) -> fb.StepTable:
    """The table in a CSV file of this text."""
    path = folder / "x.csv"
    path.write_text(text, encoding="utf-8")
    return fb.open_run(path, **options)


def test_a_trackers_export(tmp_path: Path) -> None:
    """Names of other tools, empty cells, a BOM, blank lines and short rows are understood."""
    text = "\ufeff,global_step,train/loss, lr ,val_acc\n0,10,3.5,0.1,\n\n1,20,2.5,0.1\n2,30,inf,,\n"
    table = read(tmp_path, text)
    assert table.steps.tolist() == [10, 20, 30]
    assert table["loss"].tolist() == [3.5, 2.5, np.inf]
    np.testing.assert_array_equal(table["lr"], [0.1, 0.1, np.nan])


def test_an_empty_loss_is_evidence_and_an_evaluation_row_is_not(tmp_path: Path) -> None:
    """A loss that turns empty for good is NaN; rows of the evaluation are left out."""
    rows = ["step,loss,val_loss", "1,3,", "2,2.5,", "2,,2.7", "3,,", "4,,", "4,,9", "5,,"]
    table = read(tmp_path, "\n".join(rows))
    assert table.steps.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(table["loss"], [3, 2.5, np.nan, np.nan, np.nan])


def test_without_a_step_rows_are_counted(tmp_path: Path) -> None:
    """No step column: rows count from 0. Steps that are no number leave their row out."""
    assert read(tmp_path, "loss\n3\n2\n1\n").steps.tolist() == [0, 1, 2]
    assert read(tmp_path, "loss,step\n3,1\n2,x\n1,inf\n0,7\n").steps.tolist() == [1, 7]


def test_hashes_are_exact(tmp_path: Path) -> None:
    """Integers of 64 bits survive; longer ones become floats."""
    big = 2**64 - 1
    table = read(tmp_path, f"step,loss,a,b,c\n0,1,{big},-5,{big}0\n1,1,7,{2**63 - 1},1\n")
    assert table["a"].tolist() == [big, 7]
    assert table["b"].tolist() == [-5, 2**63 - 1]
    assert table["c"].dtype == np.float64


def test_several_runs(tmp_path: Path) -> None:
    """`run_id` picks a run, and the error names them."""
    text = "run_id,step,loss\na,0,1\nb,0,2\na,1,3\n"
    assert read(tmp_path, text, run_id="a")["loss"].tolist() == [1, 3]
    with pytest.raises(SourceError, match=r"holds 2 runs; give run_id \(--run-id\), one of: a, b"):
        read(tmp_path, text)


def test_a_very_long_cell(tmp_path: Path) -> None:
    """The table of groups of a large model, one long cell, is read; Python's limit stays."""
    import csv

    run = healthy_run(3)
    groups = {f"model.layers.{i}.self_attn.q_proj.weight": "attn_qkv" for i in range(5000)}
    events = [{"event": "groups", "groups": groups}]
    table = MemoryTable(run.steps, {n: run[n] for n in run}, events=events)
    before = csv.field_size_limit()
    assert fb.open_run(export_table(table, tmp_path / "x.csv")).events == tuple(events)
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds 0 rows; expected a header"),
        ("step,loss\n", "holds 1 rows"),
        ("apples,pears\n1,2\n", r"no column is a metric .*\(columns: apples, pears\)"),
        ("step\n1\n2\n", r"no column is a metric"),
        ("step,train/loss,x\n1,nan,3\n2,,4\n", "no number in any row of 'train/loss'"),
        ("PAR1\x00\x01\n\x00\n", "no column is a metric|cannot be read as CSV"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    """What is no log of a training is one clear error."""
    with pytest.raises(SourceError, match=message):
        read(tmp_path, text)


def test_strange_events_cost_nothing(tmp_path: Path) -> None:
    """A column ``events`` that is not ours is no reason to fail."""
    text = "step,loss,exact:epoch,events\n0,1,0,nonsense\n1,2,0,3\n2,3,0,[1]\n"
    assert read(tmp_path, text).events == ()
