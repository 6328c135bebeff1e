"""Values of exact fields in words, and what it means that a check of one broke."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashback_core.report.text import number, plural

__all__ = ["FIELD_WORDS"]


def _is_known(value: float) -> bool:
    return 0 <= value < np.inf


def _seen(value: float) -> str:
    return "a new batch" if not _is_known(value) else f"the batch of step {int(value):,}"


def _count(noun: str, many: str | None = None) -> Callable[[float], str]:
    return lambda value: "not known" if not _is_known(value) else plural(int(value), noun, many)


def _amount(value: float) -> str:
    return number(value) if np.isfinite(value) else "not known"


def _counter(value: float) -> str:
    return "not known" if not _is_known(value) else f"at {int(value):,}"


def _labels(value: float) -> str:
    return {0.0: "neither", 1.0: "the inputs shifted by one", 2.0: "the inputs"}.get(
        value, "not known"
    )


FIELD_WORDS: dict[str, tuple[Callable[[float], str], str]] = {
    "batch_seen": (_seen, "a batch came that an earlier step had had"),
    "duplicates": (_count("copy", "copies"), "the batch holds the same sample more than once"),
    "labels": (_labels, "labels do not follow their inputs as they did"),
    "grads_kept": (
        lambda value: {0.0: "new", 1.0: "those of the step before"}.get(value, "not known"),
        "the gradient tensors of the step before were used again",
    ),
    "samples_known": (_count("sample"), "they came before"),
    "inputs_changed": (
        _count("sample"),
        "they came before with other inputs under the same id",
    ),
    "labels_changed": (
        _count("sample"),
        "they came before with other labels on the same inputs",
    ),
    "zero_grads": (_count("tensor"), "their gradient is exactly zero"),
    "no_grads": (_count("tensor"), "they are trained and got no gradient"),
    "lost_updates": (_count("tensor"), "they have a gradient, and not one entry moved"),
    "lr_scheduled": (_amount, "the rate that the run's own scheduler says; compare it with lr"),
    "scheduler_step": (_counter, "the scheduler's own counter left its usual pace"),
    "opt_steps": (
        _counter,
        "the optimizer's own count of steps does not go on from the one before",
    ),
    "clip_coef": (_amount, "what the loop multiplied the gradients by (1: not at all)"),
    "low16": (_count("number"), "weights with nothing in their low 16 bits, as after bfloat16"),
}
"""How the value of a field is said, and what it means that it broke."""
