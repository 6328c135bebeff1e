"""One clear message for an optional package that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flashback_core.errors import MissingExtraError

__all__ = ["extra"]


@contextmanager
def extra(name: str, *, package: str | None = None) -> Iterator[None]:
    """Import the package of the extra `name` inside this block.

    Args:
        name: The extra, as in ``pip install 'flashback-plugins[name]'``.
        package: The top-level module of the extra when it has another name.

    Raises:
        MissingExtraError: If that package itself is missing. A package that is there but lacks
            something that it needs raises its own error.
    """
    wanted = package or name
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != wanted:
            raise
        msg = f"this needs {wanted}: pip install 'flashback-plugins[{name}]'"
        raise MissingExtraError(msg) from error
