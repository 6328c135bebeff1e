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

__all__ = ["FOLDER", "Place", "default_folder", "is_second"]

FOLDER = "flashback"
_VERSION = 1


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

    def remember(self, state: Any) -> str | None:
        """Take up what flashback had put into a checkpoint.

        Returns:
            What is wrong with it, None if it can be used or if there is nothing.
        """
        if state is None:
            return None
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            found = state.get("version") if isinstance(state, dict) else type(state).__name__
            return (f"the checkpoint was made by a flashback that keeps state {found!r}, this one "
                    f"reads {_VERSION}; steps are counted from the trainer's own")  # fmt: skip
        self.resume = dict(state)
        return None

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
        return {"version": _VERSION, "next_step": self.next_step, "dir": str(self.dir.absolute())}

    def remove(self) -> None:
        """Leave nothing of a fit that only tried things out."""
        if self.dir is not None:
            shutil.rmtree(self.dir, ignore_errors=True)
        self.dir = self.given


def is_second(callback: Any, trainer: Any, given: Path | None) -> bool:
    """Whether a callback before this one in the list records into the same folder."""
    for other in trainer.callbacks:
        if other is callback:
            return False
        place = getattr(other, "_place", None)
        if isinstance(place, Place) and given in (None, place.given):
            return True
    return False
