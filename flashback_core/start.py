"""How a recording starts: what watches the run, facts of it, and an index that can be written."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from flashback_core.groups import GroupRule, group_parameters
from flashback_core.index import StepSketchIndex
from flashback_core.schema import SketchSchema
from flashback_core.sketch.parameters import (
    NamedParameters,
    check_owned,
    innermost_optimizer,
    named_parameters,
)
from flashback_core.sketch.sketcher import Sketcher
from flashback_core.version import __version__
from flashback_core.warn import Guard
from flashback_core.watch.rewritten import Rewritten, rewritten
from flashback_core.watch.run import RunWatch
from flashback_core.watch.schedule import ScheduleWatch

__all__ = ["Parts", "open_index", "run_facts", "watching"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What watches a run.

    Attributes:
        optimizers: The torch optimizers that really step, in the order given.
        sketchers: One for each of them.
        watch: The exact watches of all.
        schedule: Reads the run's own schedulers.
        schema: Of the rows.
        names: Name of a parameter by its id.
        rewritten: Parameters that are not compared between two steps.
        group_table: Which parameters are in which group, as the index keeps it.
        facts: See `run_facts`.
    """

    optimizers: list[torch.optim.Optimizer]
    sketchers: list[Sketcher]
    watch: RunWatch
    schedule: ScheduleWatch
    schema: SketchSchema
    names: dict[int, str]
    rewritten: Rewritten
    group_table: Any
    facts: dict[str, Any]

    def name_of(self, parameter: torch.Tensor) -> str:
        """Name of a parameter."""
        return self.names[id(parameter)]

    @property
    def is_sharded(self) -> bool:
        """Whether all ranks have to make the same calls."""
        return any(s.is_sharded for s in self.sketchers)


def watching(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    groups: GroupRule | Mapping[str, str] | None,
    guard: Guard,
    scheduler: Any = None,
    rewrites: Sequence[str] = (),
    **sketcher: Any,
) -> Parts:
    """Make what watches a run.

    Args:
        model: The module that holds all parameters.
        optimizer: A torch optimizer, a wrapper of one, or several.
        groups: A rule or mapping from parameters to groups.
        guard: Warns of parameters that have no metrics.
        scheduler: See `ScheduleWatch`.
        rewrites: Patterns of `watch.rewritten`.
        sketcher: Settings of each `Sketcher`.

    Raises:
        ModelError: If the model has nothing to train, an optimizer is not of this model,
            `scheduler` is none, or a pattern fits no parameter.
    """
    given = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    optimizers = [innermost_optimizer(o) for o in given]
    named = named_parameters(model)
    check_owned(optimizers, named.tensors, type(model).__name__)
    schedule = ScheduleWatch(scheduler, optimizers)
    if named.skipped:
        guard.warn(
            "types", f"{len(named.skipped)} parameters that are complex or integer have no "
            f"metrics: {', '.join(named.skipped[:3])} …")  # fmt: skip
    grouping = group_parameters(named.infos, groups)
    names = {id(t): info.name for t, info in zip(named.tensors, named.infos, strict=True)}
    places = {g: i for i, g in enumerate(grouping.groups)}
    sketchers = [
        Sketcher(o, lambda p: places[grouping.of[names[id(p)]]], len(places), **sketcher)
        for o in optimizers
    ]
    return Parts(
        optimizers=optimizers,
        sketchers=sketchers,
        watch=RunWatch(model, optimizers, lambda p: names[id(p)]),
        schedule=schedule,
        schema=SketchSchema(grouping.groups),
        names=names,
        rewritten=rewritten(model, list(zip(given, optimizers, strict=True)), names, rewrites),
        group_table=grouping.table(named.infos),
        facts=run_facts(model, optimizers, named, sketchers[0].backend),
    )


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
