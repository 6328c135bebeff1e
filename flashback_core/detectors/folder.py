"""A detector's folder: ``config.json``, and ``weights.json`` where it has weights; no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashback_core.errors import DetectorError

__all__ = ["read_config", "read_json", "write_config"]

CONFIG = "config.json"


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings in `folder`; see `read_json`."""
    return read_json(Path(folder) / CONFIG)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`.

    Raises:
        DetectorError: If the file is missing, is not JSON or holds no object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: {error.strerror or error}; expected the folder of a saved detector"
        raise DetectorError(msg) from error
    except ValueError as error:
        msg = f"{path}: not JSON ({error}); save the detector again"
        raise DetectorError(msg) from error
    if not isinstance(data, dict):
        msg = f"{path}: holds a {type(data).__name__}, expected an object; save the detector again"
        raise DetectorError(msg)
    return data


def write_config(folder: str | Path, settings: Mapping[str, Any], name: str = CONFIG) -> Path:
    """Write `settings` as JSON into `folder`, which is made when it is missing."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(settings), indent=2, allow_nan=False) + "\n"
    (folder / name).write_text(text, encoding="utf-8")
    return folder
