"""Every error that flashback raises on purpose.

* FlashbackError
    - SchemaError(ValueError)         a metric or group name does not fit the schema
    - IndexFormatError(ValueError)    the bytes are not an index that this version can read
    - IndexLockedError(RuntimeError)  another process writes to this index
    - SourceError(ValueError)         a path that detection cannot read as a run
    - ModelError(ValueError)          a model or an optimizer that cannot be watched
    - DetectorError(ValueError)       a detector's folder or settings are not usable
    - NoBaselineError(ValueError)     too few healthy steps to calibrate on
    - MissingExtraError(ImportError)  an optional package is not installed

Each one is also the builtin that people expect. A message says what came, what was expected
and what to do.
"""

from __future__ import annotations

__all__ = [
    "DetectorError",
    "FlashbackError",
    "FlashbackWarning",
    "IndexFormatError",
    "IndexLockedError",
    "MissingExtraError",
    "ModelError",
    "NoBaselineError",
    "SchemaError",
    "SourceError",
]


class FlashbackError(Exception):
    """Base of every error that flashback raises on purpose."""


class SchemaError(FlashbackError, ValueError):
    """A metric or group name does not fit the schema."""


class IndexFormatError(FlashbackError, ValueError):
    """The bytes are not an index that this version can read."""


class IndexLockedError(FlashbackError, RuntimeError):
    """Another process writes to this index."""


class SourceError(FlashbackError, ValueError):
    """A path that detection cannot read as a run."""


class ModelError(FlashbackError, ValueError):
    """A model or an optimizer that cannot be watched."""


class DetectorError(FlashbackError, ValueError):
    """A detector's folder or settings are not usable."""


class NoBaselineError(FlashbackError, ValueError):
    """Too few healthy steps to calibrate on."""


class MissingExtraError(FlashbackError, ImportError):
    """An optional package is not installed."""


class FlashbackWarning(UserWarning):
    """A part of flashback failed or left something out; the training went on."""
