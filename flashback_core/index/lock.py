"""One writer per index: a lock that the operating system releases when its owner dies."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import weakref
from pathlib import Path

from flashback_core.errors import IndexLockedError

__all__ = ["WriterLock"]

_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_log = logging.getLogger("flashback")


class WriterLock:
    """Holds ``lock`` in the folder of an index.

    A BSD lock (`flock`): it belongs to the open file, so another open and close of the same file in
    this process (a copy of the run folder, say) does not release it as it would a POSIX record
    lock. Forked children (data-loader workers) would inherit it, so they close their copy at once:
    one that outlives its parent does not keep the index locked.

    Args:
        folder: The index; must exist.

    Raises:
        IndexLockedError: If another process, or another recorder of this one, writes there.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = -1
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(self._fd)
        except OSError as error:
            if error.errno in _BUSY:
                owner = os.read(self._fd, 200).decode(errors="replace").strip()
                self.forget()
                raise IndexLockedError(_message(folder, owner or "another process")) from None
            _log.warning("flashback: %s cannot be locked here (%s); two writers would not "
                         "notice each other", folder, error)  # fmt: skip
        with contextlib.suppress(OSError):  # the owner's name is a courtesy; the disk may be full
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        _held.add(self)

    def __del__(self) -> None:
        """An index that was dropped without `close` lets another writer in."""
        self.forget()

    def release(self) -> None:
        """Let another writer in. Idempotent."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        self.forget()

    def forget(self) -> None:
        """Close this process's copy, which leaves the lock to the process that forked it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_all)


def _message(folder: Path, owner: str) -> str:
    if owner.startswith(f"process {os.getpid()} "):
        return f"{folder} is being written by another recorder of this process; close() it first"
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
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
