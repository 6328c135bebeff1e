"""RunPlan: one labelled run before it is trained. All choices follow from kind and seed.

``plan(seed, kind)`` draws model family, size, optimizer, precision, learning rate, schedule, batch,
clipping, dropout, data, length, planned length (wrong in a fifth of the runs), fault step (uniform
over 5–95 % of the run), strength (log-uniform), a second fault in a tenth of the fault runs, and
whether events are declared. Two kinds share no random number even at one seed, so no two fault runs
have a prefix in common. The length may be given; all else is then drawn as without.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from flashback_core import faults
from flashback_core.forensics.config import SIZES, TaskConfig
from flashback_core.forensics.healthy import healthy_plan
from flashback_core.forensics.kinds import KindEntry, abilities, load_kinds
from flashback_core.forensics.optimizers import LEARNING_RATES

__all__ = ["PRESETS", "FaultPlan", "Preset", "RunPlan", "plan"]

FIRST, LAST = 0.05, 0.95
"""Shares of the run between which a fault begins."""
_TRIES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How large the runs of a data set are.

    Args:
        doc: One line.
        n_steps: Shortest and longest run; lengths are log-uniform.
        sizes: Sizes of models to choose from.
        is_card: The published set-up: one model, one configuration, usual strengths.
    """

    doc: str
    n_steps: tuple[int, int]
    sizes: tuple[str, ...] = ("mini",)
    is_card: bool = False


