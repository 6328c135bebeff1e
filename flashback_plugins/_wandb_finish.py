"""BeforeFinish: the last moment at which a W&B run still takes alerts and artifacts."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flashback_core.warn import Guard

if TYPE_CHECKING:
    import wandb

__all__ = ["BeforeFinish"]


class BeforeFinish:
    """Calls a function once before a W&B run finishes, or at the end of the script."""

    def __init__(self, run: wandb.Run, call: Callable[[], object]) -> None:
        self._run = run
        self._call: Callable[[], object] | None = call
        self._wrapper: Callable[..., Any] | None = None
        # later hooks run first, so this one comes before W&B's own, which closes the run
        atexit.register(self._at_exit)
        if not self._add_teardown_hook():
            self._wrap_finish()

    def __call__(self) -> None:
        """Call the function unless it was called, or given up, before."""
        call, self._call = self._call, None
        if call is not None:
            with Guard()("the end of the recording in W&B"):
                call()
        self.cancel()

    def _at_exit(self) -> None:
        self()
        # Python forgets a Ctrl-C once other code has run; a shell loop must still see that signal
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def cancel(self) -> None:
        """Give up calling; the run finishes as if nothing had been added."""
        self._call = None
        atexit.unregister(self._at_exit)
        if vars(self._run).get("finish") is self._wrapper is not None:
            del self._run.finish  # the method of the class is there again

    def _add_teardown_hook(self) -> bool:
        """Use W&B's private hook; False where this version of W&B has none."""
        try:
            from wandb.sdk.wandb_run import TeardownHook, TeardownStage

            self._run._teardown_hooks.append(TeardownHook(self, TeardownStage.EARLY))
        except (ImportError, AttributeError):
            return False
        return True

    def _wrap_finish(self) -> None:
        """Replace `run.finish`, which ``wandb.finish()`` calls too; ``with run:`` goes by it."""
        finish = self._run.finish

        def finish_after_us(*args: Any, **kwargs: Any) -> Any:
            self()
            return finish(*args, **kwargs)

        self._run.finish = self._wrapper = finish_after_us
