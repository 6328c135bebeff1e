"""`autolog`: Lightning's ``Trainer.fit`` with a FlashbackCallback for the MLflow run."""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import mlflow

from flashback_core.warn import Guard, disabled
from flashback_plugins._mlflow_store import active_run_id, client

__all__ = ["disable", "enable"]

_MODULES = ("lightning.pytorch", "pytorch_lightning")
_log = logging.getLogger("mlflow.flashback")


class _Patches:
    """What is changed in this process: `fit` of some trainers, and a look-out for imports."""

    def __init__(self) -> None:
        self.on = False
        self.silent = False
        self.fits: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self.look_out = _LookOut()


def enable(*, silent: bool = False) -> None:
    """Patch every Lightning that is imported, and each other one when it is imported."""
    _patches.on, _patches.silent = True, silent
    if _patches.look_out not in sys.meta_path:
        sys.meta_path.insert(0, _patches.look_out)
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])


def disable() -> None:
    """Put everything back."""
    _patches.on = False
    if _patches.look_out in sys.meta_path:
        sys.meta_path.remove(_patches.look_out)
    for trainer, (original, ours) in _patches.fits.items():
        # where somebody patched on top of us, ours stays below theirs and only passes through
        if vars(trainer)["fit"] is ours:
            trainer.fit = original  # type: ignore[attr-defined]  # Trainer of either Lightning
    _patches.fits.clear()


def _patch(module: ModuleType) -> None:
    trainer = getattr(module, "Trainer", None)
    if trainer is None or trainer in _patches.fits:  # None: its import is still under way
        return
    original = vars(trainer)["fit"]

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _patches.on or disabled():
            return original(self, *args, **kwargs)
        with _watched(self):
            return original(self, *args, **kwargs)

    trainer.fit = fit
    _patches.fits[trainer] = (original, fit)


class _LookOut(MetaPathFinder):
    """Patches a Lightning right after it is imported."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with our patch after the module's own code."""
        if fullname not in _MODULES or fullname in self._asked:
            return None
        self._asked.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asked.discard(fullname)
        if spec is not None and spec.loader is not None:
            _then_patch(spec.loader)
        return spec


def _then_patch(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if _patches.on:
            _patch(module)

    loader.exec_module = exec_module


_patches = _Patches()


@contextmanager
def _watched(trainer: Any) -> Iterator[None]:
    """A training with our callback, in the active MLflow run or in one of its own."""
    callback, started = None, False
    with Guard()("flashback_plugins.mlflow.autolog"):
        if _needs_callback(trainer):
            started = not _has_mlflow(trainer) and mlflow.active_run() is None
            callback = _callback(trainer)
            # first of all, so that a row is complete when ModelCheckpoint comes
            trainer.callbacks.insert(0, callback)
    try:
        yield
    except BaseException as error:
        _end(started, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    else:
        _end(started, "FINISHED")
    finally:
        if callback in trainer.callbacks:
            trainer.callbacks.remove(callback)


def _needs_callback(trainer: Any) -> bool:
    names = {type(c).__name__ for c in trainer.callbacks}
    return trainer.is_global_zero and not trainer.fast_dev_run and "FlashbackCallback" not in names


def _has_mlflow(trainer: Any) -> bool:
    return any(type(logger).__name__ == "MLFlowLogger" for logger in trainer.loggers)


def _callback(trainer: Any) -> Any:
    from flashback_plugins.lightning import FlashbackCallback
    from flashback_plugins.mlflow import MlflowSink

    if _has_mlflow(trainer):  # the callback goes to the trainer's own loggers by itself
        return FlashbackCallback()
    run_id = active_run_id()
    if not _patches.silent:
        _log.info("flashback watches this training in the MLflow run %s", run_id)
    return FlashbackCallback(sinks=(MlflowSink(client(), run_id),))


def _end(started: bool, status: str) -> None:
    if started and mlflow.active_run() is not None:
        mlflow.end_run(status)
