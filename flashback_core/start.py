"""How a recording starts: facts of the run, and an index that can be written."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from flashback_core.index import StepSketchIndex
from flashback_core.schema import SketchSchema
from flashback_core.sketch.parameters import NamedParameters
from flashback_core.version import __version__
from flashback_core.warn import Guard

__all__ = ["open_index", "run_facts"]


def run_facts(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    named: NamedParameters,
    backend: str,
) -> dict[str, Any]:
    """What a report says of the run; nothing of the data, the user or the machine's name."""
    trained = sum(t.numel() for t in named.tensors if t.requires_grad)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "flashback": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": sys.platform,
        "model": type(model).__name__,
        "optimizer": ", ".join(type(o).__name__ for o in optimizers),
        "parameters": sum(t.numel() for t in named.tensors),
        "trainable_parameters": trained,
        "tensors": len(named.tensors),
        "sketch_backend": backend,
    }


def open_index(
    folder: Path, schema: SketchSchema, facts: Mapping[str, Any], guard: Guard
) -> StepSketchIndex:
    """The index of the run in `folder`, or in a temporary folder where that cannot be written."""
    try:
        return StepSketchIndex(folder / "sketch", "a", schema=schema, run=facts)
    except OSError as error:
        instead = Path(tempfile.mkdtemp(prefix="flashback-"))
        guard.warn(
            "the folder", f"{folder} cannot be written ({error}); recording into {instead} "
            "instead. Give a folder that can be written")  # fmt: skip
        return StepSketchIndex(instead / "sketch", "a", schema=schema, run=facts)
