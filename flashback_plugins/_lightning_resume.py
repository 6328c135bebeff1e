"""What a checkpoint has to bring back, and whether it did."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from flashback_core.sketch.parameters import innermost_optimizer, stepped_parameters
from flashback_core.sketch.sharded import is_sharded
from flashback_core.watch.state import digests
from flashback_plugins._lightning_trainer import say

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder

__all__ = ["ResumeWatch", "check_resume", "continuity", "differences", "loss_jumped"]

_N_BEFORE, _N_AFTER = 32, 8
"""Losses before a checkpoint and after a resume that are compared."""

_MOST_HASHES = 1024

_WORDS = {
    "weights": "the weights",
    "optimizer_state": "the optimizer's state",
    "lr": "the learning rate",
    "global_step": "the step counter",
    "scale": "the loss scale",
}


def continuity(trainer: Any) -> dict[str, Any]:
    """Digests of the state that goes from one step to the next; None where it is not known."""
    optimizers = [innermost_optimizer(o) for o in trainer.optimizers]
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return {
        "weights": _digest([p for o in optimizers for p in stepped_parameters(o)]),
        "optimizer_state": _digest([t for o in optimizers for t in _state(o)]),
        "lr": [float(group["lr"]) for o in optimizers for group in o.param_groups],
        "global_step": int(trainer.global_step),
        "scale": None if scaler is None else float(scaler.get_scale()),
    }


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """State tensors in the order of the parameters, whatever order they were made in."""
    kept = (optimizer.state.get(p, {}) for p in stepped_parameters(optimizer))
    return [v for state in kept for _, v in sorted(state.items()) if isinstance(v, torch.Tensor)]


def _digest(tensors: Sequence[torch.Tensor]) -> str | None:
    if any(
        is_sharded(t) or t.device.type != "cpu" or t.layout is not torch.strided for t in tensors
    ):
        return None
    return f"{xxhash.xxh3_64_intdigest(digests([t.detach() for t in tensors]).tobytes()):016x}"


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What did not carry over, in words; only what both sides know is compared."""
    return [
        words
        for name, words in _WORDS.items()
        if saved.get(name) is not None and now.get(name) is not None and saved[name] != now[name]
    ]


def check_resume(trainer: Any, recorder: Recorder, state: Mapping[str, Any] | None) -> None:
    """Say what a checkpoint did not bring back, and keep it as an event.

    Args:
        trainer: The trainer that goes on.
        recorder: Its recorder.
        state: What flashback had put into the checkpoint, None without one.
    """
    saved = (state or {}).get("continuity")
    lost = differences(saved, continuity(trainer)) if isinstance(saved, Mapping) else []
    if lost:
        _tell(recorder, recorder.next_step, lost)


def _tell(recorder: Recorder, step: int, lost: Sequence[str]) -> None:
    recorder.add_event({"event": "resume_check", "step": step, "differs": list(lost)})
    said = ", ".join(lost)
    say(f"flashback: the fit goes on at step {step}, and {said} "
        f"{'is' if len(lost) == 1 and lost[0] != 'the weights' else 'are'} not what the "
        "checkpoint was made with")  # fmt: skip


class ResumeWatch:
    """Keeps what the next resume has to go on with, and looks whether this one did.

    Args:
        state: What flashback had put into the checkpoint, None without one.
        step: First step of this fit.
    """

    def __init__(self, state: Mapping[str, Any] | None, step: int) -> None:
        given = (state or {}).get("rows")
        self._before: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        self._first_step = step
        self._losses: deque[float] = deque(self._before.get("losses", ()), maxlen=_N_BEFORE)
        self._after: list[float] = []
        self._place: list[int] = list(self._before.get("place", ()))
        self._hashes: list[int] = list(self._before.get("hashes", ()))
        self._is_first = True

    def state(self) -> dict[str, Any]:
        """The last losses, and the batches of this epoch so far, for a checkpoint."""
        return {"losses": list(self._losses), "place": self._place, "hashes": self._hashes}

    def see(
        self, recorder: Recorder, step: int, values: npt.NDArray[np.float64],
        exact: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Look at a row that has been written."""
        place = [int(exact.get(name, -1)) for name in ("epoch", "batch_index")]
        digest = int(exact.get("batch_hash", 0))
        if self._before and self._is_first:
            self._check_order(recorder, step, place, digest)
        self._is_first = False
        self._see_loss(recorder, float(values[0]))
        if self._place[:1] != place[:1]:
            self._hashes = []
        self._place = place
        if digest and len(self._hashes) < _MOST_HASHES:
            self._hashes.append(digest)

    def _check_order(
        self, recorder: Recorder, step: int, place: Sequence[int], digest: int
    ) -> None:
        """Say so if the first batch is one that this epoch has had, or its place goes back."""
        text = None
        if self._place and list(place) <= self._place:
            text = f"the epoch and batch went back from {tuple(self._place)} to {tuple(place)}"
        same_epoch = self._place[:1] == list(place[:1])
        if same_epoch and self._hashes.count(digest) == 1:
            at = self._hashes.index(digest)
            text = (f"it sees the batch that step {at} of the same epoch saw, so this epoch has "
                    "some data twice and some not at all; save at the end of an epoch, or use a "
                    "data loader with state_dict and load_state_dict")  # fmt: skip
        if text is not None:
            recorder.add_event({"event": "note", "step": step, "text": f"batch order: {text}"})
            say(f"flashback: the fit goes on at step {step}, and the batch order is not what the "
                f"checkpoint was made with: {text}")  # fmt: skip

    def _see_loss(self, recorder: Recorder, loss: float) -> None:
        if not math.isfinite(loss):
            return
        if self._before and len(self._after) < _N_AFTER:
            self._after.append(loss)
            before = list(self._before.get("losses", ()))
            if len(self._after) == _N_AFTER and loss_jumped(before, self._after):
                _tell(recorder, self._first_step, ["the level of the loss"])
        self._losses.append(loss)


def loss_jumped(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether losses after a resume lie above all that came before it, and far above.

    Of equally distributed losses, 8 lie above 32 others once in 77 million times; the distance of
    the medians has to be four robust deviations too. Losses that are lower are no fault, and a
    step or two of a fresh optimizer are none either.

    Args:
        before: The last finite losses before the checkpoint.
        after: The first finite losses after the resume.

    Returns:
        False where fewer than 8 losses are known on a side.
    """
    if min(len(before), len(after)) < _N_AFTER or min(after) <= max(before):
        return False
    middle = statistics.median(before)
    spread = 1.4826 * statistics.median([abs(x - middle) for x in before])
    return statistics.median(after) - middle > 4 * spread
