"""Faults of the gradient: bits, range, scale, noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind
from flashback_core.faults.places import flip_bit, pick_matrix, siblings

__all__ = ["KINDS", "ElementFault", "GradientFlip"]

FP8_MAX = 448.0  # largest finite float8_e4m3fn
FP16_MAX = 65504.0


class ElementFault(Fault):
    """Acts on one element of one tensor, chosen when attached."""

    def _prepare(self) -> None:
        rng = self.rng()
        name = pick_matrix(self.parameters, rng, self.place.tensor)
        element = int(rng.integers(self.parameters[name].numel()))
        low, high = self.spec.bits or (30, 30)
        bit = int(rng.integers(low, high + 1))
        self.settle(
            tensor=name,
            element=element if self.place.element is None else self.place.element,
            bit=bit if self.place.bit is None else self.place.bit,
        )
        if not 0 <= self.element < self.parameters[name].numel():
            msg = f"element {self.element} is not in {name!r} of {self.parameters[name].numel()}"
            raise ModelError(msg)

    @property
    def tensor(self) -> str:
        """Name of the parameter."""
        return str(self.place.tensor)

    @property
    def element(self) -> int:
        """Position in the flattened parameter."""
        return int(self.place.element or 0)

    @property
    def bit(self) -> int:
        """Bit of the element."""
        return int(self.place.bit or 0)


class GradientFlip(ElementFault):
    """Flip one bit of one gradient element."""

    def _backward(self, step: int) -> None:
        if self.is_active(step):
            flip_bit(self.gradient(self.tensor), self.element, self.bit)


class GradientValue(ElementFault):
    """Put NaN into one gradient element."""

    value = float("nan")

    def _backward(self, step: int) -> None:
        if self.is_active(step):
            gradient = self.gradient(self.tensor)
            gradient[np.unravel_index(self.element, gradient.shape)] = self.value


class GradientInf(GradientValue):
    """Put infinity into one gradient element."""

    value = float("inf")


class Quantised(Fault):
    """Send the gradients through float8 with a scale that makes the largest leave the range."""

    _scale: float | None = None

    def _backward(self, step: int) -> None:
        if not self.is_active(step):
            return
        if self._scale is None:
            largest = max(float(g.abs().max()) for g in self.gradients())
            self._scale = FP8_MAX * self.strength / max(largest, 1e-30)
        for gradient in self.gradients():
            gradient.copy_(self._through(gradient * self._scale) / self._scale)

    def _through(self, scaled: Tensor) -> Tensor:
        return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(scaled.dtype)


class QuantisedToInf(Quantised):
    """Like `Quantised`, but values out of range become infinite."""

    def _through(self, scaled: Tensor) -> Tensor:
        beyond = torch.full_like(scaled, float("inf")).copysign(scaled)
        return torch.where(scaled.abs() > FP8_MAX, beyond, scaled)


class HalfOverflow(Quantised):
    """Send the gradients through float16 with a scale that is too large."""

    def _through(self, scaled: Tensor) -> Tensor:
        return (scaled * (FP16_MAX / FP8_MAX)).half().to(scaled.dtype) * (FP8_MAX / FP16_MAX)


class ScaledGradient(Fault):
    """Multiply all gradients."""

    def factor(self, step: int) -> float:
        """The factor at `step`."""
        return self.strength

    def _gradients(self, step: int) -> None:
        if self.is_active(step):
            for gradient in self.gradients():
                gradient.mul_(self.factor(step))


class GrowingGradient(ScaledGradient):
    """Multiply all gradients by a factor that grows by `strength` a step, at most a millionfold."""

    def factor(self, step: int) -> float:
        """Grows from just above 1."""
        return float(min(1e6, (1.0 + self.strength) ** (step - self.step + 1)))


class GradientNoise(Fault):
    """Add Gaussian noise to all gradients, in units of their standard deviation."""

    def _gradients(self, step: int) -> None:
        if not self.is_active(step):
            return
        generator = torch.Generator().manual_seed(int(self.rng(step).integers(2**31)))
        gradients = self.gradients()
        flat = torch.cat([g.reshape(-1).float() for g in gradients])
        sigma = self.strength * float(flat.std())
        for gradient in gradients:
            noise = torch.randn(gradient.shape, generator=generator) * sigma
            gradient.add_(noise.to(gradient.device, gradient.dtype))


class ZeroGradient(Fault):
    """Zero the gradients of one module."""

    def _prepare(self) -> None:
        self.settle(tensor=pick_matrix(self.parameters, self.rng(), self.place.tensor))

    def _names(self) -> list[str]:
        return siblings(self.parameters, str(self.place.tensor))

    def _gradients(self, step: int) -> None:
        if self.is_active(step):
            for name in self._names():
                self.gradient(name).zero_()


class ZeroGradientGroup(ZeroGradient):
    """Zero the gradients of every module of one role, for example all `c_fc`."""

    def _names(self) -> list[str]:
        role = _role(str(self.place.tensor))
        trained = self.parameters
        return [n for n in trained if _role(n) == role and trained[n].grad is not None]


def _role(name: str) -> str:
    return ".".join(part for part in name.split(".")[-3:-1] if not part.isdigit())


class KeptGradients(Fault):
    """Add up gradients over steps, as without ``zero_grad``."""

    _kept: dict[str, tuple[Tensor, Tensor]]

    def _prepare(self) -> None:
        self._kept = {}

    def _gradients(self, step: int) -> None:
        # the step before is kept too: zero_grad is first left out after it
        if step < self.step - 1:
            return
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            if self.is_active(step) and name in self._kept:
                _add_to_kept(parameter, *self._kept[name])
            self._kept[name] = parameter.grad, parameter.grad.clone()


def _add_to_kept(parameter: Tensor, kept: Tensor, values: Tensor) -> None:
    """Add the new gradient to the old tensor, as a backward pass does that finds one."""
    new = parameter.grad
    assert new is not None  # the caller has looked
    if kept is new:  # the loop keeps its tensors and sets them to zero
        new.add_(values)
    else:
        parameter.grad = kept.add_(new)


class StaleBlock(ElementFault):
    """Replace a block of one gradient by what it was a step before, as a broken copy would."""

    _old: Tensor | None = None

    def _gradients(self, step: int) -> None:
        gradient = self.gradient(self.tensor) if step >= self.step - 1 else None
        if gradient is None:
            return
        fresh = gradient.clone()
        if self.is_active(step):
            flat, old = gradient.reshape(-1), fresh.new_zeros(gradient.numel())
            if self._old is not None:
                old.copy_(self._old.reshape(-1))
            length = max(1, round(self.strength * gradient.numel()))
            start = min(self.element, gradient.numel() - length)
            flat[start : start + length] = old[start : start + length]
            gradient.copy_(flat.view(gradient.shape))
        self._old = fresh


class UnclippedGradient(Fault):
    """Undo the loop's clipping: give the optimizer the gradients from before it."""

    _saved: list[Tensor] | None = None

    def _gradients(self, step: int) -> None:
        if self.is_active(step):
            self._saved = [g.clone() for g in self.gradients()]

    def _before(self, step: int) -> None:
        if self._saved is not None:
            for gradient, saved in zip(self.gradients(), self._saved, strict=True):
                gradient.copy_(saved)
        self._saved = None


