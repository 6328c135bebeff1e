"""A disk that takes no more: one warning, the training goes on, and the index states the gap."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from flashback_core.errors import FlashbackWarning
from flashback_core.index import StepSketchIndex

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits and mounts are of POSIX")


@contextmanager
def file_limit(n_bytes: int) -> Iterator[Callable[[], None]]:
    """No file of this process grows beyond `n_bytes`, until the function given is called."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield lift
    finally:
        lift()
        signal.signal(signal.SIGXFSZ, kept)


def test_a_full_disk_costs_rows_and_says_which(tmp_path: Path, row, check_rows) -> None:
    """Rows that do not fit raise OSError and are stated as a gap; later rows are written."""
    path = tmp_path / "i"
    index = StepSketchIndex(path, "a")
    with file_limit(30_000) as lift:
        refused = []
        for step in range(40):
            try:
                index.append(step, *row(step))
            except OSError:
                refused.append(step)
        n_kept = 40 - len(refused)
        assert refused == list(range(n_kept, 40))
        assert 5 < n_kept < 30
        gap = {"event": "gap", "step": n_kept, "last_step": 39, "rows": len(refused)}
        assert StepSketchIndex(path).events == (gap,)  # stated though the disk is full
        index.add_event({"event": "expect", "step": 40, "kind": "data"})
        lift()
    index.append(40, *row(40))
    expect = {"event": "expect", "step": 40, "kind": "data"}
    assert StepSketchIndex(path).events == (gap, expect)
    index.close()
    read = StepSketchIndex(path)
    assert read.events == (gap, expect)
    assert read.steps.tolist() == [*range(n_kept), 40]
    check_rows(read)


def test_a_gap_survives_the_death_of_its_writer(tmp_path: Path, row) -> None:
    """The gap stands in the index though no byte could be added, and the next writer keeps it."""
    path = tmp_path / "i"
    pid = os.fork()
    if pid == 0:
        with file_limit(20_000):
            index = StepSketchIndex(path, "a")
            for step in range(30):
                try:
                    index.append(step, *row(step))
                except OSError:
                    continue
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    read = StepSketchIndex(path)
    n_kept = len(read)
    gap = {"event": "gap", "step": n_kept, "last_step": 29, "rows": 30 - n_kept}
    assert read.events == (gap,)
    with StepSketchIndex(path, "a") as index:
        index.resume_at(25)
        index.append(30, *row(30))
    assert StepSketchIndex(path).events == (gap,)


def test_a_failed_seal_loses_nothing(tmp_path: Path, row, check_rows) -> None:
    """Where a segment cannot be written the tail goes on, and is sealed when there is room."""
    path = tmp_path / "i"
    index = StepSketchIndex(path, "a", segment_rows=10)
    with file_limit(24_000) as lift:
        for step in range(12):
            index.append(step, *row(step))
        assert sorted(p.name for p in path.iterdir()) == ["lock", "tail-000000.bin"]
        lift()
    for step in range(12, 60):
        index.append(step, *row(step))
    assert (path / "segment-000000.parquet").exists()
    index.close()
    read = StepSketchIndex(path)
    assert read.steps.tolist() == list(range(60))
    assert read.events == ()
    check_rows(read)


def test_closing_on_a_full_disk_keeps_the_tail(tmp_path: Path, row, check_rows) -> None:
    """A close that cannot seal leaves a tail that reads like any other."""
    index = StepSketchIndex(tmp_path / "i", "a")
    for step in range(20):
        index.append(step, *row(step))
    with file_limit(25_000):
        index.close()
    read = StepSketchIndex(tmp_path / "i")
    assert read.steps.tolist() == list(range(20))
    check_rows(read)


def train(path: Path, n_steps: int) -> list[Warning | str]:
    """Train a small model under a recorder; the warnings that a user sees."""
    torch = pytest.importorskip("torch")
    import flashback_core as fb

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with fb.Recorder(path, model, optimizer, write_report=False) as recorder:
            for _ in range(n_steps):
                loss = model(torch.ones(2, 4)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recorder.log(loss=loss)
            assert np.isfinite(float(loss.detach()))
    return [w.message for w in seen if issubclass(w.category, FlashbackWarning)]


def test_training_goes_on_over_a_full_disk(tmp_path: Path) -> None:
    """A recorder whose disk is full warns once, trains on, and its index states the gap."""
    import pyarrow.parquet  # noqa: F401

    import flashback_core  # noqa: F401 - loaded before files are limited

    train(tmp_path / "warm", 2)
    with file_limit(60_000):
        seen = train(tmp_path / "run", 80)
    assert len(seen) == 1, seen
    assert "free some space" in str(seen[0])
    index = StepSketchIndex(tmp_path / "run" / "sketch")
    gap = next(e for e in index.events if e["event"] == "gap")
    assert gap == {"event": "gap", "step": len(index), "last_step": 79, "rows": 80 - len(index)}
    assert 10 < len(index) < 70


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB; needs root."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_training_goes_on_over_a_full_file_system(small_disk: Path) -> None:
    """The same over a real file system that is full, at the end of the run too."""
    seen = train(small_disk / "run", 400)
    assert len(seen) == 1, seen
    index = StepSketchIndex(small_disk / "run" / "sketch")
    gap = next(e for e in index.events if e["event"] == "gap")
    assert gap["step"] + gap["rows"] - 1 == gap["last_step"] == 399
    assert len(index) == gap["step"]


def test_a_read_only_folder(small_disk: Path) -> None:
    """A folder that cannot be written: one warning that names where it records instead."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    seen = train(small_disk / "run", 3)
    assert len(seen) == 1
    assert "cannot be written" in str(seen[0])
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_turns_read_only(small_disk: Path, row) -> None:
    """A disk that turns read-only under a live run: the index opens with what was written."""
    index = StepSketchIndex(small_disk / "i", "a")
    for step in range(3):
        index.append(step, *row(step))
    index._writer._tail.close()  # a file open for writing keeps the disk from turning read-only
    index._writer._lock.release()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        index.append(3, *row(3))
    index.close()
    assert StepSketchIndex(small_disk / "i").steps.tolist() == [0, 1, 2]


def test_a_folder_that_vanishes_is_warned_of(tmp_path: Path, row) -> None:
    """A run whose folder was removed under it is told so at the next seal."""
    import shutil

    index = StepSketchIndex(tmp_path / "i", "a", segment_rows=4)
    index.append(0, *row(0))
    shutil.rmtree(tmp_path / "i")
    for step in (1, 2):
        index.append(step, *row(step))
    with pytest.warns(FlashbackWarning, match="could not be sealed"):
        index.append(3, *row(3))
    for step in range(4, 10):
        index.append(step, *row(step))
    index.close()
