"""Made the indexes of format version 1; kept to show how. Do not run it again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
from test_golden import HOME, RUN, SCHEMA, exact_at, values_at

from flashback_core.index import StepSketchIndex


def append(index: StepSketchIndex, steps: range, attempt: int = 0) -> None:
    """Rows of `steps`, and an event before each fourth."""
    for step in steps:
        if step % 4 == 2:
            index.add_event({"event": "expect", "step": step, "kind": "lr_milestone"})
        index.append(step, values_at(step, attempt), exact_at(step))


def leave(index: StepSketchIndex) -> None:
    """Let go without sealing, as a killed writer does."""
    index._writer._forget()
    index._writer._lock.release()
    (index.path / "lock").unlink()


def flip(path: Path, byte: int) -> None:
    """Flip the lowest bit of a byte."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def main() -> None:
    """Write all of them."""
    shutil.rmtree(HOME, ignore_errors=True)
    index = StepSketchIndex(HOME / "tail-only", "a", schema=SCHEMA, run=RUN)
    append(index, range(6))
    leave(index)

    index = StepSketchIndex(HOME / "segments-and-tail", "a", schema=SCHEMA, run=RUN, segment_rows=5)
    append(index, range(12))
    leave(index)

    with StepSketchIndex(HOME / "resumed", "a", schema=SCHEMA, run=RUN) as index:
        append(index, range(8))
        index.resume_at(5)
        append(index, range(5, 7), attempt=1)
    index = StepSketchIndex(HOME / "resumed", "a", schema=SCHEMA, run=RUN)
    index.resume_at(3)
    append(index, range(3, 6), attempt=2)
    leave(index)

    shutil.copytree(HOME / "segments-and-tail", HOME / "damaged")
    (HOME / "damaged" / "segment-000001.parquet").unlink()
    segment = HOME / "damaged" / "segment-000000.parquet"
    column = pq.read_metadata(segment).row_group(0).column(5)
    flip(segment, column.data_page_offset + 40)
    tail = HOME / "damaged" / "tail-000001.bin"
    (HOME / "damaged" / "tail-000002.bin").rename(tail)
    data = tail.read_bytes()
    tail.write_bytes(data[:-9])


if __name__ == "__main__":
    main()