KINDS = (
    Kind(name="bit_flip", family="gradient_bits", act=GradientFlip, lasts=1, bits=(30, 30),
         doc="bit {bit} of gradient element {element} of {tensor} flipped",
         behaviour="one gradient entry is huge for one step; clipping may stop the whole update"),
    Kind(name="grad_flip_exp", family="gradient_bits", act=GradientFlip, lasts=1, bits=(24, 28),
         doc="exponent bit {bit} of gradient element {element} of {tensor} flipped",
         behaviour="one gradient entry is up to 2^64 times larger or smaller for one step"),
    Kind(name="grad_flip_mant", family="gradient_bits", act=GradientFlip, lasts=1, bits=(20, 20),
         doc="mantissa bit {bit} of gradient element {element} of {tensor} flipped",
         behaviour="nothing that a statistic shows; a replay of the step differs"),
    Kind(name="nan_one", family="nonfinite", act=GradientValue, lasts=1,
         doc="gradient element {element} of {tensor} is NaN",
         behaviour="one non-finite gradient entry, then NaN weights unless the step is skipped"),
    Kind(name="lowprec_overflow", family="precision", act=Quantised, strength=8.0,
         strengths=(2.0, 64.0),
         doc="gradients sent through float8 (e4m3), scaled so that the largest is {strength} times "
             "out of range",
         behaviour="large gradients saturate, small ones become zero"),
    Kind(name="fp8_overflow_inf", family="precision", act=QuantisedToInf, strength=4.0,
         strengths=(1.05, 16.0), lasts=3,
         doc="gradient entries beyond the float8 range become infinite (range left {strength} "
             "times)",
         behaviour="non-finite gradients, then NaN weights unless the loop skips the step"),
    Kind(name="fp16_overflow", family="precision", act=HalfOverflow, strength=4.0,
         strengths=(1.05, 16.0), lasts=1,
         doc="gradients overflow float16 {strength} times",
         behaviour="infinite gradients for one step, then NaN unless the loop skips the step"),
    Kind(name="overflow_skip_loop", family="precision", act=GradientInf, needs=("scaler",),
         doc="gradient element {element} of {tensor} overflows at every step",
         behaviour="the loss scaler skips every update and halves its scale down to its floor"),
    Kind(name="grad_x4", family="gradient_scale", act=ScaledGradient, strength=4.0,
         strengths=(1.5, 16.0), doc="gradients × {strength}",
         behaviour="gradient norms jump; with Adam or clipping the update hardly changes"),
    Kind(name="grad_noise", family="gradient_scale", act=GradientNoise, strength=0.5,
         strengths=(0.05, 2.0),
         doc="noise of {strength} standard deviations added to the gradients",
         behaviour="gradient norms and sign flips rise; the loss rises slowly"),
    Kind(name="clip_saturated", family="gradient_scale", act=GrowingGradient, strength=0.02,
         strengths=(0.005, 0.2), needs=("clip",),
         doc="gradients grow by a share of {strength} a step, hidden by clipping",
         behaviour="the gradient norm climbs and every step is clipped; updates look as before"),
    Kind(name="grad_zero_layer", family="zero_gradient", act=ZeroGradient,
         doc="gradient of the module of {tensor} is zero",
         behaviour="that module's gradient is exactly 0; only weight decay and momentum move it"),
    Kind(name="zero_grad_group", family="zero_gradient", act=ZeroGradientGroup,
         doc="gradients of all modules like {tensor} are zero",
         behaviour="the gradient of that role is exactly 0 in every layer"),
    Kind(name="zero_grad_missing", family="gradient_scale", act=KeptGradients,
         doc="gradients are added up from step to step",
         behaviour="gradient norms grow step by step and point back in time"),
    Kind(name="comm_corrupt", family="replicas", act=StaleBlock, strength=0.25,
         strengths=(0.02, 1.0),
         doc="a share of {strength} of the gradient of {tensor} is that of the step before",
         behaviour="part of one gradient repeats: fewer sign flips there, little else"),
    Kind(name="clip_dropped", family="settings", act=UnclippedGradient, needs=("clip",),
         doc="gradient clipping is not applied",
         behaviour="updates are larger where clipping used to bind"),
)  # fmt: skip
