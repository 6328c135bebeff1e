"""Several processes, one loss: the mean over the ranks, which the averaged gradient belongs to.

Processes of one machine that train in host memory put their losses into a piece of shared memory:
each writes its loss before the backward pass whose gradients all ranks wait for, so that it is
there when rank zero has made the step, and nobody waits for it. All others make one small
all-reduce a step, begun before the update and read after it; with NCCL the host does not wait.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from flashback_core.warn import Guard

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder

__all__ = ["AllReduce", "SharedLoss", "SharedMemory", "bad_ranks"]

_PART, _EXCHANGE = "the mean loss of the ranks", "the exchange of losses"
_SLOTS = 4
"""Steps that shared memory holds; a rank can be ahead of another one by a single step."""

_PAIR = struct.Struct("2d")
"""What a rank says of a step: its loss, and which step it is."""

_MOST_NOTES = 20


class SharedMemory:
    """Losses of the last steps of all ranks, in a file that all of them have mapped.

    Args:
        path: The file, made by rank zero.
        rank: Number of this process.
        n_ranks: How many there are.
    """

    def __init__(self, path: Path, rank: int, n_ranks: int) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SLOTS * n_ranks * _PAIR.size)
        self._rank, self._n_ranks = rank, n_ranks
        self._row = struct.Struct(f"{2 * n_ranks}d")

    def write(self, step: int, loss: Any) -> None:
        """Say what the loss of `step` is so far; the last word counts."""
        place = (step % _SLOTS) * self._n_ranks + self._rank
        # the step counts from 1, since a new file is all zeros
        _PAIR.pack_into(self._memory, place * _PAIR.size, float(loss), step + 1.0)

    def send(self, step: int, loss: Any) -> None:
        """Nothing: it has been written."""

    def read(self, step: int) -> tuple[float | None, list[float]]:
        """Mean loss of `step`, and the losses by rank; 0.0 of a rank that is not there yet."""
        row = self._row.unpack_from(self._memory, (step % _SLOTS) * self._row.size)
        is_there = [said == step + 1 for said in row[1::2]]
        losses = [loss if here else 0.0 for loss, here in zip(row[::2], is_there, strict=True)]
        n = sum(is_there)
        return (sum(losses) / n if n else None), losses


class AllReduce:
    """One sum over all ranks per step, of four numbers.

    Args:
        rank: Number of this process.
        device: Where the ranks exchange tensors.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self._sent: tuple[Any, torch.Tensor] | None = None

    def write(self, step: int, loss: Any) -> None:
        """Nothing: it will be sent."""

    def send(self, step: int, loss: Any) -> None:
        """Begin the sum; all ranks have to, also those without a loss."""
        if self._sent is not None:
            self._sent[0].wait()  # long done; its memory is free from here on
        numbers = self._numbers(loss)
        self._sent = distributed.all_reduce(numbers, async_op=True), numbers

    def _numbers(self, loss: Any) -> torch.Tensor:
        """Loss, whether there is one, whether it is bad, and the rank where it is."""
        if loss is None:
            return torch.zeros(4, dtype=torch.float64, device=self._device)
        if isinstance(loss, float):
            is_bad = float(not math.isfinite(loss))
            known = [loss, 1.0, is_bad, is_bad * self._rank]
            return torch.tensor(known, dtype=torch.float64, device=self._device)
        value = loss.to(self._device, torch.float64).reshape(())
        bad = (~torch.isfinite(value)).to(torch.float64)
        return torch.stack([value, torch.ones_like(value), bad, bad * self._rank])

    def read(self, step: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Mean loss of the step that was sent last, and the four sums, on the device."""
        assert self._sent is not None  # `SharedLoss` has sent
        work, numbers = self._sent
        work.wait()
        return numbers[0] / numbers[1], numbers


class SharedLoss:
    """The loss of each step over all ranks. On every rank the same calls have to be made.

    Args:
        trainer: A trainer with several processes; all of them make one of these at the same time.
        guard: Warns of what fails.
    """

    def __init__(self, trainer: Any, guard: Guard) -> None:
        self._guard, self._trainer = guard, trainer
        self._n_ranks = int(trainer.world_size)
        self._exchange = _exchange(trainer)
        self._step = 0  # counts what was sent
        self._is_sent = self._is_unread = False
        self._known: dict[int, Any] = {}
        self._was_bad, self._n_notes = False, 0
        self._forget()

    def _forget(self) -> None:
        self._sum: Any = None
        self._n = 0

    def begin_batch(self) -> None:
        """A batch begins."""
        self._is_sent = False

    def see(self, loss: torch.Tensor, *, is_automatic: bool) -> None:
        """Take up the loss of a backward pass that is about to begin.

        Args:
            loss: As it is given to ``backward``: scaled, and divided by the accumulated batches.
            is_automatic: Whether the losses of a step's batches add up; else the last one counts.
        """
        if (is_automatic and self._is_sent) or self._guard.failed(_PART):
            return  # a further evaluation of a closure (LBFGS)
        with self._guard(_PART):
            is_here = loss.device.type == "cpu"
            value: Any = float(loss.detach()) if is_here else loss.detach().double()
            value = value / _scale(self._trainer, loss)
            if is_automatic:
                value = value * self._trainer.accumulate_grad_batches
            is_first = self._sum is None or not is_automatic
            self._sum = value if is_first else self._sum + value
            self._n = 1 if is_first else self._n + 1
            self._exchange.write(self._step, self._sum / self._n)

    def before_step(self, *, is_automatic: bool) -> None:
        """An optimizer is about to step: its loss is known."""
        if not (is_automatic and self._is_sent):
            self._send()

    def after_step(self, *, is_automatic: bool) -> None:
        """An optimizer has stepped, one that `before_step` did not hear of perhaps."""
        if is_automatic:
            return
        if not self._is_sent:
            self._send()
        self._is_sent = False

    def _send(self) -> None:
        self._is_sent = self._is_unread = True
        loss = None if self._sum is None else self._sum / self._n
        self._step += 1
        self._forget()
        if not self._guard.failed(_EXCHANGE):
            with self._guard(_EXCHANGE):  # others wait: whatever else has failed
                self._exchange.send(self._step - 1, loss)

    def take(self, step: int) -> Any:
        """Mean loss of all ranks for the row of `step`, a number or a tensor; None where unknown.

        Each is given once.
        """
        is_unread, self._is_unread = self._is_unread, False
        if not is_unread or self._guard.failed(_PART) or self._guard.failed(_EXCHANGE):
            return None
        mean: Any = None
        with self._guard(_PART):
            mean, self._known[step] = self._exchange.read(self._step - 1)
        return mean

    def see_row(self, recorder: Recorder, step: int, loss: float) -> None:
        """Say on which ranks the loss was NaN or infinite, where the mean is."""
        known = self._known.pop(step, None)
        is_bad = known is not None and not math.isfinite(loss)
        if is_bad and not self._was_bad and self._n_notes < _MOST_NOTES:
            self._n_notes += 1
            n_bad, who = bad_ranks(known)
            if n_bad:
                recorder.add_event({
                    "event": "note", "step": step,
                    "text": f"the loss was NaN or infinite on {n_bad} of {self._n_ranks} "
                    f"ranks{who}", "n_ranks": n_bad,
                })  # fmt: skip
        self._was_bad = is_bad


def bad_ranks(known: Any) -> tuple[int, str]:
    """How many ranks had a loss that is NaN or infinite, and which, as far as it is known.

    Args:
        known: Losses by rank, or the four sums of an all-reduce.
    """
    if isinstance(known, torch.Tensor):
        n_bad, of = int(known[2]), float(known[3])
        return n_bad, f": rank {int(of)}" if n_bad == 1 else ""
    bad = [i for i, loss in enumerate(known) if not math.isfinite(loss)]
    return len(bad), f": rank{'s' * (len(bad) > 1)} {', '.join(map(str, bad[:8]))}"


def _scale(trainer: Any, loss: torch.Tensor) -> Any:
    """Loss scale that is on `loss`, read without waiting for a device."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not scaler.is_enabled():
        return 1.0
    if loss.device.type == "cpu":
        return float(scaler.get_scale())
    return scaler.scale(torch.ones((), dtype=torch.float32, device=loss.device))


def _exchange(trainer: Any) -> SharedMemory | AllReduce:
    """Shared memory where all ranks can have it, else an all-reduce; the same on all of them."""
    rank, device = int(trainer.global_rank), trainer.strategy.root_device
    places = set(_gathered((socket.gethostname(), device.type)))
    if len(places) == 1 and device.type == "cpu":
        shared = _shared_memory(trainer, rank)
        if shared is not None:
            return shared
    is_gloo = distributed.get_backend() == "gloo"
    return AllReduce(rank, torch.device("cpu") if is_gloo else device)


def _shared_memory(trainer: Any, rank: int) -> SharedMemory | None:
    path, shared = None, None
    if rank == 0:
        path = _new_file(int(trainer.world_size))
    path = trainer.strategy.broadcast(path)
    try:
        if path is not None:
            shared = SharedMemory(Path(path), rank, int(trainer.world_size))
    except OSError:
        shared = None  # another file system; said by all ranks together
    is_everywhere = all(_gathered(shared is not None))
    if rank == 0 and path is not None:
        Path(path).unlink(missing_ok=True)  # what is mapped stays
    return shared if is_everywhere else None


def _new_file(n_ranks: int) -> str | None:
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    try:
        handle, path = tempfile.mkstemp(prefix="flashback-", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.truncate(_SLOTS * n_ranks * _PAIR.size)
    except OSError:
        return None
    return path


def _gathered(value: object) -> Sequence[object]:
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, value)
    return everyone
