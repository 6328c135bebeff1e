"""TaskConfig: everything that decides a forensics run but its faults and events."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flashback_core.forensics.optimizers import LEARNING_RATES

__all__ = ["FAMILIES", "PRECISIONS", "SCHEDULES", "SIZES", "TaskConfig"]

FAMILIES = ("gpt", "mlp", "cnn", "lstm", "vit", "denoiser", "lora", "moe")
TEXT_FAMILIES = ("gpt", "lstm", "lora", "moe")
PRECISIONS = ("fp32", "bf16", "fp16")
SCHEDULES = (
    "cosine", "constant", "wsd", "linear", "inverse_sqrt", "step", "sgdr", "cyclic", "one_cycle",
)  # fmt: skip

SIZES: dict[tuple[str, str], dict[str, int]] = {
    ("gpt", "tiny"): {"width": 100, "depth": 4, "heads": 4, "context": 64},
    ("gpt", "mini"): {"width": 64, "depth": 3, "heads": 4, "context": 32},
    ("gpt", "micro"): {"width": 32, "depth": 2, "heads": 2, "context": 16},
    ("moe", "mini"): {"width": 64, "depth": 2, "heads": 4, "context": 32, "experts": 4},
    ("lora", "mini"): {"width": 96, "depth": 3, "heads": 4, "context": 32, "rank": 8},
    ("mlp", "mini"): {"width": 192, "depth": 3},
    ("mlp", "micro"): {"width": 64, "depth": 2},
    ("cnn", "mini"): {"width": 32},
    ("lstm", "mini"): {"width": 96, "context": 24},
    ("vit", "mini"): {"width": 64, "depth": 3, "heads": 4},
    ("denoiser", "mini"): {"width": 96, "depth": 2},
}
"""Shapes by family and size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """One training task. Two tasks of one config do the same, bit for bit.

    Args:
        family: One of `FAMILIES`.
        size: ``tiny`` is the published set-up (0.54 M parameters), ``mini`` the usual one.
        optimizer: One of `LEARNING_RATES`.
        precision: ``fp32``; ``bf16`` and ``fp16`` run under autocast, the latter with a GradScaler.
        lr: Peak learning rate; None is the optimizer's usual one.
        schedule: One of `SCHEDULES`.
        warmup: Steps of linear warm-up.
        planned_steps: Length that the schedule is made for.
        batch: Samples per step.
        micro_batches: Parts in which a batch goes through the model.
        clip: Largest gradient norm; None is no clipping.
        dropout: Dropout probability.
        weight_decay: Of matrices.
        beta2: Decay of the second moment.
        data: ``code``, ``prose``, ``tables`` or ``markov``; image families always see digits.
        pretrain_steps: Unrecorded steps before step 0 (fine-tuning starts from their weights).
        seed: Decides initial weights, data and dropout.
        n_samples: Distinct windows of a text that are used over and over; None is no limit.

    Raises:
        ValueError: If a choice is not known.
    """

    family: str = "gpt"
    size: str = "mini"
    optimizer: str = "adamw"
    precision: str = "fp32"
    lr: float | None = None
    schedule: str = "cosine"
    warmup: int = 100
    planned_steps: int = 1200
    batch: int = 8
    micro_batches: int = 1
    clip: float | None = 0.5
    dropout: float = 0.1
    weight_decay: float = 0.01
    beta2: float = 0.99
    data: str = "code"
    pretrain_steps: int = 0
    seed: int = 0
    n_samples: int | None = None

    def __post_init__(self) -> None:
        """Refuse choices that are not known."""
        known = {
            "optimizer": tuple(LEARNING_RATES),
            "precision": PRECISIONS,
            "schedule": SCHEDULES,
            "data": ("code", "prose", "tables", "markov"),
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                msg = f"{name} is one of {', '.join(choices)}; got {getattr(self, name)!r}"
                raise ValueError(msg)
        if (self.family, self.size) not in SIZES:
            pairs = ", ".join("/".join(pair) for pair in SIZES)
            msg = f"there is no {self.family}/{self.size}; family and size are one of {pairs}"
            raise ValueError(msg)

    @property
    def is_text(self) -> bool:
        """Whether the task predicts bytes."""
        return self.family in TEXT_FAMILIES

    @property
    def shape(self) -> dict[str, int]:
        """Width, depth and so on."""
        return SIZES[self.family, self.size]

    @property
    def context(self) -> int:
        """Bytes per sample of a text task."""
        return self.shape.get("context", 0)

    @property
    def peak_lr(self) -> float:
        """The peak learning rate."""
        return LEARNING_RATES[self.optimizer] if self.lr is None else self.lr

    def facts(self) -> dict[str, Any]:
        """All fields, for a table."""
        return asdict(self)
