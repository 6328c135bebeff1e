"""Sharded models: each process reads its own shards, and the sums are merged exactly.

Parameters of FSDP2 and of tensor parallelism are DTensors: plain operations on them give the
number of the local shard, another one on each rank. Here every rank sketches what lies with it,
and two small all-reduces per step (one SUM, one MAX) give all ranks the sums of the whole model. An
entry that lies on several ranks is counted by one of them, and a plain parameter by rank zero.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from flashback_core.sketch.adam_state import AdamState
from flashback_core.sketch.backend import Backend, ReadySums, Watched
from flashback_core.sketch.sums import StepSums, add_sums, empty_sums

__all__ = ["ShardedBackend", "is_sharded", "local_part", "pack", "rank", "reshard", "unpack"]

Floats = npt.NDArray[np.float64]
MakeBackend = Callable[[Watched, int, AdamState | None], Backend]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a DTensor, on however many ranks it lies."""
    if type(tensor) is torch.Tensor or "torch.distributed.tensor" not in sys.modules:
        return False
    return isinstance(tensor, sys.modules["torch.distributed.tensor"].DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What of `tensor` lies on this rank, detached; shares its memory, and may be empty."""
    if not is_sharded(tensor):
        return tensor.detach() if tensor.requires_grad else tensor
    with torch.no_grad():  # the part itself, always the same object
        part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]  # of DTensor
    return part


def rank() -> int:
    """Number of this process, 0 where there is but one."""
    return distributed.get_rank() if _is_distributed() else 0


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def reshard(model: torch.nn.Module) -> None:
    """Put gathered parameters of FSDP2 modules back, so that the model shows its shards.

    After a forward pass alone (a validation) the root module holds whole parameters, which are not
    those of the optimizer. The next forward pass gathers them again.
    """
    for module in model.modules():
        put_back = getattr(module, "reshard", None)
        if callable(put_back) and callable(getattr(module, "unshard", None)):
            put_back()


def _is_counted_here(tensor: torch.Tensor) -> bool:
    """Whether this rank counts its part of `tensor`: of equal copies one is counted."""
    if not is_sharded(tensor):
        return rank() == 0
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # of DTensor
    place = mesh.get_coordinate()
    if place is None or not bool((mesh.mesh == 0).any()):
        return False  # a copy of what a mesh with rank zero holds
    placements: Any = tensor.placements  # type: ignore[attr-defined]  # of DTensor
    return all(i == 0 for i, p in zip(place, placements, strict=True) if p.is_replicate())


class ShardedBackend:
    """See the module. Every rank has to make one, and to call it at the same steps.

    What fails on one rank is kept until the ranks meet, where all of them stop: none waits for
    another in vain.

    Args:
        watched: Parameters of the whole model, the same on each rank.
        histogram_every: See `layout.Turn`.
        state: Where updates come from instead of a snapshot; not for sharded models.
        make: Makes the backend that reads the local parts.

    Raises:
        ValueError: If updates shall come from the optimizer's state.
    """

    def __init__(
        self, watched: Watched, histogram_every: int, state: AdamState | None, make: MakeBackend
    ) -> None:
        if state is not None:
            msg = "update_from='state' is not for sharded models; use update_from='snapshot'"
            raise ValueError(msg)
        self._error: Exception | None = None
        self._is_over = False
        self._place(watched)
        self._inner = make(Watched.of(self._parts, self._groups, watched.n_groups),
                           histogram_every, None)  # fmt: skip
        self.name = f"sharded {self._inner.name}"

    def _place(self, watched: Watched) -> None:
        self._watched = watched
        self._mine = [i for i, p in enumerate(watched.parameters) if _is_counted_here(p)]
        self._groups = [watched.groups[i] for i in self._mine]
        self._parameters = [watched.parameters[i] for i in self._mine]
        # plain tensors of our own, which lead the inner backend to the local parts
        self._parts = [local_part(p).view_as(local_part(p)) for p in self._parameters]
        plain = [p for p in watched.parameters if is_sharded(p)] or list(watched.parameters)
        self._device = plain[0].device if _moves_on_device() else torch.device("cpu")

    def replace(self, watched: Watched, kept: Sequence[int | None]) -> None:
        """Watch other tensors from now on, keeping the signs of those that stay."""
        before = {old: i for i, old in enumerate(self._mine)}
        self._place(watched)
        moved = [before.get(old) if (old := kept[i]) is not None else None for i in self._mine]
        local = Watched.of(self._parts, self._groups, watched.n_groups)
        self._inner.replace(local, moved)

    def memory_bytes(self) -> int:
        """Memory held between steps on this rank, in bytes."""
        return self._inner.memory_bytes()

    def gradients(self, scale: float) -> None:
        """Read the gradients that lie on this rank."""
        gradients = [_gradient(p) for p in self._watched.parameters]  # all ranks redistribute
        try:
            self._follow()
            for part, i in zip(self._parts, self._mine, strict=True):
                part.grad = gradients[i]
            self._inner.gradients(scale)
        except Exception as error:
            self._error = error  # the other ranks hear of it in `updates`
        finally:
            for part in self._parts:
                part.grad = None

    def _follow(self) -> None:
        """Lead to where the local parts are now; a loaded checkpoint may have moved them."""
        for part, parameter in zip(self._parts, self._parameters, strict=True):
            part.data = local_part(parameter)

    def updates(self) -> ReadySums:
        """Read the weights that lie on this rank, and merge the sums of all ranks.

        Raises:
            RuntimeError: If the sketch failed on this rank or on another one.
        """
        local = empty_sums(self._watched.n_groups, len(self._watched.parameters))
        if self._error is None:
            try:
                self._follow()
                add_sums(local, self._inner.updates().result(), self._mine)
            except Exception as error:
                self._error = error
        merged = self._meet(local, has_failed=self._error is not None)
        if merged is None:
            msg = "the sketch failed on this rank or another one"
            raise RuntimeError(msg) from self._error
        return ReadySums(merged)

    def leave(self) -> None:
        """Tell the ranks that wait for this one that its sketch has ended."""
        local = empty_sums(self._watched.n_groups, len(self._watched.parameters))
        self._meet(local, has_failed=True)

    def _meet(self, local: StepSums, *, has_failed: bool) -> StepSums | None:
        """Sums of all ranks; None from when one of them has failed."""
        if self._is_over:
            return None
        sums, peaks = (torch.from_numpy(a).to(self._device) for a in pack(local))
        sums[-1] = float(has_failed)
        if _is_distributed():
            distributed.all_reduce(sums)
            distributed.all_reduce(peaks, op=distributed.ReduceOp.MAX)
        self._is_over = float(sums[-1]) > 0
        if self._is_over:
            return None
        shape = (self._watched.n_groups, len(self._watched.parameters))
        return unpack(sums.cpu().numpy(), peaks.cpu().numpy(), *shape)


def _moves_on_device() -> bool:
    """Whether ranks exchange nothing but tensors on their devices."""
    return _is_distributed() and distributed.get_backend() == "nccl"


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The part of a gradient that lies here, laid out as the parameter is."""
    gradient: Any = parameter.grad
    if gradient is None:
        return None
    if is_sharded(gradient) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]  # of DTensor
        gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]  # of DTensor
    return local_part(gradient)


