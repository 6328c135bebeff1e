"""Lightning: `FlashbackCallback` records a run, and reports at which step it first went wrong.

    from flashback_plugins.lightning import FlashbackCallback
    trainer = Trainer(callbacks=[FlashbackCallback()])

It works with ``lightning`` and with ``pytorch_lightning``, whose callbacks are two different
classes: the class is made on first use, on top of whichever of the two is there.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from flashback_core.extras import extra
from flashback_core.warn import disabled

if TYPE_CHECKING:
    from flashback_plugins._lightning_callback import CallbackHooks

    class FlashbackCallback(CallbackHooks):
        """See `flashback_plugins._lightning_callback.CallbackHooks`."""


__all__ = ["FlashbackCallback", "callbacks"]

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


def callbacks() -> list[Any]:
    """What Lightning's entry point ``callbacks_factory`` adds to every Trainer.

    Nothing, unless ``FLASHBACK_LIGHTNING=1`` asks for it: then one callback, which records into
    ``FLASHBACK_DIR`` or the trainer's own folder. It stays out of the way of a callback that the
    script has put there itself.
    """
    wanted = os.environ.get("FLASHBACK_LIGHTNING", "").lower() in {"1", "true", "yes", "on"}
    if not wanted or disabled():
        return []
    return [_callback_class()(os.environ.get("FLASHBACK_DIR") or None)]


def _bases() -> tuple[type, ...]:
    """`Callback` of every namespace that is loaded, or else of the one that is installed."""
    loaded = [sys.modules[name] for name in _NAMESPACES if name in sys.modules]
    if not loaded:
        loaded = [_installed()]
    # one of both namespaces may re-export the other's class
    return tuple(dict.fromkeys(module.Callback for module in loaded))


def _installed() -> Any:
    try:
        return importlib.import_module(_NAMESPACES[0])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lightning":
            raise
    with extra("lightning", package="pytorch_lightning"):
        return importlib.import_module(_NAMESPACES[1])


def _callback_class() -> Any:
    if "FlashbackCallback" not in globals():
        bases = _bases()
        from flashback_plugins._lightning_callback import CallbackHooks

        body = {"__doc__": CallbackHooks.__doc__, "__module__": __name__}
        globals()["FlashbackCallback"] = type("FlashbackCallback", (CallbackHooks, *bases), body)
    return globals()["FlashbackCallback"]


def __getattr__(name: str) -> Any:
    if name == "FlashbackCallback":
        return _callback_class()
    msg = f"module 'flashback_plugins.lightning' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
