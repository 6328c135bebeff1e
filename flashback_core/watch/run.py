"""RunWatch: all exact watches of one run, as exact fields of a row and as events."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.nn.parameter import is_lazy

from flashback_core.sketch.sharded import is_sharded
from flashback_core.sketch.sums import StepSums
from flashback_core.watch.config import ConfigWatch
from flashback_core.watch.moments import Moments
from flashback_core.watch.running import RunningWatch
from flashback_core.watch.state import Key, Named, TensorWatch, digests

__all__ = ["RunWatch", "sums_fields", "weights_event"]

WEIGHTS, STATE, BUFFERS = 1, 2, 4
HASH_EVERY = 50
"""Steps between two digests of all weights and all optimizer state."""

_MOST_EVENTS = 200
_MOST_NAMES = 20

Event = dict[str, Any]


class RunWatch:
    """See the module. One for all optimizers of a run.

    Args:
        model: The module that is trained.
        optimizers: Those that step.
        name_of: Name of a parameter.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        name_of: Callable[[torch.Tensor], str],
    ) -> None:
        self._optimizers, self._name_of = optimizers, name_of
        self._buffers: Named = [
            ((name,), b) for name, b in model.named_buffers() if not is_lazy(b) and b.numel() > 1
        ]
        self._moments = [Moments(o) for o in optimizers]
        self._state = [TensorWatch() for _ in optimizers]
        self._buffer_watch = TensorWatch()
        self._habit: frozenset[Key] = frozenset()
        self._running = RunningWatch([])
        self._config = [ConfigWatch(model, optimizers) for _ in optimizers]
        self._n_events = 0

    def start(self, i: int, step: int) -> tuple[dict[str, float], list[Event]]:
        """Look just before optimizer `i` makes its update.

        Returns:
            Exact fields of the step, and events that name what changed.
        """
        moments = self._moments[i]
        listed, tensors = moments.listed, moments.tensors()
        state = self._state[i].start(tensors) + moments.start()
        buffers = self._changed_buffers()
        digest, changed = self._config[i].look()
        fields: dict[str, float] = {
            "outside": (STATE if state else 0) | (BUFFERS if buffers else 0),
            "config_hash": digest,
            "opt_steps": moments.fewest_steps(changed=tensors is not listed or bool(state)),
        }
        events = []
        if state:
            events.append(
                _outside(step, "optimizer state", [f"{n} of {self._label(p)}" for n, p in state])
            )
        if buffers:
            events.append(_outside(step, "buffers", [str(k) for (k,) in buffers]))
        if changed:
            events.append(_config_event(step, changed))
        return fields, self._bounded(events)

    def end(self, i: int, step: int) -> dict[str, float]:
        """Remember the state as the update of optimizer `i` left it."""
        moments = self._moments[i]
        tensors = moments.tensors()
        moments.end()
        self._state[i].end(tensors)
        self._buffer_watch.end(self._buffers)
        if step % HASH_EVERY:
            return {}
        optimizer = self._optimizers[i]
        weights = [p for g in optimizer.param_groups for p in g["params"]]
        if any(is_sharded(p) for p in weights):
            return {"params_hash": 0, "state_hash": 0}  # this rank has but a part
        return {"params_hash": _joint(weights), "state_hash": _joint([t for _, t in tensors])}

    def _changed_buffers(self) -> list[Key]:
        """Buffers that changed and never do, and those that change as no training does."""
        changed = self._buffer_watch.start(self._buffers)
        habit = self._buffer_watch.habit
        if habit != self._habit:
            self._habit = habit
            self._running = RunningWatch([(k, b) for k, b in self._buffers if k in habit])
        return changed + self._running.look()

    def _label(self, parameter: object) -> str:
        return self._name_of(parameter) if isinstance(parameter, torch.Tensor) else str(parameter)

    def _bounded(self, events: list[Event]) -> list[Event]:
        """At most so many events a run; the exact fields of the rows go on."""
        room = max(_MOST_EVENTS - self._n_events, 0)
        self._n_events += len(events)
        return events[:room]


def _joint(tensors: Sequence[torch.Tensor]) -> int:
    """One digest of all tensors; 0 where some are not in host memory."""
    if any(t.device.type != "cpu" or t.layout is not torch.strided for t in tensors):
        return 0
    return xxhash.xxh3_64_intdigest(digests([t.detach() for t in tensors]).tobytes())


def _outside(step: int, what: str, names: Sequence[str], **more: Any) -> Event:
    return {
        "event": "outside", "step": step, "what": what, "n_tensors": len(names),
        "tensors": list(names[:_MOST_NAMES]), **more,
    }  # fmt: skip


def _config_event(step: int, changed: dict[str, tuple[Hashable, Hashable]]) -> Event:
    shown = dict(sorted(changed.items())[:_MOST_NAMES])
    return {
        "event": "config", "step": step, "n_settings": len(changed),
        "changed": {name: [before, now] for name, (before, now) in shown.items()},
    }  # fmt: skip


def sums_fields(
    sums: StepSums, sizes: npt.NDArray[np.int64], compared: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """Exact fields that the sums of a step know.

    Args:
        sums: The sums.
        sizes: Entries of each tensor.
        compared: Whether writes to it from outside count.
    """
    gradient = sums.tensor_sumsq
    still = (sums.still == sizes) & (sizes > 0)
    changed = np.count_nonzero(sums.changed) and np.count_nonzero(sums.changed[compared])
    counts = sums.counts.tolist()
    return {
        "zero_grads": len(gradient) - int(np.count_nonzero(gradient)),
        "no_grads": int(np.count_nonzero(np.isnan(gradient))),
        "zero_updates": (n_still := int(np.count_nonzero(still))),
        "lost_updates": int(np.count_nonzero(gradient[still] > 0)) if n_still else 0,
        "unmoved": sum(c[7] for c in counts),
        "low16": sum(c[8] for c in counts),
        "outside": WEIGHTS if changed else 0,
    }


def weights_event(
    step: int, sums: StepSums, names: Sequence[str], compared: npt.NDArray[np.bool_]
) -> Event | None:
    """Which weights something else than the optimizer changed before `step`; None if none.

    Args:
        step: The step.
        sums: Its sums.
        names: Of the tensors.
        compared: Whether writes to each from outside count.
    """
    at = np.flatnonzero((sums.changed != 0) & compared).tolist()
    if not at:
        return None
    entries = [int(sums.changed[i]) for i in at[:_MOST_NAMES]]
    return _outside(step, "weights", [names[i] for i in at], entries=entries)
