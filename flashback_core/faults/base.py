"""Fault: a defect put into a training run on purpose, at a known step.

`Fault.attach` calls the phases (see `flashback_core.faults.phases`) from hooks, so that a loop
needs no change but for data faults. A loop or an adapter may also call the phases itself, with its
own step number; a phase that it called is not run a second time by the hooks.

Order matters. Hooks run in the order in which they were registered, so **attach a fault before the
recorder**: then the recorder sees the damaged gradient, as it would see a real one. The hooks run
inside ``optimizer.step()``, after the loop's clipping; call ``fault.on_gradients(step)`` between
backward and clipping to damage what clipping sees.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flashback_core.errors import ModelError
from flashback_core.faults.hooks import LoopHooks
from flashback_core.faults.kind import Kind, Place
from flashback_core.faults.phases import Phases
from flashback_core.sketch.parameters import innermost_optimizer

__all__ = ["Fault"]


@dataclass
class _Loop:
    model: nn.Module
    optimizer: Optimizer
    scheduler: Any = None
    hooks: LoopHooks | None = None


class Fault(Phases):
    """One defect of one kind at one step. Made by `flashback_core.faults.make`.

    Args:
        kind: What it is.
        step: First bad step, from 0.
        strength: How strong; None is the kind's usual strength.
        seed: Chooses the place and all random values.
        place: Where; what it leaves open is chosen by `seed`.

    Subclasses fill in ``_prepare`` (once, when attached), ``_start``, ``_batch``, ``_replica``,
    ``_backward``, ``_gradients``, ``_before``, ``_after``, ``_logged`` and ``_undo`` (when
    detached). They are called at every step, also before the first bad one, and ask `is_active`
    or `is_onset`.

    Attributes:
        next_step: Step that the hooks are at; a phase called with a step sets it.
    """

    def __init__(
        self, kind: Kind, *, step: int, strength: float | None, seed: int, place: Place
    ) -> None:
        """Keep what was chosen; `attach` chooses the rest."""
        self.spec = kind
        self.kind = kind.name
        self.step = step
        self.strength = kind.strength if strength is None else strength
        self.seed = seed
        self.place = place
        self._loop: _Loop | None = None
        self.next_step = 0
        self._done: dict[str, int] = {}

    def __repr__(self) -> str:
        """As in the call that makes it."""
        return f"Fault({self.kind!r}, step={self.step}, strength={self.strength:g})"

    # what it says of itself

    @property
    def family(self) -> str:
        """Family of the kind."""
        return self.spec.family

    @property
    def description(self) -> str:
        """One line: what is done, where and when; complete once attached."""
        where = {
            "tensor": self.place.tensor or "a tensor",
            "element": "?" if self.place.element is None else self.place.element,
            "bit": "?" if self.place.bit is None else self.place.bit,
        }
        text = self.spec.doc.format(strength=f"{self.strength:.4g}", **where)
        lasts = self.spec.lasts
        end = "to the end" if lasts is None else "once" if lasts == 1 else f"for {lasts} steps"
        return f"{text}; from step {self.step}, {end}"

    @property
    def expected_behaviour(self) -> str:
        """What is expected to be seen after the fault."""
        return self.spec.behaviour

    def facts(self) -> dict[str, Any]:
        """Kind, family, step, strength, place and texts, as plain values for a table or a log."""
        return {
            "kind": self.kind,
            "family": self.family,
            "step": self.step,
            "strength": self.strength,
            "seed": self.seed,
            **asdict(self.place),
            "description": self.description,
            "expected_behaviour": self.expected_behaviour,
        }

    def is_onset(self, step: int) -> bool:
        """Whether `step` is the first bad step."""
        return step == self.step

    def is_active(self, step: int) -> bool:
        """Whether the fault acts at `step`."""
        lasts = self.spec.lasts
        return step >= self.step and (lasts is None or step < self.step + lasts)

    def rng(self, step: int = -1) -> np.random.Generator:
        """Random numbers of this fault at `step`; -1 is for what is chosen once."""
        return np.random.default_rng([self.seed, zlib.crc32(self.kind.encode()), step + 1])

    # what it acts on

    @property
    def model(self) -> nn.Module:
        """The model it is attached to."""
        return self._attached().model

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer it is attached to."""
        return self._attached().optimizer

    @property
    def scheduler(self) -> Any:
        """The learning-rate scheduler it was given, or None."""
        return self._attached().scheduler

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Parameters that are trained, by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def _attached(self) -> _Loop:
        if self._loop is None:
            msg = f"{self!r} is attached to no loop; call fault.attach(model, optimizer) first"
            raise ModelError(msg)
        return self._loop

    # attach and detach

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: Any = None,
        start_step: int = 0,
    ) -> Self:
        """Let the hooks of `model` and `optimizer` call the phases; attach the recorder after it.

        Steps are counted from `start_step`, one per ``optimizer.step()``. A loop whose GradScaler
        may skip updates calls ``on_step_start(step)`` itself, since no hook sees those steps.

        Args:
            model: The model that is trained.
            optimizer: Its optimizer, or a wrapper that holds it.
            scheduler: Its learning-rate scheduler; schedule faults need it.
            start_step: Step number of the next update.

        Returns:
            The fault.

        Raises:
            ModelError: If it is attached already, or the loop lacks what this kind needs.
        """
        if self._loop is not None:
            msg = f"{self!r} is attached already; detach it, or make one fault per run"
            raise ModelError(msg)
        self._loop = _Loop(model, innermost_optimizer(optimizer), scheduler)
        self.next_step, self._done = start_step, {}
        try:
            self._prepare()
        except Exception:
            self._loop = None
            raise
        self._loop.hooks = LoopHooks(self, model, self._loop.optimizer)
        return self

    def detach(self) -> None:
        """Remove the hooks and give back settings and modes; damage done to weights stays."""
        if self._loop is None:
            return
        self._undo()
        if self._loop.hooks is not None:
            self._loop.hooks.remove()
        self._loop = None

    # the phases: each once per step, whoever calls it

    def _is_first_call(self, phase: str, step: int) -> bool:
        if self._done.get(phase) == step:
            return False
        self._done[phase] = self.next_step = step
        return True

    @torch.no_grad()
    def on_step_start(self, step: int) -> None:
        """See `Phases`."""
        if self._is_first_call("start", step):
            self._start(step)

    def batch(self, step: int, batch: Any) -> Any:
        """The batch to train on in place of `batch`, which is left as it was.

        Args:
            step: The step that trains on it.
            batch: A tensor, a tuple or list (inputs, labels, …) or a dict; samples along the
                first axis. Call it once per step.
        """
        return self._batch(step, batch)

    def batch_(self, step: int, batch: Any) -> None:
        """Like `batch`, into the tensors of `batch`, for callbacks that cannot replace it."""
        for old, new in zip(_tensors(batch), _tensors(self._batch(step, batch)), strict=True):
            if new is not old:
                old.copy_(new)

    def loader(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a data loader, one per step, with data faults in them."""
        for batch in batches:
            yield self.batch(self.next_step, batch)

    def replica(self, step: int, part: int, parts: int) -> AbstractContextManager[None]:
        """See `Phases`."""
        return self._replica(step, part, parts)

    @torch.no_grad()
    def on_backward(self, step: int) -> None:
        """See `Phases`."""
        if self._is_first_call("backward", step):
            self._backward(step)

    @torch.no_grad()
    def on_gradients(self, step: int) -> None:
        """See `Phases`; does ``on_backward`` first where the loop has no such place."""
        self.on_backward(step)
        if self._is_first_call("gradients", step):
            self._gradients(step)

    @torch.no_grad()
    def before_update(self, step: int) -> None:
        """See `Phases`."""
        if self._is_first_call("before", step):
            self._before(step)

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """See `Phases`."""
        if self._is_first_call("after", step):
            self._after(step)

    def logged_loss(self, step: int, loss: float) -> float:
        """See `Phases`."""
        return self._logged(step, loss)

    # what subclasses fill in

    def _prepare(self) -> None:
        """Choose the place; raise ModelError where the loop lacks something."""

    def _start(self, step: int) -> None: ...

    def _batch(self, step: int, batch: Any) -> Any:
        return batch

    def _replica(self, step: int, part: int, parts: int) -> AbstractContextManager[None]:
        return nullcontext()

    def _backward(self, step: int) -> None: ...

    def _gradients(self, step: int) -> None: ...

    def _before(self, step: int) -> None: ...

    def _after(self, step: int) -> None: ...

    def _logged(self, step: int, loss: float) -> float:
        return loss

    def _undo(self) -> None: ...

    def settle(self, **chosen: Any) -> None:
        """Note the parts of the place that were chosen."""
        self.place = replace(self.place, **chosen)

    def gradient(self, name: str) -> Tensor:
        """The gradient of the parameter `name`.

        Raises:
            ModelError: If it has none at this step.
        """
        gradient = self.parameters[name].grad
        if gradient is None:
            msg = (
                f"fault {self.kind!r} acts on the gradient of {name!r}, which has none at step "
                f"{self.next_step}; choose another tensor with place="
            )
            raise ModelError(msg)
        return gradient

    def gradients(self) -> list[Tensor]:
        """All gradients that are there, in the order of the parameters."""
        return [p.grad for p in self.parameters.values() if p.grad is not None]


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = batch.values()
    return [item for item in batch if isinstance(item, Tensor)]


def is_positive(value: float) -> bool:
    """Whether `value` is a finite number above 0."""
    return math.isfinite(value) and value > 0
