"""Where a Lightning run is recorded, and at which step it goes on."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder

__all__ = ["FOLDER", "Place", "default_folder"]

FOLDER = "flashback"


def default_folder(trainer: Any) -> Path:
    """A folder beside what the trainer's first logger writes.

    A logger with a folder of its own for this run (TensorBoard, CSV) gets ours inside of it:
    ``lightning_logs/version_0/flashback``. With any other logger it is
    ``<save_dir>/flashback/<version>``, and without one ``<root>/flashback/<time>``.
    """
    logger = next(iter(trainer.loggers), None)
    own = getattr(logger, "log_dir", None)
    if own:
        return Path(own) / FOLDER
    root = getattr(logger, "save_dir", None) or trainer.default_root_dir
    version = getattr(logger, "version", None)
    if version is not None:
        return Path(root) / FOLDER / str(version)
    return _unused(Path(root) / FOLDER, f"{datetime.now():%Y%m%d-%H%M%S}")


def _unused(parent: Path, name: str) -> Path:
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


class Place:
    """The run folder of a callback and the step to come, from one fit to the next.

    Args:
        given: What the user asked for, None for a folder beside the logger's.

    Attributes:
        dir: The run folder, None before a fit when it was not given.
        next_step: Step of the row to come.
        resume: State that the checkpoint of this fit holds, None without one.
        is_temporary: Whether this fit only tries things out and leaves nothing.
    """

    def __init__(self, given: Path | None) -> None:
        self.given = self.dir = given
        self.next_step = 0
        self.resume: dict[str, Any] | None = None
        self.is_temporary = False
        self._trainer: weakref.ref[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: it has another trainer."""
        return self.__dict__ | {"_trainer": None}

    def _is_same(self, trainer: Any) -> bool:
        """Whether the last fit was of this trainer."""
        return self._trainer is not None and self._trainer() is trainer

    def folder(self, trainer: Any) -> Path:
        """The folder for the fit that begins."""
        self.is_temporary = bool(trainer.fast_dev_run)
        if self.is_temporary:
            return Path(tempfile.mkdtemp(prefix="flashback-"))
        if self.given is not None:
            return self.given
        if self.resume and (Path(self.resume["dir"]) / "sketch").is_dir():
            return Path(self.resume["dir"])
        if self.dir is not None and self._is_same(trainer):
            return self.dir
        return default_folder(trainer)

    def first_step(self, trainer: Any) -> int:
        """The step at which the fit that begins goes on."""
        if self.resume:
            return int(self.resume["next_step"])
        before = self.next_step if self._is_same(trainer) else 0
        return max(int(trainer.global_step), before)

    def begin(self, trainer: Any, recorder: Recorder) -> None:
        """Note that `recorder` has been opened."""
        self.dir, self.next_step = recorder.dir, recorder.next_step
        self._trainer = weakref.ref(trainer)

    def state(self, trainer: Any) -> dict[str, Any] | None:
        """What a checkpoint keeps, None where this trainer is not recorded."""
        if self.dir is None or self.is_temporary or not self._is_same(trainer):
            return None
        return {"version": 1, "next_step": self.next_step, "dir": str(self.dir.absolute())}

    def remove(self) -> None:
        """Leave nothing of a fit that only tried things out."""
        if self.dir is not None:
            shutil.rmtree(self.dir, ignore_errors=True)
        self.dir = self.given
