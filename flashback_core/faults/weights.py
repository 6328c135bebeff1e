"""Faults of the weights between two steps: flipped, rounded, scaled, replaced."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.gradients import ElementFault
from flashback_core.faults.kind import Kind
from flashback_core.faults.places import flip_bit, is_embedding

__all__ = ["KINDS", "WeightFlip", "WeightsReplaced"]


class WeightFlip(ElementFault):
    """Flip one bit of one weight, once; a result that is not finite gets one more bit flipped."""

    def _start(self, step: int) -> None:
        if not self.is_onset(step):
            return
        weight = self.parameters[self.tensor]
        flip_bit(weight, self.element, self.bit)
        if not bool(torch.isfinite(weight).all()):
            flip_bit(weight, self.element, 23)


class BufferFlip(Fault):
    """Flip bit 30 of one element of a buffer, such as a running variance."""

    def _prepare(self) -> None:
        buffers = {n: b for n, b in self.model.named_buffers() if b.is_floating_point()}
        if not buffers:
            msg = f"fault {self.kind!r} needs a model with buffers of floats, as batch norm has"
            raise ModelError(msg)
        rng = self.rng()
        name = self.place.tensor or sorted(buffers)[int(rng.integers(len(buffers)))]
        self._buffer = buffers[name]
        self.settle(tensor=name, element=int(rng.integers(self._buffer.numel())), bit=30)

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            flip_bit(self._buffer, int(self.place.element or 0), 30)


class Rounded(Fault):
    """Round all weights to bfloat16 at the start of every step, outside the optimizer."""

    def _start(self, step: int) -> None:
        if self.is_active(step):
            for weight in self.parameters.values():
                weight.copy_(weight.bfloat16())


class QueriesScaled(Fault):
    """Multiply the query and key weights of one attention layer by `strength`."""

    def _prepare(self) -> None:
        self._rows = queries_and_keys(self.parameters, self.kind, self.place.tensor)
        self.settle(tensor=self._rows[0][0])

    def _start(self, step: int) -> None:
        if self.is_active(step):
            for name, rows in self._rows:
                self.parameters[name][:rows].mul_(self.strength)


class QueriesGrow(QueriesScaled):
    """Multiply the query and key weights of all attention layers by 1 + `strength` a step."""

    def _prepare(self) -> None:
        self._rows = queries_and_keys(self.parameters, self.kind, self.place.tensor or "*")
        self.settle(tensor=self.place.tensor or "every attention layer")

    def _start(self, step: int) -> None:
        if self.is_active(step):
            for name, rows in self._rows:
                self.parameters[name][:rows].mul_(1.0 + self.strength)


def queries_and_keys(
    parameters: dict[str, Tensor], kind: str, pattern: str | None
) -> list[tuple[str, int]]:
    """Weights of queries and keys with the number of their leading rows that are such.

    Args:
        parameters: Trained parameters by name.
        kind: Fault kind, for the message.
        pattern: ``*`` is all layers, None the first; a name is that one.

    Raises:
        ModelError: If no parameter is called like one of queries and keys.
    """
    joint = ("c_attn.weight", "qkv.weight", "in_proj_weight", "qkv_proj.weight")
    single = ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight")
    found = [(n, 2 * len(p) // 3) for n, p in parameters.items() if n.endswith(joint)]
    apart = [(n, len(p)) for n, p in parameters.items() if n.endswith(single)]
    if pattern is not None and pattern != "*":
        found = [item for item in found + apart if item[0] == pattern]
        apart = []
    if not found and not apart:
        msg = (
            f"fault {kind!r} needs attention: a trained weight whose name ends in "
            f"{', '.join(joint + single)}"
        )
        raise ModelError(msg)
    if pattern is None:
        return found[:1] or apart[:2]
    return found or apart


class WeightsReplaced(Fault):
    """Replace all weights, once, by what `_replacement` gives. Needs a copy of the weights."""

    def _prepare(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Note the weights of now."""
        self._kept = {name: p.detach().clone() for name, p in self.parameters.items()}

    def put_back(self) -> None:
        """Set the weights to what was noted."""
        for name, kept in self._kept.items():
            self.parameters[name].copy_(kept)


