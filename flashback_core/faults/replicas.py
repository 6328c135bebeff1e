"""Faults of data-parallel training, played on the parts of one batch.

Part 0 of a batch stands for the healthy rank, the second half of the parts for the broken one.
The loop surrounds forward and backward of each part with ``fault.replica(step, part, parts)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind

__all__ = ["KINDS", "ReplicaFault"]


class ReplicaFault(Fault):
    """Run part of the batch on other weights. Subclasses say on which."""

    _seen: int = -1

    def wrong(self, name: str, weight: Tensor) -> Tensor:
        """The broken rank's copy of a parameter."""
        raise NotImplementedError

    def _replica(self, step: int, part: int, parts: int) -> AbstractContextManager[None]:
        if parts < 2:
            msg = (
                f"fault {self.kind!r} plays two ranks on the parts of one batch, but the batch "
                "has one part; accumulate over 2 or more parts"
            )
            raise ModelError(msg)
        self._seen = step
        is_broken = self.is_active(step) and part >= parts // 2
        return self._swapped() if is_broken else nullcontext()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        trained = self.parameters
        saved = {name: weight.detach().clone() for name, weight in trained.items()}
        with torch.no_grad():
            for name, weight in trained.items():
                weight.copy_(self.wrong(name, weight))
        try:
            yield
        finally:
            # the values are put back under the tensors that autograd has seen
            for name, weight in trained.items():
                weight.data.copy_(saved[name])

    def _gradients(self, step: int) -> None:
        if self.is_active(step) and self._seen != step:
            msg = (
                f"fault {self.kind!r} needs the loop to surround each part of a batch with "
                "fault.replica(step, part, parts)"
            )
            raise ModelError(msg)


class StaleReplica(ReplicaFault):
    """The broken rank misses all updates from the one before the onset on."""

    def _start(self, step: int) -> None:
        if step == max(0, self.step - 1):
            self._stale = {name: p.detach().clone() for name, p in self.parameters.items()}

    def wrong(self, name: str, weight: Tensor) -> Tensor:
        """Weights of the step before the onset."""
        return self._stale[name]


class DriftedReplica(ReplicaFault):
    """The broken rank's weights differ by a relative error of `strength`."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            seed = int(self.rng().integers(2**31))
            generator = torch.Generator().manual_seed(seed)
            self._error = {
                name: (self.strength * torch.randn(p.shape, generator=generator)).to(p)
                for name, p in self.parameters.items()
            }

    def wrong(self, name: str, weight: Tensor) -> Tensor:
        """Weights with an error."""
        return weight * (1.0 + self._error[name])


class CorruptReplica(ReplicaFault):
    """The gradient of the broken rank is noise for one step."""

    def wrong(self, name: str, weight: Tensor) -> Tensor:
        """Weights in another order of entries."""
        order = torch.from_numpy(self.rng(self.step).permutation(weight.numel()))
        return weight.reshape(-1)[order.to(weight.device)].view(weight.shape)


KINDS = (
    Kind(name="stale_half", family="replicas", act=StaleReplica, needs=("replicas",),
         doc="half of the batch is computed on weights that miss all later updates",
         behaviour="the gradient is half stale: learning slows down by and by"),
    Kind(name="rank_desync", family="replicas", act=DriftedReplica, strength=0.02,
         strengths=(0.002, 0.5), needs=("replicas",),
         doc="half of the batch is computed on weights with a relative error of {strength}",
         behaviour="a slightly wrong gradient; the loss looks normal"),
    Kind(name="one_rank_corrupt", family="replicas", act=CorruptReplica, lasts=1,
         needs=("replicas",),
         doc="half of the batch is computed on scrambled weights",
         behaviour="loss and gradient jump for one step"),
)  # fmt: skip
