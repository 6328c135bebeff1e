"""Damaged bytes: reported with their place, and the rest stays readable.

What is shown for each single flipped bit, in every kind of file of an index:

* every value read equals the one written, or reads "not known" (NaN, the absent value of an exact
  field) or its row is gone;
* where any value differs from the one written, an event ``damage`` names the file and the offset;
* where none differs, there is an event all the same, except for bits that carry nothing: none are
  known, and the test accepts none.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flashback_core.errors import IndexFormatError
from flashback_core.index import StepSketchIndex
from flashback_core.table import MemoryTable

N_ROWS = 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An index of two segments and a tail, with events and a resume in each."""
    from flashback_core.index.writer import IndexWriter

    path = tmp_path_factory.mktemp("whole") / "i"
    index = StepSketchIndex(path, "a", segment_rows=12, run={"model": "Gpt"})
    row = np.arange(128.0)
    for step in range(N_ROWS):
        if step % 9 == 5:
            index.add_event({"event": "expect", "step": step, "kind": "data"})
        index.append(step, row * (step + 1), {"batch_hash": 2**63 + step, "epoch": step})
    writer = index._writer
    assert isinstance(writer, IndexWriter)
    writer._forget()  # as if it had been killed: the tail stays
    writer._lock.release()
    (path / "lock").unlink()
    assert sorted(p.name for p in path.iterdir()) == [
        "segment-000000.parquet", "segment-000001.parquet", "tail-000002.bin",
    ]  # fmt: skip
    return path


@functools.cache
def whole_table(path: Path) -> MemoryTable:
    """The rows of a whole index, in memory."""
    return StepSketchIndex(path)[:]


def differences(index: StepSketchIndex, path: Path) -> Iterator[str]:
    """What an index has lost against the whole one at `path`; fails where a value is wrong."""
    whole = whole_table(path)
    assert set(index.steps.tolist()) <= set(whole.steps.tolist())
    if len(index) < len(whole):
        yield "rows"
    rows = np.searchsorted(whole.steps, index.steps)
    for name in whole:
        found, expected = index[name], whole[name][rows]
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        if not same.all():
            yield name
            unknown = np.isnan(found) if name in whole.names else np.isin(found, (0, 1, -1))
            assert (same | unknown).all(), f"{name} reads a wrong value"
    kept = [e for e in index.events if e["event"] != "damage"]
    assert all(event in whole.events for event in kept)
    if len(kept) < len(whole.events):
        yield "events"
    assert index.run == {"model": "Gpt"}


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def check_flip(whole: Path, folder: Path, name: str, bit: int) -> None:
    """One flipped bit is reported with its place, and changes no value that is read."""
    shutil.copy(whole / name, folder / name)
    flip(folder / name, bit)
    index = StepSketchIndex(folder)
    lost = list(differences(index, whole))
    damage = [e for e in index.events if e["event"] == "damage"]
    assert damage, f"bit {bit} of {name} is silent; lost: {lost}"
    place = bit // 8
    assert any(
        e["file"] == name and (e["offset"] <= place < e["offset"] + e["length"] or not e["length"])
        for e in damage
    ), f"bit {bit} of {name} is reported at the wrong place: {damage}"
    assert "rows" not in lost or name.startswith("tail"), f"bit {bit} of {name} costs rows"
    if name.startswith("tail"):
        assert len(index) >= N_ROWS - 1
    shutil.copy(whole / name, folder / name)


def check_flips(whole: Path, folder: Path, n: int, seed: int) -> None:
    """`n` random single flips, spread evenly over the files."""
    shutil.copytree(whole, folder)
    rng = random.Random(seed)
    names = sorted(p.name for p in whole.iterdir())
    for i in range(n):
        name = names[i % len(names)]
        check_flip(whole, folder, name, rng.randrange(8 * (whole / name).stat().st_size))


def test_random_flips(tmp_path: Path, whole: Path) -> None:
    """90 random single-bit flips: none is silent, none changes a value that is read."""
    check_flips(whole, tmp_path / "i", 90, seed=0)


@pytest.mark.slow
def test_2000_random_flips(tmp_path: Path, whole: Path) -> None:
    """2 000 random single-bit flips: none is silent, none changes a value that is read."""
    check_flips(whole, tmp_path / "i", 2000, seed=1)