class OldWeights(WeightsReplaced):
    """Restore the weights of `strength` steps before; the optimizer's state stays."""

    def _start(self, step: int) -> None:
        if step == max(0, self.step - max(1, round(self.strength))):
            self.keep()
        if self.is_onset(step):
            self.put_back()


class RolledBack(WeightsReplaced):
    """Set the weights back to those of the onset every `strength` steps."""

    def _start(self, step: int) -> None:
        period = max(1, round(self.strength))
        if step == max(0, self.step - period):
            self.keep()
        if self.is_active(step) and (step - self.step) % period == 0:
            self.put_back()


class AveragedWeights(WeightsReplaced):
    """Replace the weights by their exponential average, as when the wrong file is resumed."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self.put_back()

    def _after(self, step: int) -> None:
        if step >= self.step:
            return
        if not self._kept:
            self.keep()
        for name, weight in self.parameters.items():
            self._kept[name].lerp_(weight, 1.0 - min(self.strength, 0.9999))


class HeadRebuilt(Fault):
    """Overwrite the output head by the token embedding, as when a tied head is not saved."""

    def _prepare(self) -> None:
        trained = self.parameters
        tokens = [
            name for name, module in self.model.named_modules() if isinstance(module, nn.Embedding)
        ]
        pairs = [
            (f"{token}.weight", head)
            for token in tokens
            for head, weight in trained.items()
            if "head" in head
            and f"{token}.weight" in trained
            and weight.shape == trained[f"{token}.weight"].shape
        ]
        if not pairs:
            msg = (
                f"fault {self.kind!r} needs a token embedding and an untied output head "
                "('head' in its name) of one shape"
            )
            raise ModelError(msg)
        self._pair = pairs[0]
        self.settle(tensor=pairs[0][1])

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            embedding, head = self._pair
            self.parameters[head].copy_(self.parameters[embedding])


class RouterCollapse(Fault):
    """Raise the router's bias for one expert by `strength` a step, in every layer."""

    def _prepare(self) -> None:
        trained = self.parameters
        self._biases = [n for n in trained if n.endswith(("router.bias", "gate.bias"))]
        if not self._biases:
            msg = f"fault {self.kind!r} needs a mixture of experts with a 'router.bias'"
            raise ModelError(msg)
        n_experts = trained[self._biases[0]].numel()
        self.settle(tensor=self._biases[0], element=int(self.rng().integers(n_experts)))

    def _start(self, step: int) -> None:
        if self.is_active(step):
            for name in self._biases:
                self.parameters[name][int(self.place.element or 0)] += self.strength


class WrongLayer(Fault):
    """Multiply the output of one layer by 1 + `strength`, as a wrongly compiled kernel would."""

    _is_on = False

    def _prepare(self) -> None:
        names = [
            name
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear | nn.Conv2d | nn.LSTM) and not is_embedding(name)
        ]
        if not names:
            msg = f"fault {self.kind!r} needs a linear, convolution or LSTM layer"
            raise ModelError(msg)
        name = self.place.tensor or names[int(self.rng().integers(len(names)))]
        layer = dict(self.model.named_modules()).get(name)
        if layer is None:
            msg = f"fault {self.kind!r}: no layer is called {name!r}; layers: {', '.join(names)}"
            raise ModelError(msg)
        self.settle(tensor=name)
        self._handle = layer.register_forward_hook(self._scale)

    def _start(self, step: int) -> None:
        self._is_on = self.is_active(step)

    def _scale(self, module: nn.Module, args: object, output: object) -> object:
        if not self._is_on:
            return None
        if isinstance(output, tuple):
            return (output[0] * (1.0 + self.strength), *output[1:])
        return output * (1.0 + self.strength) if isinstance(output, Tensor) else None

    def _undo(self) -> None:
        self._handle.remove()


