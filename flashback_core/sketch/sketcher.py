"""Sketcher: watches the parameters of one optimizer with the fastest backend there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from flashback_core.sketch.adam_state import AdamState
from flashback_core.sketch.backend import Backend, PendingSums, Watched
from flashback_core.sketch.choose import choose_backend
from flashback_core.sketch.parameters import stepped_parameters
from flashback_core.sketch.sharded import ShardedBackend

__all__ = ["Sketcher"]


class Sketcher:
    """Sums of every step of one optimizer.

    The parameters with ``requires_grad`` in the optimizer's groups are watched. When that set
    changes (unfreezing, `add_param_group`) the sketcher follows by itself; a parameter that joins
    has updates from the step after.

    Args:
        optimizer: The optimizer that steps.
        group_of: Group index of a parameter.
        n_groups: Number of groups.
        backend: Makes a backend for the watched tensors; None chooses by device and packages.
        histogram_every: Of so many units of entries the histograms count one per step, in turn
            (see `layout.Turn`); 1 counts all entries at every step.
        update_from: ``"snapshot"`` (4 bytes a parameter) or ``"state"`` (Adam and AdamW, 0 bytes).

    Raises:
        ModelError: If updates cannot be worked out from this optimizer's state.
        ValueError: If `update_from` or `histogram_every` is something else.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group_of: Callable[[torch.Tensor], int],
        n_groups: int,
        backend: Callable[[Watched, int, AdamState | None], Backend] | None = None,
        histogram_every: int = 1,
        update_from: str = "snapshot",
    ) -> None:
        if update_from not in ("snapshot", "state"):
            msg = f"update_from={update_from!r} is neither 'snapshot' nor 'state'"
            raise ValueError(msg)
        if histogram_every < 1:
            msg = f"histogram_every={histogram_every}: expected 1 (every entry) or more"
            raise ValueError(msg)
        state = AdamState(optimizer) if update_from == "state" else None
        self._optimizer = optimizer
        self._group_of = group_of
        self._n_groups = n_groups
        self._is_new = True
        self._watched = self._current()
        self._backend = (backend or choose_backend)(self._watched, histogram_every, state)

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        return self._backend.name

    @property
    def parameters(self) -> tuple[torch.Tensor, ...]:
        """The tensors that are watched now; sums are in their order."""
        return self._watched.parameters

    @property
    def memory_bytes(self) -> int:
        """Memory held between steps."""
        return self._backend.memory_bytes()

    def gradients(self, scale: float = 1.0) -> None:
        """Read the gradients, divided by `scale` (a loss scale that is still on them)."""
        if self._is_new:
            # weights may have been loaded since this was made: that is no update
            self._backend.replace(self._watched, list(range(len(self._watched.parameters))))
            self._is_new = False
        self._follow()
        self._backend.gradients(scale)

    def updates(self) -> PendingSums:
        """Read the weights after the step; sums of the gradients read before and the update."""
        return self._backend.updates()

    def leave(self) -> None:
        """Take part no more; where the model is sharded, other ranks are told."""
        if isinstance(self._backend, ShardedBackend):
            self._backend.leave()

    @property
    def is_sharded(self) -> bool:
        """Whether all ranks have to make the same calls."""
        return isinstance(self._backend, ShardedBackend)

    def _current(self) -> Watched:
        live = [
            p
            for p in stepped_parameters(self._optimizer)
            if p.requires_grad and p.is_floating_point()
        ]
        groups = tuple(self._group_of(p) for p in live)
        return Watched.of(live, groups, self._n_groups)

    def _follow(self) -> None:
        """Watch what the optimizer updates now, if that has changed."""
        old = self._watched.parameters
        i = 0
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    if i >= len(old) or old[i] is not p:
                        return self._replace()
                    i += 1
        return None if i == len(old) else self._replace()

    def _replace(self) -> None:
        new = self._current()
        same = len(new.parameters) == len(self._watched.parameters) and all(
            a is b for a, b in zip(new.parameters, self._watched.parameters, strict=True)
        )
        if not same:
            self._backend.replace(new, _positions(self._watched.parameters, new.parameters))
            self._watched = new


def _positions(old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> list[int | None]:
    """Where each tensor of `new` stood in `old`, None if it is new."""
    places = {id(p): i for i, p in enumerate(old)}
    return [places.get(id(p)) for p in new]
