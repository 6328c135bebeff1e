"""Adapters between flashback and the tools in which people train and look at runs.

Each adapter is a module that needs its own tool alone: `flashback_plugins.lightning`,
`flashback_plugins.wandb`, `flashback_plugins.mlflow`. The names below load theirs on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashback_plugins.lightning import FlashbackCallback
    from flashback_plugins.mlflow import MlflowSink
    from flashback_plugins.wandb import WandbSink

__all__ = ["FlashbackCallback", "MlflowSink", "WandbSink"]

_HOMES = {"FlashbackCallback": "lightning", "MlflowSink": "mlflow", "WandbSink": "wandb"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'flashback_plugins' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"flashback_plugins.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
