"""What a checkpoint has to bring back, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from flashback_core.sketch.parameters import innermost_optimizer, stepped_parameters
from flashback_core.watch.state import digests
from flashback_plugins._lightning_trainer import say

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder

__all__ = ["check_resume", "continuity", "differences"]

_WORDS = {
    "weights": "the weights",
    "optimizer_state": "the optimizer's state",
    "lr": "the learning rate",
    "global_step": "the step counter",
    "scale": "the loss scale",
}


def continuity(trainer: Any) -> dict[str, Any]:
    """Digests of the state that goes from one step to the next; None where not in host memory."""
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
    if any(t.device.type != "cpu" or t.layout is not torch.strided for t in tensors):
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
        step = recorder.next_step
        recorder.add_event({"event": "resume_check", "step": step, "differs": lost})
        say(f"flashback: the fit goes on at step {step}, and {', '.join(lost)} are not what the "
            "checkpoint was made with")  # fmt: skip