PRESETS = {
    "tiny": Preset(doc="short runs of very small models", n_steps=(240, 400), sizes=("micro",)),
    "medium": Preset(doc="the published set-up: tiny transformer, 1,200 steps",
                     n_steps=(1200, 1200), sizes=("tiny",), is_card=True),
    "six": Preset(doc="the published set-up in a smaller transformer, on text or smooth data",
                  n_steps=(500, 1000), sizes=("mini",), is_card=True),
    "small": Preset(doc="all families, the smallest models, runs of 300 to 700 steps",
                    n_steps=(300, 700), sizes=("micro",)),
    "long": Preset(doc="all families, the smallest models, runs of 600 to 2,400 steps",
                   n_steps=(600, 2400), sizes=("micro",)),
    "large": Preset(doc="all families, runs of 600 to 2,400 steps", n_steps=(600, 2400),
                    sizes=("mini", "micro")),
}  # fmt: skip
"""Presets by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault of a run: kind, first bad step, strength, seed of its place."""

    kind: str
    step: int
    strength: float | None
    seed: int

    def make(self) -> faults.Fault:
        """The fault, ready to be attached."""
        return faults.make(self.kind, step=self.step, strength=self.strength, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run.

    Args:
        kind: Fault kind or healthy kind.
        seed: Its seed.
        preset: Name of the preset.
        split: ``train``, ``calibration`` or ``test``.
        task: The task before the healthy kind has changed it.
        n_steps: Steps that are trained.
        faults: None for a healthy run, one, or two.
        healthy: Healthy kind of the run (``plain`` for most fault runs).
        is_declared: Whether events are told to the recorder.
        key: Seed of all that is drawn when the run is made.
    """

    kind: str
    seed: int
    preset: str
    split: str
    task: TaskConfig
    n_steps: int
    faults: tuple[FaultPlan, ...]
    healthy: str
    is_declared: bool
    key: int

    @property
    def run_id(self) -> str:
        """``<kind>__s<seed>``."""
        return f"{self.kind}__s{self.seed}"

    @property
    def first_bad_step(self) -> int:
        """First step of the first fault that is no placebo; -1 without one."""
        kinds = load_kinds()
        steps = [f.step for f in self.faults if kinds[f.kind].set != "placebo"]
        return min(steps, default=-1)

    def to_json(self) -> str:
        """All fields, for logs and for people."""
        return json.dumps(asdict(self), sort_keys=True)


def plan(seed: int, kind: str, *, preset: str = "large", n_steps: int | None = None) -> RunPlan:
    """The run of a kind and a seed.

    Args:
        seed: From 0; its last digit decides the split, see `kinds.Kinds.split`.
        kind: A fault kind or a healthy kind of the frozen list.
        preset: One of `PRESETS`.
        n_steps: Length of the run in place of the preset's.

    Raises:
        ValueError: If kind or preset is not known, or the seed is negative.
    """
    if preset not in PRESETS:
        msg = f"preset {preset!r} is not one of {', '.join(PRESETS)}"
        raise ValueError(msg)
    if seed < 0:
        msg = f"a seed is an integer from 0; got {seed}"
        raise ValueError(msg)
    kinds = load_kinds()
    entry, chosen = kinds[kind], PRESETS[preset]
    key = zlib.crc32(f"{kind}/{seed}/{preset}".encode())
    # a stream for each part of the plan, so that none depends on how much another drew
    streams = [np.random.default_rng([key, seed, part]) for part in range(6)]
    length = _length(streams[0], entry, chosen) if n_steps is None else n_steps
    if chosen.is_card:
        task = _card_task(chosen, key, seed, entry, length)
    else:
        task = _task(streams[1], chosen, entry, length)
    split = kinds.split(kind, seed)
    is_healthy = entry.set == "healthy"
    first = None if is_healthy else _fault(streams[2], entry, length, is_usual=chosen.is_card)
    second = None
    if first is not None and entry.set != "placebo" and not chosen.is_card:
        second = _second(streams[3], first, task, length, split)
    return RunPlan(
        kind=kind,
        seed=seed,
        preset=preset,
        split=split,
        task=task,
        n_steps=length,
        faults=tuple(f for f in (first, second) if f is not None),
        healthy=kind if is_healthy else entry.background or _background(streams[4], chosen),
        is_declared=bool(streams[5].random() < 0.7),
        key=key,
    )


def _length(rng: np.random.Generator, entry: KindEntry, preset: Preset) -> int:
    length = _log_integer(rng, *preset.n_steps)
    is_long = entry.name == "long_run" and not preset.is_card
    return min(20_000, 6 * length) if is_long else length


def _log_integer(rng: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _card_task(preset: Preset, key: int, seed: int, entry: KindEntry, length: int) -> TaskConfig:
    size = preset.sizes[0]
    data = "markov" if size != "tiny" and seed % 3 == 0 else "code"
    base = TaskConfig(family="gpt", size=size, lr=3e-3, planned_steps=length, data=data, seed=key)
    return _forced(base, entry)


def _forced(task: TaskConfig, entry: KindEntry) -> TaskConfig:
    """Change what the kind needs and what costs nothing to have."""
    changes: dict[str, Any] = {}
    if "replicas" in entry.needs:
        changes["micro_batches"] = 2
    if "scaler" in entry.needs:
        changes["precision"] = "fp16"
    if "clip" in entry.needs and task.clip is None:
        changes["clip"] = 0.5
    if "dropout" in entry.needs and task.dropout == 0:
        changes["dropout"] = 0.1
    if "router" in entry.needs:
        changes |= {"family": "moe", "size": "mini"}
    if "buffers" in entry.needs:
        changes |= {"family": "cnn", "size": "mini"}
    forced = replace(task, **changes)
    if (forced.family, forced.optimizer) not in _CLASHES or forced.lr is None:
        return forced
    rate = forced.lr / LEARNING_RATES[forced.optimizer] * LEARNING_RATES["adamw"]
    return replace(forced, optimizer="adamw", lr=rate)


def _task(rng: np.random.Generator, preset: Preset, entry: KindEntry, length: int) -> TaskConfig:
    """A task that has all that the kind needs; rare needs are forced, others drawn for."""
    for _ in range(_TRIES):
        task = _forced(_draw_task(rng, preset, length), entry)
        is_slow = task.precision == "fp16" and "small" not in abilities(task)
        if not is_slow and set(entry.needs) <= abilities(task):
            return task
    msg = f"no task has all of {entry.needs} for kind {entry.name!r}; is there a model with them?"
    raise ValueError(msg)


_FAMILIES = (
    ("gpt", 0.40), ("mlp", 0.16), ("cnn", 0.08), ("lstm", 0.10), ("vit", 0.08),
    ("denoiser", 0.08), ("lora", 0.05), ("moe", 0.05),
)  # fmt: skip
_OPTIMIZERS = (
    ("adamw", 0.60), ("sgdm", 0.12), ("lion", 0.08), ("rmsprop", 0.08), ("muon", 0.06),
    ("adafactor", 0.06),
)  # fmt: skip
_SCHEDULES = (
    ("cosine", 0.40), ("wsd", 0.15), ("constant", 0.15), ("linear", 0.12), ("inverse_sqrt", 0.06),
    ("one_cycle", 0.04), ("cyclic", 0.04), ("step", 0.02), ("sgdr", 0.02),
)  # fmt: skip


def _pick(rng: np.random.Generator, table: tuple[tuple[str, float], ...]) -> str:
    names, weights = zip(*table, strict=True)
    share = np.asarray(weights) / np.sum(weights)
    return str(rng.choice(names, p=share))


_CLASHES = {("cnn", "muon"), ("lora", "sgdm"), ("lora", "muon"), ("lora", "rmsprop")}
"""Families that an optimizer cannot train: Muon takes matrices, adapters need adaptive rates."""


def _draw_task(rng: np.random.Generator, preset: Preset, length: int) -> TaskConfig:
    family = _pick(rng, _FAMILIES)
    sizes = [s for s in preset.sizes if (family, s) in SIZES] or ["mini"]
    optimizer = _pick(rng, _OPTIMIZERS)
    if (family, optimizer) in _CLASHES:
        optimizer = "adamw"
    planned = length
    if rng.random() < 0.2:  # the plan is wrong: the run was cut short or made longer
        planned = max(50, round(length * float(np.exp(rng.uniform(np.log(0.5), np.log(8.0))))))
    is_text = family in ("gpt", "lstm", "lora", "moe")
    batches = (4, 8, 8, 12) if is_text else (16, 32, 32, 64)
    # SGD and RMSprop add the decay to the gradient, where it weighs much more
    decays = (1e-4, 5e-4) if optimizer in ("sgdm", "rmsprop") else (0.01, 0.1)
    data = _pick(rng, (("code", 0.70), ("prose", 0.15), ("tables", 0.05), ("markov", 0.10)))
    if family == "lora":
        data = "prose"  # what it fine-tunes to; it is trained on code before
    return TaskConfig(
        family=family,
        size=str(rng.choice(sizes)),
        optimizer=optimizer,
        precision="bf16" if rng.random() < 0.1 else "fp32",
        lr=float(LEARNING_RATES[optimizer] * np.exp(rng.uniform(np.log(0.3), np.log(1.5)))),
        schedule=_pick(rng, _SCHEDULES),
        warmup=int(rng.uniform(10, max(11, min(100, length // 5)))),
        planned_steps=planned,
        batch=int(rng.choice(batches)),
        micro_batches=2 if rng.random() < 0.15 else 1,
        clip=None if rng.random() < 0.2 else float(rng.choice([0.5, 1.0])),
        dropout=float(rng.choice([0.0, 0.05, 0.1, 0.2])),
        weight_decay=float(rng.choice(decays)),
        beta2=float(rng.choice([0.95, 0.99, 0.999])),
        data=data if is_text else "code",
        pretrain_steps=min(200, length // 2) if family == "lora" else 0,
        seed=int(rng.integers(2**31)),
    )


def _fault(rng: np.random.Generator, entry: KindEntry, length: int, *, is_usual: bool) -> FaultPlan:
    step = max(1, int(rng.uniform(FIRST, LAST) * length))
    strength = entry.strength
    if entry.strengths is not None and not is_usual:
        low, high = np.log(entry.strengths)
        strength = float(np.exp(rng.uniform(low, high)))
    return FaultPlan(kind=entry.name, step=step, strength=strength, seed=int(rng.integers(2**31)))


def _second(
    rng: np.random.Generator, first: FaultPlan, task: TaskConfig, length: int, split: str
) -> FaultPlan | None:
    """A second fault, later than the first, in a tenth of the runs."""
    if rng.random() >= 0.1 or first.step + 60 >= LAST * length:
        return None
    kinds = load_kinds()
    fitting = [
        kinds[name]
        for name in kinds.names("seed", "hard", "reported")
        if name != first.kind
        and set(kinds[name].needs) <= abilities(task)
        and (split == "test" or not kinds[name].is_held_out)
    ]
    entry = fitting[int(rng.integers(len(fitting)))]
    found = _fault(rng, entry, length, is_usual=False)
    step = int(rng.uniform(first.step + 50, LAST * length))
    return replace(found, step=step)


def _background(rng: np.random.Generator, preset: Preset) -> str:
    """What else happens in a fault run: mostly nothing."""
    if preset.is_card or rng.random() < 0.75:
        return "plain"
    return str(rng.choice(["evaluations", "checkpoints", "ema_swap", "slow_steps"]))


def prepared(run: RunPlan) -> tuple[TaskConfig, list[Any]]:
    """Config and events of a run, its healthy kind applied."""
    rng = np.random.default_rng([run.key, 99])
    return healthy_plan(run.healthy, run.task, run.n_steps, rng)
