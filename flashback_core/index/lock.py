"""One writer per index: a lock that the operating system releases when its owner dies."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from flashback_core.errors import IndexLockedError

__all__ = ["WriterLock"]

_held: set[str] = set()
"""Locks of this process: POSIX locks do not stop a second open in the same process."""


class WriterLock:
    """Holds ``lock`` in the folder of an index.

    POSIX record locks are not inherited by forked children (data-loader workers), so a worker that
    outlives its parent does not keep the index locked.

    Raises:
        IndexLockedError: If another process, or another recorder of this one, writes there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._key = str(self._path.resolve())
        if self._key in _held:
            raise IndexLockedError(_message(folder, f"process {os.getpid()} (this one)"))
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(self._fd)
        except OSError:
            owner = os.read(self._fd, 200).decode(errors="replace").strip() or "another process"
            os.close(self._fd)
            raise IndexLockedError(_message(folder, owner)) from None
        _held.add(self._key)
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Let another writer in. Idempotent."""
        if self._fd < 0:
            return
        _held.discard(self._key)
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1


def _message(folder: Path, owner: str) -> str:
    return (
        f"{folder} is being written by {owner}; wait until that run ends, or give this run "
        "a folder of its own"
    )


def _lock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
