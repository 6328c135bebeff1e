"""An export, opened again, is the run that was exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flashback_core as fb
from flashback_core.errors import SourceError
from flashback_core.export import export_table
from flashback_core.schema import EXACT_FIELDS, SketchSchema
from flashback_core.table import MemoryTable, StepTable
from flashback_core.testing import healthy_run, run_with_fault

SUFFIXES = (".parquet", ".csv")


def assert_equal(found: StepTable, expected: StepTable) -> None:
    """Same steps, columns, dtypes, values and events."""
    np.testing.assert_array_equal(found.steps, expected.steps)
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], strict=True, err_msg=name)
    assert found.events == expected.events


def write_index(path: Path, table: StepTable, segment_rows: int = 150) -> fb.StepSketchIndex:
    """The rows of `table` as an index that was resumed once, with events."""
    schema = SketchSchema()
    values = np.stack([np.asarray(table[n], np.float64) for n in schema.names], axis=1)
    rng = np.random.default_rng(0)
    with fb.StepSketchIndex(path, "a", segment_rows=segment_rows) as index:
        index.add_event({"event": "groups", "groups": {"wte.weight": "embed"}})
        for again in (0, 5):
            index.resume_at(again)
            for row in range(again, len(table) if again else 9):
                if row == 300:
                    index.add_event({"event": "expect", "step": 300, "kind": 'data "ß", now'})
                exact = {"batch_hash": int(rng.integers(2**64, dtype=np.uint64)), "epoch": -1}
                index.append(int(table.steps[row]), values[row], exact)
    return fb.StepSketchIndex(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", [None, "gradient_jump", "nonfinite"])
def test_export_equals_index(tmp_path: Path, suffix: str, kind: str | None) -> None:
    """Table, events and report of an export equal those of its index."""
    run = healthy_run(400) if kind is None else run_with_fault(first_bad_step=250, kind=kind)
    index = write_index(tmp_path / "my-run" / "sketch", run)
    out = export_table(index, tmp_path / f"out{suffix}")
    again = fb.open_run(out)
    assert_equal(again, index)
    assert fb.detect(out) == fb.detect(index)
    assert fb.detect(index).status == ("healthy" if kind is None else "bad")
    twice = fb.open_run(export_table(again, tmp_path / f"twice{suffix}"))
    assert_equal(twice, index)
    assert [p.name for p in tmp_path.glob("*.tmp")] == []


def arrays(draw: st.DrawFn, dtype: str, n: int) -> np.ndarray:
    """Any values of a column."""
    if dtype[0] == "f":
        cells = st.floats(width=32 if dtype == "f4" else 64)
    else:
        bounds = np.iinfo(dtype)
        cells = st.integers(int(bounds.min), int(bounds.max))
    return np.array(draw(st.lists(cells, min_size=n, max_size=n)), dtype)


@st.composite
def tables(draw: st.DrawFn) -> MemoryTable:
    """A table of a few of our columns with any values in their dtypes."""
    n = draw(st.integers(1, 6))
    some = ("loss", "grad_norm", "nonfinite", "group:embed:grad_norm", "hist_grad:3")
    names = {m.name: m.dtype for m in SketchSchema().metrics if m.name in some}
    names |= {f.column: f.dtype for f in EXACT_FIELDS}
    gaps = draw(st.lists(st.integers(1, 10**9), min_size=n, max_size=n))
    return MemoryTable(
        np.cumsum(gaps) - 2, {name: arrays(draw, dtype, n) for name, dtype in names.items()}
    )


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(table=tables())
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_value_survives(tmp_path: Path, suffix: str, table: MemoryTable) -> None:
    """Every float, count and hash comes back from both kinds of file bit for bit."""
    assert_equal(fb.open_run(export_table(table, tmp_path / f"t{suffix}")), table)


def test_layout_is_that_of_the_card(tmp_path: Path) -> None:
    """Plain pandas reads run_id, step and the 128 metrics under their own names."""
    pd = pytest.importorskip("pandas")
    table = healthy_run(20)
    for suffix, read in ((".parquet", pd.read_parquet), (".csv", pd.read_csv)):
        frame = read(export_table(table, tmp_path / f"r{suffix}", run_id="run-7"))
        assert list(frame.columns[:2]) == ["run_id", "step"]
        assert list(frame.columns[2:130]) == list(SketchSchema().names)
        assert set(frame["run_id"]) == {"run-7"}
        np.testing.assert_allclose(frame["loss"], table["loss"], rtol=1e-15)


def test_the_run_is_named_after_its_folder(tmp_path: Path) -> None:
    """Without a name the run has that of its folder; in CSV no spreadsheet runs it."""
    pd = pytest.importorskip("pandas")
    index = write_index(tmp_path / "my-run" / "sketch", healthy_run(10))
    frame = pd.read_parquet(export_table(index, tmp_path / "a.parquet"))
    assert set(frame["run_id"]) == {"my-run"}
    frame = pd.read_csv(export_table(index, tmp_path / "a.csv", run_id="=cmd()"))
    assert set(frame["run_id"]) == {"'=cmd()"}


def test_bad_targets(tmp_path: Path) -> None:
    """Another suffix, a missing folder and a folder as target are clear errors, nothing is left."""
    table = healthy_run(5)
    with pytest.raises(SourceError, match=r"suffix '.json' is neither .parquet nor .csv"):
        export_table(table, tmp_path / "x.json")
    for suffix in SUFFIXES:
        with pytest.raises(SourceError, match="does not exist; make it first"):
            export_table(table, tmp_path / "no" / f"x{suffix}")
        (tmp_path / f"d{suffix}").mkdir()
        with pytest.raises(OSError, match="directory"):
            export_table(table, tmp_path / f"d{suffix}")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