_FLIPPED = "bit {bit} of weight {element} of {tensor} flipped"

KINDS = (
    Kind(name="w_flip_exp", family="weight_bits", act=WeightFlip, bits=(30, 30), lasts=1,
         doc=_FLIPPED, behaviour="one weight is huge; the loss jumps or becomes NaN"),
    Kind(name="w_flip_exp_lo", family="weight_bits", act=WeightFlip, bits=(25, 25), lasts=1,
         doc=_FLIPPED, behaviour="one weight is a few powers of two off; hardly anything shows"),
    Kind(name="w_flip_mant_hi", family="weight_bits", act=WeightFlip, bits=(22, 22), lasts=1,
         doc=_FLIPPED, behaviour="nothing that a statistic shows; a digest of the weights does"),
    Kind(name="w_flip_mant_lo", family="weight_bits", act=WeightFlip, bits=(8, 8), lasts=1,
         doc=_FLIPPED, behaviour="nothing that a statistic shows; a digest of the weights does"),
    Kind(name="buffer_flip", family="weight_bits", act=BufferFlip, lasts=1, needs=("buffers",),
         doc="bit {bit} of element {element} of the buffer {tensor} flipped",
         behaviour="training shows nothing; evaluation is broken"),
    Kind(name="bf16_master", family="precision", act=Rounded,
         doc="all weights are rounded to bfloat16 before each step",
         behaviour="small updates are lost; the loss stalls later"),
    Kind(name="attn_scale", family="attention", act=QueriesScaled, strength=2.0,
         strengths=(1.05, 4.0), lasts=1, needs=("attention",),
         doc="query and key weights of {tensor} × {strength}",
         behaviour="attention is sharper at once; gradients of that layer jump"),
    Kind(name="attn_blowup", family="attention", act=QueriesScaled, strength=1.02,
         strengths=(1.005, 1.05), lasts=120, needs=("attention",),
         doc="query and key weights of {tensor} × {strength} at each step",
         behaviour="attention collapses within a hundred steps; the loss climbs"),
    Kind(name="qk_growth", family="attention", act=QueriesGrow, strength=0.003,
         strengths=(0.0005, 0.01), lasts=600, needs=("attention",),
         doc="query and key weights of {tensor} grow by a share of {strength} a step",
         behaviour="weight norms of queries and keys climb for long before the loss shows it"),
    Kind(name="resume_old_weights", family="resume", act=OldWeights, lasts=1, strength=50.0,
         strengths=(5.0, 200.0), doc="weights of {strength} steps before, optimizer state of now",
         behaviour="the loss steps back up to what it was then"),
    Kind(name="weights_rolled_back", family="resume", act=RolledBack, strength=50.0,
         strengths=(20.0, 100.0), doc="weights are set back every {strength} steps",
         behaviour="the loss is a saw: it falls and jumps back"),
    Kind(name="resume_from_ema", family="resume", act=AveragedWeights, lasts=1, strength=0.98,
         doc="weights are replaced by their average of decay {strength}",
         behaviour="the loss jumps (often down) and training goes on from elsewhere"),
    Kind(name="untied_head_on_resume", family="resume", act=HeadRebuilt, lasts=1, needs=("head",),
         doc="{tensor} is overwritten by the token embedding",
         behaviour="a large loss spike that heals within some hundred steps"),
    Kind(name="router_collapse", family="experts", act=RouterCollapse, strength=0.05,
         strengths=(0.01, 0.3), needs=("router",),
         doc="the router's bias for expert {element} rises by {strength} a step",
         behaviour="one expert gets all tokens; gradients of the others vanish"),
    Kind(name="compile_divergence", family="forward", act=WrongLayer, strength=0.02,
         strengths=(0.002, 0.2), doc="the output of {tensor} is a share of {strength} too large",
         behaviour="the loss rises for some steps until the weights make up for it"),
)  # fmt: skip
