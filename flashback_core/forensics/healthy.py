"""Healthy kinds: runs that do something unusual on purpose, and in which nothing is wrong.

A kind changes the config of a task, or gives it events, or both. To add one, write a function of
config, length and random numbers and register it with a line about it::

    def two_clips(config, n_steps, rng):
        return config, [Change(n_steps // 2, lambda task: setattr(task, "clip", 1.0), "clip")]

    register("two_clips", HealthyKind(doc="clipping norm 1 from the middle on", make=two_clips,
                                      needs=("clip",), declares="clip"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.events import (
    Change,
    Checkpoints,
    Evaluations,
    Event,
    ExactResume,
    LossScale,
    MixedSource,
    NoisyLabelsAlways,
    OutlierSamples,
    PaddedLabels,
    Pauses,
    ShortSamples,
    SwappedAverage,
    TrainedPart,
)
from flashback_core.forensics.schedules import milestones
from flashback_core.forensics.sources import TextSource
from flashback_core.forensics.tasks import Task

__all__ = ["HEALTHY", "HealthyKind", "Plan", "healthy_plan", "register", "schedule_events"]

Plan = tuple[TaskConfig, list[Event]]
Maker = Callable[[TaskConfig, int, np.random.Generator], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyKind:
    """A healthy kind.

    Args:
        doc: One line.
        make: Config, number of steps and random numbers -> config and events.
        needs: What the task must have, see `kinds.ABILITIES`.
        declares: What its owner would declare; None is nothing.
    """

    doc: str
    make: Maker
    needs: tuple[str, ...] = ()
    declares: str | None = None


def register(name: str, kind: HealthyKind) -> HealthyKind:
    """Add a healthy kind under `name`; see `kinds.add` for building runs of it.

    Raises:
        ValueError: If the name is taken.
    """
    if name in HEALTHY:
        msg = f"there is a healthy kind {name!r} already; choose another name"
        raise ValueError(msg)
    HEALTHY[name] = kind
    return kind


def healthy_plan(name: str, config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    """Config and events of a healthy kind, with the jumps of its schedule as events.

    Raises:
        ValueError: If there is no such kind.
    """
    if name not in HEALTHY:
        msg = f"{name!r} is not one of the {len(HEALTHY)} healthy kinds: {', '.join(HEALTHY)}"
        raise ValueError(msg)
    config, events = HEALTHY[name].make(config, n_steps, rng)
    return config, [*events, *schedule_events(config, n_steps)]


def schedule_events(config: TaskConfig, n_steps: int) -> list[Event]:
    """Events that only declare: the steps at which the schedule jumps."""
    steps = milestones(config.schedule, planned_steps=config.planned_steps, n_steps=n_steps)
    return [Event(step, "lr_milestone") for step in steps]


def _middle(n_steps: int, rng: np.random.Generator) -> int:
    return int(rng.uniform(0.2, 0.8) * n_steps)


def _with(config: TaskConfig, n_steps: int, rng: np.random.Generator, **changes: Any) -> Plan:
    return replace(config, **changes), []


def _set(**changes: Any) -> Maker:
    return partial(_with, **changes)


def _scaled_batch(
    config: TaskConfig, n_steps: int, rng: np.random.Generator, *, factor: float
) -> Plan:
    size = max(2, round(config.batch * factor))

    def change(task: Task) -> None:
        task.batch_size = size

    return config, [Change(_middle(n_steps, rng), change, "batch_size")]


def _accumulation(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    def change(task: Task) -> None:
        task.micro_batches = 4 if config.batch >= 8 else 2

    return config, [Change(_middle(n_steps, rng), change, "accumulation")]


def _other_text(config: TaskConfig) -> str:
    return "code" if config.data == "prose" else "prose"


def _curriculum(config: TaskConfig, n_steps: int, rng: np.random.Generator, *, ramp: int) -> Plan:
    source = TextSource(config, _other_text(config))
    share = float(rng.uniform(0.3, 0.8))
    return config, [MixedSource(_middle(n_steps, rng), source, share, ramp, "data")]


def _plateau(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    def change(task: Task) -> None:
        task.scheduler.base_lrs = [rate * 0.3 for rate in task.scheduler.base_lrs]

    step = _middle(n_steps, rng)
    # the scheduler uses the lower rate from the step after
    return replace(config, schedule="constant"), [
        Change(step - 1, change),
        Event(step, "lr_milestone"),
    ]


def _weight_decay(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    def change(task: Task) -> None:
        for group in task.optimizer.param_groups:
            group["weight_decay"] = group["weight_decay"] * 5.0

    return config, [Change(_middle(n_steps, rng), change, "weight_decay")]


def _clip(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    def change(task: Task) -> None:
        task.clip = 2.0 * (config.clip or 1.0)

    return config, [Change(_middle(n_steps, rng), change, "clip")]


def _less_dropout(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    def change(task: Task) -> None:
        for module in task.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    return replace(config, dropout=0.1), [Change(_middle(n_steps, rng), change, "dropout")]


def _longer_samples(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    return config, [ShortSamples(_middle(n_steps, rng), "data")]


def _freeze(config: TaskConfig, n_steps: int, rng: np.random.Generator, *, after: bool) -> Plan:
    part = {"mlp": "layers.0", "cnn": "convs.0", "lstm": "embed", "vit": "patch_embed",
            "denoiser": "stem"}.get(config.family, "transformer.h.0")  # fmt: skip
    word = "freeze" if after else "unfreeze"
    step = _middle(n_steps, rng)
    return config, [TrainedPart(step, part, is_frozen_after=after, declares=word)]


def _resume(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    return config, [ExactResume(_middle(n_steps, rng))]


def _every(config: TaskConfig, n_steps: int, rng: np.random.Generator, *, make: Any) -> Plan:
    return config, [make(max(20, n_steps // int(rng.integers(4, 9))))]


def _pauses(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    return config, [Pauses(max(20, n_steps // 6), float(rng.uniform(0.1, 0.4)))]


def _slow_steps(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    return config, [Pauses(int(rng.integers(7, 17)), 0.03)]


def _always(config: TaskConfig, n_steps: int, rng: np.random.Generator, *, event: Any) -> Plan:
    return config, [event()]


def _backoff(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    # near the end of float16's range, and doubled so often that it overflows now and then
    event = LossScale(2.0**20, max(10, n_steps // 12))
    return replace(config, precision="fp16"), [event]


def _fine_tune(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    steps = min(300, n_steps)
    return replace(config, pretrain_steps=steps, lr=config.peak_lr / 10, data="prose"), []


def _high_lr(config: TaskConfig, n_steps: int, rng: np.random.Generator) -> Plan:
    return replace(config, lr=config.peak_lr * 2.5, clip=None), []


HEALTHY: dict[str, HealthyKind] = {
    "plain": HealthyKind(doc="nothing unusual", make=_set()),
    "constant": HealthyKind(doc="constant rate", make=_set(schedule="constant")),
    "linear": HealthyKind(doc="linear decay", make=_set(schedule="linear")),
    "wsd": HealthyKind(doc="constant, then a decay at the end", make=_set(schedule="wsd")),
    "inverse_sqrt": HealthyKind(doc="inverse square root", make=_set(schedule="inverse_sqrt")),
    "one_cycle": HealthyKind(doc="rate up, then down", make=_set(schedule="one_cycle")),
    "cyclic": HealthyKind(doc="triangular rate", make=_set(schedule="cyclic")),
    "step_decay": HealthyKind(doc="rate ÷ 10 at a step", make=_set(schedule="step"),
                              declares="lr_milestone"),
    "sgdr": HealthyKind(doc="cosine with restarts", make=_set(schedule="sgdr"),
                        declares="lr_milestone"),
    "plateau_decay": HealthyKind(doc="rate × 0.3 where the loss is flat", make=_plateau,
                                 declares="lr_milestone"),
    "no_warmup": HealthyKind(doc="full rate from the first step", make=_set(warmup=1)),
    "curriculum_abrupt": HealthyKind(doc="another text is mixed in at once", declares="data",
                                     make=partial(_curriculum, ramp=0), needs=("tokens",)),
    "curriculum_ramp": HealthyKind(doc="another text is mixed in by and by", declares="data",
                                   make=partial(_curriculum, ramp=200), needs=("tokens",)),
    "longer_samples": HealthyKind(doc="samples twice as long from a step on", declares="data",
                                  make=_longer_samples, needs=("tokens",)),
    "batch_up": HealthyKind(doc="batch doubled", make=partial(_scaled_batch, factor=2.0),
                            declares="batch_size"),
    "batch_down": HealthyKind(doc="batch halved", make=partial(_scaled_batch, factor=0.5),
                              declares="batch_size"),
    "accumulation": HealthyKind(doc="a batch goes through the model in parts from a step on",
                                make=_accumulation, declares="accumulation"),
    "weight_decay_up": HealthyKind(doc="weight decay × 5", make=_weight_decay,
                                   needs=("weight_decay",), declares="weight_decay"),
    "clip_changed": HealthyKind(doc="clipping norm doubled", make=_clip, declares="clip"),
    "dropout_ends": HealthyKind(doc="dropout switched off at a step", make=_less_dropout,
                                declares="dropout"),
    "unfreeze": HealthyKind(doc="the first layer is frozen until a step", declares="unfreeze",
                            make=partial(_freeze, after=False), needs=("full",)),
    "freeze": HealthyKind(doc="the first layer is frozen from a step on", declares="freeze",
                          make=partial(_freeze, after=True), needs=("full",)),
    "exact_resume": HealthyKind(doc="everything is saved and loaded again", make=_resume),
    "evaluations": HealthyKind(doc="evaluations in between",
                               make=partial(_every, make=Evaluations)),
    "checkpoints": HealthyKind(doc="checkpoints in between",
                               make=partial(_every, make=Checkpoints)),
    "ema_swap": HealthyKind(doc="averaged weights swapped in for evaluations",
                            make=partial(_every, make=SwappedAverage)),
    "pauses": HealthyKind(doc="long pauses", make=_pauses),
    "slow_steps": HealthyKind(doc="every few steps a slow one", make=_slow_steps),
    "outlier_samples": HealthyKind(doc="a few samples are noise, one in 2 % of the steps",
                                   make=partial(_always, event=partial(OutlierSamples, 0.02)),
                                   needs=("labels",)),
    "noisy_labels": HealthyKind(doc="a tenth of the labels is wrong all along",
                                make=partial(_always, event=partial(NoisyLabelsAlways, 0.1)),
                                needs=("labels",)),
    "padded_labels": HealthyKind(doc="samples of random length", needs=("tokens",),
                                 make=partial(_always, event=PaddedLabels)),
    "tiny_batch": HealthyKind(doc="batches of 2", make=_set(batch=2)),
    "large_batch": HealthyKind(doc="batches of 32", make=_set(batch=32)),
    "few_samples": HealthyKind(doc="a small data set, learnt by heart", needs=("tokens",),
                               make=_set(n_samples=400)),
    "smooth_data": HealthyKind(doc="a made-up source without structure", needs=("tokens", "full"),
                               make=_set(data="markov")),
    "monotonous_data": HealthyKind(doc="character tables", needs=("tokens", "full"),
                                   make=_set(data="tables")),
    "high_lr_unclipped": HealthyKind(doc="2.5 times the usual rate, no clipping", make=_high_lr),
    "unclipped": HealthyKind(doc="no clipping", make=_set(clip=None)),
    "no_dropout": HealthyKind(doc="no dropout", make=_set(dropout=0.0)),
    "bf16": HealthyKind(doc="bfloat16 autocast", make=_set(precision="bf16")),
    "scaler_backoff": HealthyKind(doc="float16 with a loss scale that overflows now and then",
                                  make=_backoff, needs=("small",)),
    "fine_tune": HealthyKind(doc="starts from a model trained on other data", make=_fine_tune,
                             needs=("tokens", "full")),
    "long_run": HealthyKind(doc="many times the usual length", make=_set(), needs=("fast",)),
}  # fmt: skip
"""The healthy kinds by name."""
