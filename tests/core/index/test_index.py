"""StepSketchIndex as a person uses it: rows in, columns out, resumes, modes, live reading."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashback_core as fb
from flashback_core.errors import IndexFormatError, IndexLockedError, SchemaError
from flashback_core.index import StepSketchIndex
from flashback_core.schema import EXACT_FIELDS, SketchSchema

GOLDEN = Path(__file__).parents[2] / "golden" / "index-v1"
SCHEMA = SketchSchema()
N = len(SCHEMA)
_BOUNDS = {"i4": (-(2**31), 2**31 - 1), "i8": (-(2**63), 2**63 - 1), "u8": (0, 2**64 - 1)}


def exact_values() -> st.SearchStrategy[dict[str, float]]:
    """Any exact fields, each with any value of its dtype."""
    fields = {
        f.name: st.floats() if f.dtype == "f8" else st.integers(*_BOUNDS[f.dtype])
        for f in EXACT_FIELDS
    }
    return st.fixed_dictionaries({}, optional=fields)


def metric_values() -> st.SearchStrategy[list[float]]:
    """One row: any float in each metric, any count of up to 2**53, or NaN, in each count."""
    counts = st.one_of(st.integers(-(2**53), 2**53), st.just(np.nan))
    wide, single = st.floats(), st.floats(width=32)
    kinds = {"i8": counts, "f8": wide, "f4": single}
    return st.tuples(*(kinds[m.dtype] for m in SCHEMA.metrics)).map(list)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 50), metric_values(), exact_values()), max_size=12),
    segment_rows=st.integers(1, 8),
    is_closed=st.booleans(),
)
def test_round_trip(rows: list, segment_rows: int, is_closed: bool) -> None:
    """An index gives back what it was given, bit for bit, sealed or not, whatever the steps."""
    with tempfile.TemporaryDirectory() as folder:
        index = StepSketchIndex(Path(folder) / "i", "a", segment_rows=segment_rows)
        steps = np.cumsum([gap for gap, _, _ in rows], dtype=np.int64)
        for step, (_, values, exact) in zip(steps.tolist(), rows, strict=True):
            index.append(step, np.array(values, np.float64), exact)
        if is_closed:
            index.close()
        read = StepSketchIndex(Path(folder) / "i") if rows else index
        np.testing.assert_array_equal(read.steps, steps)
        for i, metric in enumerate(SCHEMA.metrics):
            given_values = np.array([values[i] for _, values, _ in rows], np.float64)
            np.testing.assert_array_equal(read[metric.name], given_values)
        for field in EXACT_FIELDS:
            expected = [exact.get(field.name, field.absent) for _, _, exact in rows]
            np.testing.assert_array_equal(
                read[field.column], np.array(expected, field.dtype), strict=True
            )
        assert read.events == ()
        index.close()


def test_columns_have_the_dtypes_of_the_schema(tmp_path: Path, write, check_rows) -> None:
    """Metrics come in their own dtype from segments and from the tail alike."""
    write(tmp_path / "i", range(10), segment_rows=4)
    sealed = StepSketchIndex(tmp_path / "i")
    live = StepSketchIndex(tmp_path / "j", "a")
    for step in range(10):
        live.append(step, np.zeros(N))
    for metric in SCHEMA.metrics:
        assert sealed[metric.name].dtype == live[metric.name].dtype == metric.dtype, metric.name
    check_rows(sealed)
    live.close()


def test_an_unknown_count_is_nan(tmp_path: Path) -> None:
    """A count that is not known reads NaN, before and after sealing, beside exact counts."""
    index = StepSketchIndex(tmp_path / "i", "a", segment_rows=3)
    for step, count in enumerate([2**53 - 1, np.nan, 7, 5]):
        values = np.zeros(N)
        values[SCHEMA.position("nonfinite")] = count
        index.append(step, values)
    for table in (index, StepSketchIndex(tmp_path / "i")):
        np.testing.assert_array_equal(table["nonfinite"], [2**53 - 1, np.nan, 7, 5])
        assert table[2:]["nonfinite"].dtype == np.float64  # the segment holds an unknown one
        assert table[3:]["nonfinite"].dtype == np.int64
    index.close()


def test_reads_like_a_data_frame(tmp_path: Path, write) -> None:
    """Names, iteration, `in`, `len`, slices, masks and lists of names do what people expect."""
    write(tmp_path / "i", range(100, 130), segment_rows=8)
    index = StepSketchIndex(tmp_path / "i")
    assert len(index) == 30
    assert list(index) == [*SCHEMA.names, *(f.column for f in EXACT_FIELDS)]
    assert "grad_norm" in index
    assert "exact:epoch" in index
    assert "grad_nrm" not in index
    assert 5 not in index
    part = index[10:20:3]
    np.testing.assert_array_equal(part.steps, [110, 113, 116, 119])
    np.testing.assert_array_equal(part["grad_norm"], index["grad_norm"][10:20:3])
    np.testing.assert_array_equal(index[-3:].steps, [127, 128, 129])
    assert len(index[50:]) == len(index[:0]) == 0
    assert index[:0]["nonfinite"].dtype == np.int64
    large = index[index["nonfinite"] >= 120]
    np.testing.assert_array_equal(large.steps, np.arange(120, 130))
    assert list(index[["lr", "loss"]]) == ["lr", "loss"]
    np.testing.assert_array_equal(index.between(105, 108).steps, [105, 106, 107, 108])
    assert index.row_of(105) == 5
    assert repr(index).endswith("mode='r')")


def test_to_pandas_and_to_arrow(tmp_path: Path, write) -> None:
    """Both hold every column in its dtype; pandas is indexed by step."""
    write(tmp_path / "i", range(5, 11))
    index = StepSketchIndex(tmp_path / "i")
    arrow, frame = index.to_arrow(), index.to_pandas()
    assert arrow.column_names == ["step", *index]
    assert frame.index.name == "step"
    assert frame.index.tolist() == list(range(5, 11))
    for name in index:
        np.testing.assert_array_equal(frame[name].to_numpy(), index[name], strict=True)


def test_bad_keys_say_what_to_do(tmp_path: Path, write) -> None:
    """An unknown name names close ones; a number is told what to write instead."""
    write(tmp_path / "i", range(3))
    index = StepSketchIndex(tmp_path / "i")
    with pytest.raises(SchemaError, match="close to it: grad_norm"):
        index["grad_nrm"]
    with pytest.raises(SchemaError, match="grad_nrm"):
        index[["loss", "grad_nrm"]]
    for number in (0, np.int64(1)):
        with pytest.raises(TypeError, match=r"table\[i : i \+ 1\]"):
            index[number]
    with pytest.raises(ValueError, match=r"mask has shape \(2,\), expected \(3,\)"):
        index[np.array([True, False])]


def test_steps_cannot_be_changed_by_a_reader(tmp_path: Path, write) -> None:
    """`steps` is read-only; a column is the caller's own."""
    write(tmp_path / "i", range(3))
    index = StepSketchIndex(tmp_path / "i")
    with pytest.raises(ValueError, match="read-only"):
        index.steps[0] = 7
    assert index.steps[0] == 0


