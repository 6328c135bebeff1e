"""Faults of the update: not applied, lost to rounding, frozen groups."""

from __future__ import annotations

from torch import Tensor

from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind
from flashback_core.faults.places import pick_matrix, siblings

__all__ = ["KINDS", "UpdateUndone"]


class UpdateUndone(Fault):
    """Put all weights back after each update, as when the optimizer holds other tensors."""

    _saved: dict[str, Tensor] | None = None

    def names(self) -> list[str]:
        """Parameters that do not move."""
        return list(self.parameters)

    def _before(self, step: int) -> None:
        if self.is_active(step):
            trained = self.parameters
            self._saved = {name: trained[name].detach().clone() for name in self.names()}

    def _after(self, step: int) -> None:
        for name, saved in (self._saved or {}).items():
            self.parameters[name].copy_(saved)
        self._saved = None


class ModuleFrozen(UpdateUndone):
    """Put the weights of one module back after each update."""

    def _prepare(self) -> None:
        self.settle(tensor=pick_matrix(self.parameters, self.rng(), self.place.tensor))

    def names(self) -> list[str]:
        """The module's parameters."""
        return siblings(self.parameters, str(self.place.tensor))


class UpdateRounded(Fault):
    """Round the weights to bfloat16 in each update."""

    def _after(self, step: int) -> None:
        if self.is_active(step):
            for weight in self.parameters.values():
                weight.copy_(weight.bfloat16())


KINDS = (
    Kind(name="update_not_applied", family="update", act=UpdateUndone,
         doc="updates are computed and not applied",
         behaviour="gradients look alive and no weight moves"),
    Kind(name="layer_frozen", family="update", act=ModuleFrozen,
         doc="the module of {tensor} does not move",
         behaviour="gradients of that module look alive and its update is exactly 0"),
    Kind(name="bf16_update_lost", family="precision", act=UpdateRounded,
         doc="weights are kept in bfloat16, so that small updates are lost",
         behaviour="many updates are exactly 0 and the others are coarse; the loss stalls"),
)  # fmt: skip
