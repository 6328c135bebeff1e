"""Faults of the configuration: optimizer settings, dropout, train and eval mode."""

from __future__ import annotations

from typing import Any

from torch import nn

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind

__all__ = ["KINDS", "GroupSetting"]

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class GroupSetting(Fault):
    """Change a setting of the optimizer's groups until detached. Subclasses name it."""

    key = ""

    def changed(self, value: Any) -> Any:
        """The wrong value for the right one."""
        raise NotImplementedError

    def _prepare(self) -> None:
        self._saved: list[tuple[dict[str, Any], Any]] = []
        groups = self.optimizer.param_groups
        if not any(self._has(group) for group in groups):
            msg = (
                f"fault {self.kind!r} changes {self.key!r}, which {type(self.optimizer).__name__} "
                "has not or has at 0; take an optimizer with it"
            )
            raise ModelError(msg)

    def _has(self, group: dict[str, Any]) -> bool:
        return bool(group.get(self.key))

    def _start(self, step: int) -> None:
        if not self.is_onset(step):
            return
        for group in self.optimizer.param_groups:
            if self._has(group):
                self._saved.append((group, group[self.key]))
                group[self.key] = self.changed(group[self.key])

    def _undo(self) -> None:
        for group, value in self._saved:
            group[self.key] = value


class Epsilon(GroupSetting):
    """Set Adam's eps to `strength`."""

    key = "eps"

    def _has(self, group: dict[str, Any]) -> bool:
        return isinstance(group.get(self.key), float)

    def changed(self, value: Any) -> Any:
        """The wrong eps."""
        return self.strength


class WeightDecay(GroupSetting):
    """Multiply the weight decay by `strength`."""

    key = "weight_decay"

    def changed(self, value: Any) -> Any:
        """The wrong decay."""
        return value * self.strength


class Beta2(GroupSetting):
    """Set the decay of the second moment to `strength`."""

    key = "betas"

    def changed(self, value: Any) -> Any:
        """The wrong betas."""
        return (value[0], self.strength)


class DropoutSetting(Fault):
    """Set every dropout probability to `strength`."""

    def _prepare(self) -> None:
        found = [m for m in self.model.modules() if isinstance(m, _DROPOUTS)]
        self._saved = [(module, module.p) for module in found]
        if not any(p > 0 for _, p in self._saved):
            msg = f"fault {self.kind!r} needs a model with dropout above 0; this one has none"
            raise ModelError(msg)

    def probability(self, p: float) -> float:
        """The wrong probability for `p`."""
        return min(self.strength, 0.95)

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            for module, p in self._saved:
                module.p = self.probability(p)

    def _undo(self) -> None:
        for module, p in self._saved:
            module.p = p


class DropoutOff(DropoutSetting):
    """Set every dropout probability to 0."""

    def probability(self, p: float) -> float:
        """Always 0."""
        return 0.0


class StuckInEval(Fault):
    """Leave the model in evaluation mode."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self._modes = [(m, m.training) for m in self.model.modules()]
        if self.is_active(step):
            self.model.eval()

    def _undo(self) -> None:
        for module, is_training in getattr(self, "_modes", ()):
            module.training = is_training


KINDS = (
    Kind(name="eps_small", family="settings", act=Epsilon, strength=1e-30, needs=("eps",),
         doc="eps of the optimizer is {strength}",
         behaviour="only weights with almost no gradient move differently"),
    Kind(name="eps_large", family="settings", act=Epsilon, strength=1e-3, strengths=(1e-5, 1e-2),
         needs=("eps",), doc="eps of the optimizer is {strength}",
         behaviour="updates shrink where gradients are small"),
    Kind(name="wd_x100", family="settings", act=WeightDecay, strength=100.0,
         strengths=(5.0, 300.0), needs=("weight_decay",), doc="weight decay × {strength}",
         behaviour="weight norms fall steadily"),
    Kind(name="beta2_changed", family="settings", act=Beta2, strength=0.9, needs=("betas",),
         doc="beta2 of the optimizer is {strength}",
         behaviour="updates are noisier; the second moment follows the gradient faster"),
    Kind(name="dropout_off", family="mode", act=DropoutOff, needs=("dropout",),
         doc="dropout is 0",
         behaviour="the training loss falls a little at once; the model overfits later"),
    Kind(name="dropout_high", family="mode", act=DropoutSetting, strength=0.3,
         strengths=(0.15, 0.8), needs=("dropout",), doc="dropout is {strength}",
         behaviour="the training loss rises a little at once"),
    Kind(name="stuck_in_eval", family="mode", act=StuckInEval, needs=("dropout",),
         doc="the model stays in evaluation mode",
         behaviour="no dropout and frozen batch statistics; the loss is smoother, not worse"),
)  # fmt: skip