def test_a_writer_sees_its_own_rows(tmp_path: Path, row) -> None:
    """An index open for writing can be read, and grows with each append."""
    with StepSketchIndex(tmp_path / "i", "a", segment_rows=2) as index:
        for step in range(5):
            index.append(step, *row(step))
            assert len(index) == step + 1
            assert index.last_step == step
        index.add_event({"event": "expect", "step": 9, "kind": "data"})
        assert index.events == ({"event": "expect", "step": 9, "kind": "data"},)
    assert len(index) == 5


@pytest.mark.parametrize("segment_rows", [3, 100])
def test_resumes_supersede_and_keep(tmp_path: Path, row, segment_rows: int) -> None:
    """Rows at or past each resume step are superseded and kept, over segments and writers."""
    path = tmp_path / "i"
    expected: dict[int, float] = {}
    gone: list[tuple[int, float]] = []
    marks = iter(np.arange(1000.0))
    for start, stop in ((0, 10), (4, 8), (8, 12), (2, 5), (2, 20)):
        with StepSketchIndex(path, "a", segment_rows=segment_rows) as index:
            index.resume_at(start)
            gone += [(s, expected.pop(s)) for s in sorted(expected) if s >= start]
            for step in range(start, stop):
                values = row(step)[0].copy()
                values[0] = expected[step] = next(marks)
                index.append(step, values)
    index = StepSketchIndex(path)
    assert dict(zip(index.steps.tolist(), index["loss"].tolist(), strict=True)) == expected
    old = index.superseded
    assert sorted(zip(old.steps.tolist(), old["loss"].tolist(), strict=True)) == sorted(gone)
    resumes = [e["step"] for e in index.events if e["event"] == "resume"]
    assert resumes == [4, 2, 2]  # 8 after 7 repeats nothing
    np.testing.assert_array_equal(index[2:5]["loss"], index["loss"][2:5])


