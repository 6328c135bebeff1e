"""KeptGradients: are the gradients of a step the very tensors of the step before?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["KeptGradients"]

_WATCHED = 2


class KeptGradients:
    """Compares the gradient tensors that an update uses with those that the last one used.

    `zero_grad` sets gradients to None, and the backward pass makes new ones. Where it was left out
    the backward pass adds to the old tensors, and the same ones are there again. The values are not
    looked at: a loop that keeps its tensors and sets them to zero has the same ones at every step.
    """

    def __init__(self) -> None:
        self._parameters: Sequence[torch.Tensor] | None = None
        self._watched: list[torch.Tensor] = []
        self._last: list[torch.Tensor | None] = []

    def look(self) -> int:
        """1 if the gradients are those of the last update, 0 if they are new, -1 if unknown."""
        pairs = [(p.grad, g) for p, g in zip(self._watched, self._last, strict=True)]
        known = [now is last for now, last in pairs if now is not None and last is not None]
        return int(all(known)) if known else -1

    def end(self, parameters: Sequence[torch.Tensor]) -> None:
        """Remember the gradients that an update used.

        Args:
            parameters: All that are updated; the same object again means the same tensors.
        """
        if parameters is not self._parameters:
            self._parameters = parameters
            trained = (p for p in parameters if p.requires_grad and p.is_leaf)
            self._watched = sorted(trained, key=torch.Tensor.numel)[:_WATCHED]
        self._last = [p.grad for p in self._watched]
