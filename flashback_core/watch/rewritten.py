"""Rewritten: parameters that something else than the optimizer writes to, as it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch

from flashback_core.errors import ModelError

__all__ = ["Rewritten", "rewritten"]

_BOUNDED = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_ONLY_PASS_ON = frozenset(
    {"accelerate", "deepspeed", "lightning", "pytorch_lightning", "torch", "transformers"}
)
"""Packages whose wrappers of an optimizer write to no weights."""
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Parameters that are not compared between the end of a step and the start of the next.

    Attributes:
        why: The reason, by name of the parameter.
        ids: ``id`` of each of their tensors.
    """

    why: Mapping[str, str] = field(default_factory=dict)
    ids: frozenset[int] = frozenset()

    def event(self) -> dict[str, Any] | None:
        """An event that names them; None where there are none."""
        if not self.why:
            return None
        reasons = sorted(set(self.why.values()))
        tensors = {why: [n for n, w in self.why.items() if w == why] for why in reasons}
        return {
            "event": "rewritten",
            "n_tensors": len(self.why),
            "why": {why: names[:_NAMED] for why, names in tensors.items()},
        }


def rewritten(
    model: torch.nn.Module,
    optimizers: Sequence[tuple[object, torch.optim.Optimizer]],
    names: Mapping[int, str],
    patterns: Sequence[str] = (),
) -> Rewritten:
    """What is known to be rewritten between steps.

    Embeddings with a ``max_norm`` are scaled down in the forward pass. Schedule-free optimizers
    swap other weights in for evaluations, and back with rounding errors (their groups have the
    key ``train_mode``; Defazio et al. 2024). A wrapper may move weights after the optimizer in it
    has stepped (Lookahead). All else is the loop's own, and `patterns` name it.

    Args:
        model: The module that is trained.
        optimizers: Each as it was given, and the one in it that steps.
        names: Name of each parameter by its ``id``.
        patterns: Names of parameters, with ``*`` and ``?``, that the loop writes to.

    Raises:
        ModelError: If a pattern fits no parameter.
    """
    why: dict[int, str] = {}
    for pattern in patterns:
        fitting = [i for i, name in names.items() if fnmatchcase(name, pattern)]
        if not fitting:
            some = ", ".join(list(names.values())[:3])
            msg = (
                f"rewritten={pattern!r} fits no parameter of the {type(model).__name__}; expected "
                f"names such as {some}, with * for any text"
            )
            raise ModelError(msg)
        why |= dict.fromkeys(fitting, "declared")
    for module in model.modules():
        if isinstance(module, _BOUNDED) and module.max_norm is not None:
            why.setdefault(id(module.weight), "max_norm of the embedding")
    for given, optimizer in optimizers:
        writes = given is not optimizer and _package(given) not in _ONLY_PASS_ON
        for group in optimizer.param_groups:
            if writes or "train_mode" in group:
                for parameter in group["params"]:
                    why.setdefault(id(parameter), f"written by {type(given).__name__}")
    known = {i: reason for i, reason in why.items() if i in names}
    return Rewritten({names[i]: reason for i, reason in known.items()}, frozenset(known))


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]