def test_a_resume_without_rows_still_counts(tmp_path: Path, write) -> None:
    """A writer that died right after its resume leaves no superseded row in sight."""
    write(tmp_path / "i", range(10))
    index = StepSketchIndex(tmp_path / "i", "a")
    index.resume_at(6)
    index.close()
    again = StepSketchIndex(tmp_path / "i", "a")
    assert again.last_step == 5
    np.testing.assert_array_equal(again.steps, np.arange(6))
    again.close()


def test_events_keep_their_order(tmp_path: Path, row) -> None:
    """Events come in the order they were written, through segments, tail and writers."""
    said = []
    for _ in range(3):
        with StepSketchIndex(tmp_path / "i", "a", segment_rows=4) as index:
            for step in range(index.last_step + 1, index.last_step + 7):
                event = {"event": "expect", "step": step, "kind": f"ß{step}"}
                index.add_event(event)
                said.append(event)
                index.append(step, *row(step))
    assert StepSketchIndex(tmp_path / "i").events == tuple(said)


def test_facts_of_the_run(tmp_path: Path, row) -> None:
    """`run` holds the facts of the last writer, of a continued tail too; odd values become text."""
    path = tmp_path / "i"
    with StepSketchIndex(path, "a", run={"model": "Gpt", "path": Path("x"), 1: 2}) as index:
        index.append(0, *row(0))
        assert StepSketchIndex(path).run == {"model": "Gpt", "path": "x", "1": 2}
        index._writer = None  # as if it had died: the tail stays
    del index
    with StepSketchIndex(path, "a", run={"model": "Other"}) as index:
        assert index.run == {"model": "Other"}


def test_steps_must_increase(tmp_path: Path, row) -> None:
    """A step that is not above the last one is refused with what to do."""
    with StepSketchIndex(tmp_path / "i", "a") as index:
        index.append(5, *row(5))
        with pytest.raises(ValueError, match=r"step 5 came after step 5.*resume_at"):
            index.append(5, *row(5))
        assert len(index) == 1


@pytest.mark.parametrize(
    ("step", "values", "exact", "message"),
    [
        (0, np.zeros(5), {}, r"shape \(5,\), expected \(128,\)"),
        (2**63, np.zeros(N), {}, "does not fit"),
        (0, np.zeros(N), {"epoch": "three"}, "does not fit"),
        (0, np.zeros(N), {"batch_hash": -1}, "does not fit"),
        (0, np.zeros(N), {"epoc": 3}, "'epoc' is not among.*close to it: epoch"),
    ],
)
def test_bad_rows_are_refused_whole(tmp_path: Path, step, values, exact, message) -> None:
    """A row that does not fit raises one clear error and leaves nothing behind."""
    with StepSketchIndex(tmp_path / "i", "a") as index:
        with pytest.raises(ValueError, match=message):
            index.append(step, values, exact)
        index.append(1, np.zeros(N), {"epoch": np.int32(1), "clipped": True})
        assert index.steps.tolist() == [1]
        assert index.events == ()


def test_modes(tmp_path: Path, write, row) -> None:
    """``r`` refuses what is no index, ``w`` keeps the old one beside, others are refused."""
    path = tmp_path / "run" / "sketch"
    with pytest.raises(IndexFormatError, match=r"does not exist; expected the folder"):
        StepSketchIndex(path)
    path.mkdir(parents=True)
    (path / "segment-1.parquet").write_text("another name")
    with pytest.raises(IndexFormatError, match="is not an index"):
        StepSketchIndex(path)
    with pytest.raises(ValueError, match="'r\\+' is none of 'r'"):
        StepSketchIndex(path, "r+")
    write(path, range(4))
    with StepSketchIndex(path, "w") as index:
        index.append(0, *row(0))
    assert len(StepSketchIndex(path)) == 1
    assert len(StepSketchIndex(path.with_name("sketch.replaced-1"))) == 4
    read = StepSketchIndex(path)
    with pytest.raises(IndexFormatError, match="open for reading"):
        read.append(1, *row(1))


def test_w_does_not_take_the_index_of_a_live_writer(tmp_path: Path, row) -> None:
    """Mode ``w`` on an index that is being written is refused, and nothing is moved."""
    with StepSketchIndex(tmp_path / "i", "a") as index:
        index.append(0, *row(0))
        with pytest.raises(IndexLockedError):
            StepSketchIndex(tmp_path / "i", "w")
        assert len(StepSketchIndex(tmp_path / "i")) == 1