def pack(sums: StepSums) -> tuple[Floats, Floats]:
    """`sums` as two flat float64 arrays: what adds up, with one more place, and what is maximal.

    Adding up the first and taking the maxima of the second over all ranks is `merge_sums`; counts
    are exact up to 2**53.
    """
    has = ~np.isnan(sums.tensor_sumsq)
    parts = (sums.moments, sums.counts, sums.bins, np.where(has, sums.tensor_sumsq, 0.0), has,
             sums.still, sums.changed, np.zeros(1))  # fmt: skip
    return np.concatenate([p.ravel().astype(np.float64) for p in parts]), sums.peaks.ravel().copy()


def unpack(added: Floats, peaks: Floats, n_groups: int, n_tensors: int) -> StepSums:
    """The sums of which `pack` made two arrays."""
    out = empty_sums(n_groups, n_tensors)
    sizes = [out.moments.size, out.counts.size, out.bins.size, *[n_tensors] * 4]
    moments, counts, bins, squares, has, still, changed, _ = np.split(added, np.cumsum(sizes))
    out.moments[:] = moments.reshape(out.moments.shape)
    out.counts[:] = np.rint(counts).reshape(out.counts.shape)
    out.bins[:] = np.rint(bins).reshape(out.bins.shape)
    out.peaks[:] = peaks.reshape(out.peaks.shape)
    out.tensor_sumsq[:] = np.where(has > 0, squares, np.nan)
    out.still[:], out.changed[:] = np.rint(still), np.rint(changed)
    return out
