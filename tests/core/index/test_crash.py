"""A writer that is killed loses no acknowledged row; a reader beside it sees a whole index."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flashback_core.index import StepSketchIndex

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9 and fork are of POSIX")

NURSERY = """
import os, sys
import numpy as np
import pyarrow.parquet
from flashback_core.index import StepSketchIndex
sys.path.insert(0, {tests!r})
from conftest import made_up_row

rows = [made_up_row(s) for s in range(256)]

def write(segment_rows, n):
    index = StepSketchIndex({path!r}, "a", segment_rows=segment_rows)
    first = index.last_step + 1
    os.write(1, b"%d\\n" % (first - 1))
    for step in range(first, first + n):
        index.append(step, *rows[step % 256])
        os.write(1, b"%d\\n" % step)
    index.close()
    os.write(1, b"closed\\n")

for line in sys.stdin:
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        write(*map(int, line.split()))
        os._exit(0)
    os.wait()
    os.write(1, b"ended\\n")
"""


class Nursery:
    """A process that forks writers of one index, which saves each one its imports.

    A writer acknowledges each row through the pipe after `append` has returned.
    """

    def __init__(self, path: Path) -> None:
        code = NURSERY.format(tests=str(Path(__file__).parent), path=str(path))
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)
        self._writer = 0
        self._said = b""

    def start(self, segment_rows: int, n: int = 10**6) -> None:
        """Start a writer and wait for its first word."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d %d\n" % (segment_rows, n))
        self._process.stdin.flush()
        self._said = b""
        while self._said.count(b"\n") < 2:
            self.listen()
        self._writer = int(self._said.split()[0])
        self._said = self._said.partition(b"\n")[2]

    def listen(self) -> int:
        """Read what was said; the last step that was acknowledged."""
        assert self._process.stdout is not None
        self._said = self._said[-40:] + os.read(self._process.stdout.fileno(), 1 << 16)
        words = self._said[: self._said.rfind(b"\n") + 1].split()
        numbers = [word for word in words[-4:] if word not in (b"closed", b"ended")]
        return int(numbers[-1]) if numbers else -1

    def is_ended(self) -> bool:
        """Whether the writer has come to its end."""
        return self._said.endswith(b"ended\n")

    def kill(self, seconds: float) -> int:
        """Kill the writer after so many seconds; the last step that it acknowledged."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.listen()
        os.kill(self._writer, signal.SIGKILL)
        while not self.is_ended():
            acknowledged = self.listen()
        return acknowledged

    def close(self) -> None:
        """End the nursery."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Of writers of ``tmp_path / "i"``."""
    nursery = Nursery(tmp_path / "i")
    yield nursery
    nursery.close()


def check_whole(path: Path, acknowledged: int, row) -> int:
    """All acknowledged rows are there and right; the last step."""
    index = StepSketchIndex(path)
    last = int(index.steps[-1]) if len(index) else -1
    assert acknowledged <= last <= acknowledged + 1
    np.testing.assert_array_equal(index.steps, np.arange(last + 1))
    expected = [row(step % 256)[1]["batch_hash"] for step in range(256)]
    np.testing.assert_array_equal(
        index["exact:batch_hash"], np.resize(np.array(expected, np.uint64), last + 1)
    )
    losses = np.array([row(step)[0][0] for step in range(256)])
    np.testing.assert_array_equal(index["loss"], np.resize(losses, last + 1))
    whys = {event["why"].partition(",")[0] for event in index.events}
    assert whys <= {"incomplete record at the end"}  # of a write that was cut at a page
    return last


def kill_repeatedly(nursery: Nursery, path: Path, row, times: int, seed: int) -> None:
    """Kill writers one after the other at random moments, each going on where the last ended."""
    rng = random.Random(seed)
    for _ in range(times):
        nursery.start(segment_rows=rng.choice([60, 300, 1000]))
        acknowledged = nursery.kill(rng.uniform(0, 0.05))
        check_whole(path, acknowledged, row)


def test_killed_writers_lose_nothing(tmp_path: Path, nursery: Nursery, row) -> None:
    """10 writers of one index killed at random moments: no acknowledged row is lost."""
    kill_repeatedly(nursery, tmp_path / "i", row, times=10, seed=0)
    assert len(StepSketchIndex(tmp_path / "i")) > 100


@pytest.mark.slow
def test_100_killed_writers_lose_nothing(tmp_path: Path, nursery: Nursery, row) -> None:
    """100 writers of one index killed at random moments: no acknowledged row is lost."""
    kill_repeatedly(nursery, tmp_path / "i", row, times=100, seed=1)