def test_other_schemas(tmp_path: Path, row) -> None:
    """An index continues under its own schema, or under another one from there on."""
    small = SketchSchema(groups=("router", "experts"))
    with StepSketchIndex(tmp_path / "i", "a", schema=small) as index:
        index.append(0, np.ones(len(small)))
    with StepSketchIndex(tmp_path / "i", "a") as index:
        assert index.schema == small
        index.append(1, np.ones(len(small)))
    with StepSketchIndex(tmp_path / "i", "a", schema=SCHEMA) as index:
        index.append(2, *row(2))
    index = StepSketchIndex(tmp_path / "i")
    assert index.names == SCHEMA.names
    assert np.isnan(index["group:embed:grad_norm"][:2]).all()
    assert np.isnan(index["group:embed:nonfinite"][:2]).all()
    np.testing.assert_array_equal(index["grad_norm"][:2], [1.0, 1.0])


def test_an_empty_index(tmp_path: Path) -> None:
    """An index without rows has the columns of its schema; closed, it leaves no file behind."""
    index = StepSketchIndex(tmp_path / "i", "a")
    assert len(index) == 0
    assert index.values.shape == (0, N)
    assert index.last_step == -1
    assert index["nonfinite"].dtype == np.int64
    index.close()
    index.close()
    assert [p.name for p in (tmp_path / "i").iterdir()] == ["lock"]
    assert len(index) == 0


def test_refresh_sees_new_rows_and_a_new_index(tmp_path: Path, write, check_rows) -> None:
    """A reader that is open sees new rows after `refresh`, also when the index was replaced."""
    path = tmp_path / "i"
    write(path, range(5), segment_rows=2)
    index = StepSketchIndex(path)
    assert len(index) == 5
    write(path, range(5, 9), segment_rows=2)
    assert len(index) == 5
    assert len(index.refresh()) == 9
    check_rows(index)
    with StepSketchIndex(path, "w", segment_rows=2) as other:
        for step in range(50, 53):
            other.append(step, np.zeros(N))
    np.testing.assert_array_equal(index.refresh().steps, [50, 51, 52])
    np.testing.assert_array_equal(index["grad_norm"], np.zeros(3))


def test_plain_pyarrow_and_pandas_read_segments(tmp_path: Path, write) -> None:
    """A segment is a Parquet file for everybody, in the layout of the data-set card."""
    pd = pytest.importorskip("pandas")
    write(tmp_path / "i", range(40))
    index = StepSketchIndex(tmp_path / "i")
    frame = pd.read_parquet(tmp_path / "i" / "segment-000000.parquet")
    assert list(frame.columns) == ["step", *index]
    for name in index:
        np.testing.assert_array_equal(frame[name].to_numpy(), index[name])


def test_many_segments_do_not_hold_many_files_open(tmp_path: Path, write, check_rows) -> None:
    """An index of more segments than a process may open files is read all the same."""
    resource = pytest.importorskip("resource")
    write(tmp_path / "i", range(60), segment_rows=1)
    from flashback_core.index import parts

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 40
    kept, parts._OPEN_FILES = parts._OPEN_FILES, 10
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 30, before[1]))
        index = StepSketchIndex(tmp_path / "i")
        check_rows(index)
    finally:
        parts._OPEN_FILES = kept
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_writing_needs_no_pyarrow_before_the_first_seal(tmp_path: Path) -> None:
    """Opening for writing and appending does not load pyarrow, which takes 0.3 s."""
    import subprocess
    import sys

    code = (
        "import sys, numpy as np, flashback_core as fb\n"
        f"i = fb.StepSketchIndex({str(tmp_path / 'i')!r}, 'a')\n"
        "i.append(0, np.zeros(128))\n"
        "assert 'pyarrow' not in sys.modules, 'pyarrow'\n"
        "assert 'torch' not in sys.modules\n"
        "i.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(fb.StepSketchIndex(tmp_path / "i")) == 1


def test_an_older_index_lacks_fields(tmp_path: Path) -> None:
    """Exact fields that a part was written without are not known there, and go on in the next."""
    folder = tmp_path / "i"
    shutil.copytree(GOLDEN / "segments-and-tail", folder)
    old = StepSketchIndex(folder)
    assert "exact:opt_steps" not in old
    assert set(old["exact:opt_steps"]) == {-1}
    assert np.isnan(old["exact:lr_scheduled"]).all()
    step, schema = int(old.steps[-1]) + 1, old.schema
    with StepSketchIndex(folder, "a", schema=schema) as index:
        index.append(step, np.zeros(len(schema)), {"opt_steps": 7, "lr_scheduled": 0.5})
    new = StepSketchIndex(folder)
    assert new["exact:opt_steps"].tolist() == [-1] * (len(new.steps) - 1) + [7]
    assert new["exact:lr_scheduled"][-1] == 0.5
    assert np.isnan(new["exact:lr_scheduled"][:-1]).all()