@pytest.mark.slow
def test_every_bit_of_the_check_block_and_the_footer(tmp_path: Path, whole: Path) -> None:
    """The parts that say what the rest means: a flip in any of their bytes is reported."""
    from flashback_core.index.seal import CheckBlock

    shutil.copytree(whole, tmp_path / "i")
    name = "segment-000001.parquet"
    data = (whole / name).read_bytes()
    block = CheckBlock.find(data)
    assert block is not None
    rng = random.Random(2)
    for byte in [*range(4), *range(block.start, len(data), 11)]:
        check_flip(whole, tmp_path / "i", name, 8 * byte + rng.randrange(8))


def test_every_byte_of_the_first_records(tmp_path: Path, whole: Path) -> None:
    """In a tail: a flip in any byte of the reserve and the first records is reported."""
    from flashback_core.index.format import read_header

    shutil.copytree(whole, tmp_path / "i")
    _, start, _ = read_header((whole / "tail-000002.bin").read_bytes(), "tail")
    rng = random.Random(3)
    for byte in range(start, start + 1500, 23):
        check_flip(whole, tmp_path / "i", "tail-000002.bin", 8 * byte + rng.randrange(8))


def test_a_damaged_column_costs_that_column_of_that_segment(tmp_path: Path, whole: Path) -> None:
    """A flip in one column chunk makes that column NaN there; all else is whole."""
    import pyarrow.parquet as pq

    shutil.copytree(whole, tmp_path / "i")
    name = "segment-000000.parquet"
    column = pq.read_metadata(whole / name).row_group(0).column(5)
    flip(tmp_path / "i" / name, 8 * (column.data_page_offset + 40))
    index, before = StepSketchIndex(tmp_path / "i"), whole_table(whole)
    assert list(differences(index, whole)) == [column.path_in_schema]
    assert np.isnan(index[column.path_in_schema][:12]).all()
    np.testing.assert_array_equal(
        index[column.path_in_schema][12:], before[column.path_in_schema][12:]
    )


def test_damaged_steps_are_made_again(tmp_path: Path, whole: Path) -> None:
    """A flip in the step column costs nothing: the facts of the segment hold the steps too."""
    import pyarrow.parquet as pq

    shutil.copytree(whole, tmp_path / "i")
    name = "segment-000000.parquet"
    column = pq.read_metadata(whole / name).row_group(0).column(0)
    flip(tmp_path / "i" / name, 8 * (column.data_page_offset + column.total_compressed_size - 1))
    index = StepSketchIndex(tmp_path / "i")
    assert list(differences(index, whole)) == []
    assert any("column 'step'" in event.get("why", "") for event in index.events)


def test_damaged_steps_without_a_pattern_cost_the_segment(tmp_path: Path) -> None:
    """Irregular steps whose column is damaged are gone with their rows, and the index says so."""
    import pyarrow.parquet as pq

    path = tmp_path / "i"
    with StepSketchIndex(path, "a", segment_rows=100) as index:
        for step in range(0, 600, 3):
            index.append(step, np.full(128, 1.0))
    column = pq.read_metadata(path / "segment-000000.parquet").row_group(0).column(0)
    place = column.data_page_offset + column.total_compressed_size - 2
    flip(path / "segment-000000.parquet", 8 * place)
    read = StepSketchIndex(path)
    assert read.steps.tolist() == list(range(300, 600, 3))
    assert any("rows have no place" in event["why"] for event in read.events)


def test_truncation_at_every_byte_of_a_tail(tmp_path: Path, row, monkeypatch) -> None:
    """A tail cut anywhere holds exactly the whole records before the cut, and says where."""
    monkeypatch.setattr("flashback_core.index.tail._PAUSE_SECONDS", 0.0)
    path = tmp_path / "i"
    index = StepSketchIndex(path, "a")
    ends = []
    for step in range(3):
        index.append(step, *row(step))
        ends.append((path / "tail-000000.bin").stat().st_size)
    data = (path / "tail-000000.bin").read_bytes()
    index.close()
    folder = tmp_path / "cut"
    folder.mkdir()
    size, first = ends[1] - ends[0], ends[0]
    headers, last = range(1, first - size - 200, 97), range(ends[1] - 20, len(data) + 1)
    for cut in [*headers, *range(first - size - 200, ends[1], 11), first, first - size, *last]:
        (folder / "tail-000000.bin").write_bytes(data[:cut])
        read = StepSketchIndex(folder)
        assert len(read) == sum(end <= cut for end in ends), cut
        if cut not in (first - size - 192, first - size, *ends):
            assert read.events[-1]["event"] == "damage", cut
        else:
            assert read.events == (), cut