@pytest.mark.parametrize("n_cut", [1, 7, 40])
def test_death_between_two_acts(tmp_path: Path, row, write, n_cut: int) -> None:
    """Every state that a writer can die in while it seals opens whole, and the next one tidies."""
    path = tmp_path / "i"
    with StepSketchIndex(path, "a", segment_rows=1000) as index:
        for step in range(n_cut):
            index.append(step, *row(step))
        tail = (path / "tail-000000.bin").read_bytes()
    segment = (path / "segment-000000.parquet").read_bytes()
    (path / "segment-000000.parquet").unlink()
    with StepSketchIndex(tmp_path / "empty", "a"):
        empty = (tmp_path / "empty" / "tail-000000.bin").read_bytes()
    states = {
        "next tail being made": {"tail-000000.bin": tail, "tail-000001.bin.tmp": empty[:50]},
        "next tail made": {"tail-000000.bin": tail, "tail-000001.bin": empty},
        "segment being written": {"tail-000000.bin": tail, "tail-000001.bin": empty,
                                  "segment-000000.parquet.tmp": segment[:999]},
        "segment there": {"tail-000000.bin": tail, "tail-000001.bin": empty,
                          "segment-000000.parquet": segment},
        "tail removed": {"tail-000001.bin": empty, "segment-000000.parquet": segment},
        "all sealed": {"segment-000000.parquet": segment},
        "power lost": {"segment-000000.parquet": segment, "tail-000001.bin": b""},
    }  # fmt: skip
    for name, files in states.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, data in files.items():
            (folder / file).write_bytes(data)
        assert StepSketchIndex(folder).steps.tolist() == list(range(n_cut)), name
        write(folder, range(n_cut, n_cut + 3))
        index = StepSketchIndex(folder)
        assert index.steps.tolist() == list(range(n_cut + 3)), name
        assert index.events == (), name
        left = [p.name for p in folder.iterdir() if p.suffix == ".bin"]
        assert left == [], name


def test_a_live_run_is_read_whole_by_another_process(tmp_path: Path, nursery: Nursery, row) -> None:
    """Readers that open at any moment of writing and sealing see all acknowledged rows."""
    path = tmp_path / "i"
    nursery.start(segment_rows=5, n=300)
    live: StepSketchIndex | None = None
    n_reads = 0
    while not nursery.is_ended():
        acknowledged = nursery.listen()
        if acknowledged < 0:
            continue
        live = live.refresh() if live is not None else StepSketchIndex(path)
        for index in (live, StepSketchIndex(path)):
            assert acknowledged <= int(index.steps[-1])
            np.testing.assert_array_equal(index.steps, np.arange(len(index)))
            assert index.events == ()
            assert len(index["loss"]) == len(index)
        n_reads += 1
    check_whole(path, 299, row)
    assert n_reads > 5


def test_a_tail_that_vanishes_is_looked_for_again(tmp_path: Path, write, check_rows) -> None:
    """A reader that listed the folder before a seal and reads after it misses no row."""
    from flashback_core.index import parts

    path = tmp_path / "i"
    write(path, range(10), segment_rows=4)
    real, calls = parts.numbered, []

    def late(folder: Path):
        """The first listing is that of before the seal: it names a tail that is gone by now."""
        calls.append(folder)
        found = sorted(real(folder))
        if len(calls) == 1:
            found = [*found[:2], (2, "tail", folder / "tail-000002.bin")]
        elif len(calls) == 2:
            found = [found[0], found[2]]  # a listing that missed a file that was being renamed
        return iter(found)

    parts.numbered = late
    try:
        view = parts.read_parts(path)
    finally:
        parts.numbered = real
    assert len(calls) >= 2
    assert view.steps.tolist() == list(range(10))
    assert view.damage == []


def test_a_forked_child_leaves_the_index_alone(tmp_path: Path, row) -> None:
    """A forked child (a data-loader worker) that closes its copy neither seals nor unlocks."""
    path = tmp_path / "i"
    with StepSketchIndex(path, "a") as index:
        index.append(0, *row(0))
        child = os.fork()
        if child == 0:
            try:
                index.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        index.append(1, *row(1))
        assert [p.suffix for p in sorted(path.iterdir())] == ["", ".bin"]
    assert StepSketchIndex(path).steps.tolist() == [0, 1]
