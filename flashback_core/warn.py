"""One clear warning per failing part, which can never stop a training."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from flashback_core.errors import FlashbackWarning

__all__ = ["Guard", "disabled"]

_log = logging.getLogger("flashback")


def disabled() -> bool:
    """Whether ``FLASHBACK_DISABLED`` switches everything off."""
    return os.environ.get("FLASHBACK_DISABLED", "").lower() in {"1", "true", "yes", "on"}


class Guard:
    """Turns an exception of a part of flashback into one warning; the part is then left out.

    Examples:
        >>> guard = Guard()
        >>> with guard("tracker"):  # doctest: +SKIP
        ...     raise ConnectionError("no route")
        >>> guard.failed("tracker")
        False
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._failed: set[str] = set()

    def failed(self, part: str) -> bool:
        """Whether `part` is left out from now on."""
        return part in self._failed

    @contextmanager
    def __call__(self, part: str, *, keep: bool = False) -> Iterator[None]:
        """Run a block of `part`; with `keep` the part is tried again next time."""
        try:
            yield
        except Exception as error:
            goes_on = "it is tried again" if keep else "it is left out from here on"
            self.warn(part, f"{part} failed ({type(error).__name__}: {error}); the training and "
                      f"the rest of the recording go on, {goes_on}")  # fmt: skip
            _log.debug("failure of %s", part, exc_info=True)
            if not keep:
                self._failed.add(part)

    def warn(self, topic: str, message: str) -> None:
        """Warn of `topic` once. Where warnings are errors it is logged instead."""
        if topic in self._warned:
            return
        self._warned.add(topic)
        try:
            warnings.warn(f"flashback: {message}", FlashbackWarning, stacklevel=4)
        except FlashbackWarning:
            _log.warning("flashback: %s", message)