@pytest.mark.parametrize("cut", [0.0, 0.2, 0.6, 0.9999])
def test_a_truncated_segment_is_reported(tmp_path: Path, whole: Path, cut: float) -> None:
    """A segment that was cut short is named with its size; the other parts stay readable."""
    shutil.copytree(whole, tmp_path / "i")
    path = tmp_path / "i" / "segment-000000.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    index = StepSketchIndex(tmp_path / "i")
    assert index.steps.tolist()[-18:] == list(range(12, N_ROWS))
    assert next(e["file"] for e in index.events if e["event"] == "damage") == path.name
    has_check_block = cut * len(data) > data.index(b"FBCHECK1") + 6000
    assert list(differences(index, whole))[:1] == ([] if has_check_block else ["rows"])


def test_a_missing_segment_is_reported(tmp_path: Path, whole: Path) -> None:
    """A segment that somebody deleted is damage, with its name."""
    shutil.copytree(whole, tmp_path / "i")
    (tmp_path / "i" / "segment-000000.parquet").unlink()
    index = StepSketchIndex(tmp_path / "i")
    assert index.steps.tolist() == list(range(12, N_ROWS))
    assert {"event": "damage", "file": "segment-000000.parquet", "offset": 0, "length": 0,
            "why": "the file is missing"} in index.events  # fmt: skip


def test_the_next_writer_goes_on_after_damage(tmp_path: Path, whole: Path, row) -> None:
    """A damaged index is continued, and what was lost stays stated after sealing."""
    shutil.copytree(whole, tmp_path / "i")
    tail = tmp_path / "i" / "tail-000002.bin"
    data = tail.read_bytes()
    flip(tail, 8 * (len(data) - 2500))  # a row in the middle
    tail.write_bytes(tail.read_bytes()[:-10])  # and the last one is cut short
    with StepSketchIndex(tmp_path / "i", "a") as index:
        assert index.last_step == N_ROWS - 2
        index.append(N_ROWS, *row(N_ROWS))
    read = StepSketchIndex(tmp_path / "i")
    assert read.steps.tolist() == [*range(N_ROWS - 3), N_ROWS - 2, N_ROWS]
    whys = [e["why"] for e in read.events if e["event"] == "damage"]
    assert whys == [
        "checksum does not fit", "incomplete record at the end",
        "incomplete record at the end, cut off",
    ]  # fmt: skip
    assert [p.name for p in (tmp_path / "i").iterdir() if p.suffix == ".bin"] == []


def test_both_headers_gone(tmp_path: Path, whole: Path) -> None:
    """A tail without a readable header is reported as a whole; the segments are read."""
    shutil.copytree(whole, tmp_path / "i")
    tail = tmp_path / "i" / "tail-000002.bin"
    data = tail.read_bytes()
    tail.write_bytes(b"\0" * 12_000 + data[12_000:])
    index = StepSketchIndex(tmp_path / "i")
    assert len(index) == 24
    assert "neither copy of the header" in index.events[-1]["why"]


@pytest.mark.parametrize("name", ["tail-000000.bin", "segment-000000.parquet"])
def test_a_newer_format_is_refused(tmp_path: Path, row, monkeypatch, name: str) -> None:
    """An index of a later format version is refused with what to do, not half read."""
    from flashback_core.index import format as index_format
    from flashback_core.index import seal

    with monkeypatch.context() as patch:
        patch.setattr(index_format, "FORMAT_VERSION", 7)
        patch.setattr(seal, "FORMAT_VERSION", 7)
        index = StepSketchIndex(tmp_path / "i", "a")
        index.append(0, *row(0))
        if name.startswith("segment"):
            index.close()
    assert (tmp_path / "i" / name).exists()
    with pytest.raises(IndexFormatError, match=r"version 7, and this .* reads version 1; upgrade"):
        len(StepSketchIndex(tmp_path / "i"))
