"""Says on every new MLflow run which flashback was there.

MLflow loads this while it is itself being imported, so of MLflow nothing may be imported here but
the one abstract class; anything more would be a circular import.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mlflow.tracking.context.abstract_context import RunContextProvider

from flashback_core.warn import disabled

__all__ = ["FlashbackRunContext"]


class FlashbackRunContext(RunContextProvider):  # type: ignore[misc]  # MLflow has no types here
    """Adds the tag ``flashback.version`` to runs, unless flashback is switched off."""

    def in_context(self) -> bool:
        """Whether flashback is on."""
        return not disabled()

    def tags(self) -> dict[str, str]:
        """The tag; none where flashback was not installed as a package."""
        try:
            return {"flashback.version": version("flashback-plugins")}
        except PackageNotFoundError:
            return {}
