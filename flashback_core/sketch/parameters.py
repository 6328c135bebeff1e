"""Which tensors of a model an optimizer updates, under which names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from flashback_core.errors import ModelError
from flashback_core.groups import ParameterInfo, clean_name

__all__ = ["NamedParameters", "innermost_optimizer", "named_parameters", "stepped_parameters"]

_INNER = ("base_optimizer", "optimizer", "_optimizer", "inner_optimizer")


@dataclass(frozen=True, slots=True)
class NamedParameters:
    """Parameters of a model, each tensor once.

    Attributes:
        tensors: The parameters in the model's order; of tied ones the first name counts.
        infos: Name, shape and owning class of each.
        skipped: Names of parameters that have no metrics (complex or integer).
    """

    tensors: tuple[torch.nn.Parameter, ...]
    infos: tuple[ParameterInfo, ...]
    skipped: tuple[str, ...]


def named_parameters(model: torch.nn.Module) -> NamedParameters:
    """Every floating-point parameter of `model`.

    Raises:
        ModelError: If `model` is no module, or none of its parameters can be trained.
    """
    if not isinstance(model, torch.nn.Module):
        msg = f"model is a {type(model).__name__}; expected a torch.nn.Module"
        raise ModelError(msg)
    owners = {name: type(module).__name__ for name, module in model.named_modules()}
    tensors, infos, skipped = [], [], []
    for name, tensor in model.named_parameters():
        if not tensor.is_floating_point():
            skipped.append(clean_name(name))
            continue
        owner = owners.get(name.rpartition(".")[0], "")
        tensors.append(tensor)
        infos.append(ParameterInfo(name=clean_name(name), shape=tuple(tensor.shape), module=owner))
    if not any(t.requires_grad for t in tensors):
        msg = (
            f"{type(model).__name__} has {len(tensors)} parameters and none with "
            "requires_grad=True; give the model that is trained, before it is frozen"
        )
        raise ModelError(msg)
    return NamedParameters(tuple(tensors), tuple(infos), tuple(skipped))


def stepped_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors in the optimizer's groups, each once, in order."""
    found = (p for group in optimizer.param_groups for p in group["params"])
    return list({id(p): p for p in found}.values())


def innermost_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer that really steps, inside wrappers such as SAM, Lookahead or accelerate's.

    Raises:
        ModelError: If there is no torch optimizer in it.
    """
    seen: set[int] = set()
    while id(optimizer) not in seen:
        seen.add(id(optimizer))
        inner = next((getattr(optimizer, n, None) for n in _INNER if hasattr(optimizer, n)), None)
        if not (hasattr(inner, "param_groups") and hasattr(inner, "step")):
            break
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        msg = (
            f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer "
            "(or a wrapper that holds one)"
        )
        raise ModelError(msg)
    return optimizer


def check_owned(
    optimizers: Sequence[torch.optim.Optimizer], tensors: Iterable[torch.Tensor], model: str
) -> None:
    """Refuse optimizers whose parameters are not those of the model.

    Raises:
        ModelError: If an optimizer updates tensors that `model` does not have.
    """
    own = {id(t) for t in tensors}
    for optimizer in optimizers:
        stepped = stepped_parameters(optimizer)
        foreign = [p for p in stepped if id(p) not in own and p.is_floating_point()]
        if foreign:
            msg = (
                f"{type(optimizer).__name__} updates {len(stepped)} tensors, of which "
                f"{len(foreign)} are not parameters of {model} (first shape "
                f"{tuple(foreign[0].shape)}); give the module that holds all of them"
            )
            raise ModelError(msg)
