"""One writer per index, whoever dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flashback_core.errors import IndexLockedError
from flashback_core.index import StepSketchIndex
from flashback_core.index.lock import WriterLock

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9 and fork are of POSIX")

OWNER = """
import os, sys, time
from flashback_core.index import StepSketchIndex
index = StepSketchIndex({path!r}, "a")
if {fork} and os.fork() == 0:
    os.write(1, b"child %d\\n" % os.getpid())
    time.sleep(60)
    os._exit(0)
if {fork}:
    time.sleep(0.3)
os.write(1, b"ready\\n")
time.sleep(60)
"""


def start_owner(path: Path, *, fork: bool = False) -> subprocess.Popen[bytes]:
    """A process that holds the index open for writing, with or without a forked child."""
    code = OWNER.format(path=str(path), fork=fork)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """The error names the owner and says what to do; a reader is not refused."""
    path = tmp_path / "i"
    owner = start_owner(path)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    try:
        with pytest.raises(IndexLockedError, match=rf"process {owner.pid} on .*folder of its own"):
            StepSketchIndex(path, "a")
        assert len(StepSketchIndex(path)) == 0
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    StepSketchIndex(path, "a").close()


def test_the_lock_dies_with_its_owner_though_a_child_lives(tmp_path: Path) -> None:
    """A forked child that outlives its killed parent does not keep the index locked."""
    path = tmp_path / "i"
    owner = start_owner(path, fork=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline().split()[1])
    assert owner.stdout.readline() == b"ready\n"
    try:
        with pytest.raises(IndexLockedError):
            StepSketchIndex(path, "a")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        os.kill(child, 0)  # it lives
        StepSketchIndex(path, "a").close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_second_writer_of_this_process_is_refused(tmp_path: Path) -> None:
    """Also in one process, and with what to do; after `close` the index is free."""
    index = StepSketchIndex(tmp_path / "i", "a")
    with pytest.raises(IndexLockedError, match=r"this process; close\(\) it first"):
        StepSketchIndex(tmp_path / "i", "a")
    index.close()
    StepSketchIndex(tmp_path / "i", "a").close()


def test_a_dropped_index_frees_its_lock(tmp_path: Path) -> None:
    """An index that nobody holds any more (a notebook cell run again) can be opened again."""
    index = StepSketchIndex(tmp_path / "i", "a")
    del index
    StepSketchIndex(tmp_path / "i", "a").close()


def test_copying_the_folder_keeps_the_lock(tmp_path: Path) -> None:
    """Reading the lock file in the same process (a tracker's upload) does not release it."""
    with StepSketchIndex(tmp_path / "i", "a"):
        shutil.copytree(tmp_path / "i", tmp_path / "copy")
        owner = start_owner(tmp_path / "i")
        out, _ = owner.communicate()
        assert out == b""
        assert owner.returncode == 1


def test_release_is_idempotent(tmp_path: Path) -> None:
    """Releasing twice is the same as once."""
    lock = WriterLock(tmp_path)
    lock.release()
    lock.release()
    WriterLock(tmp_path).release()
