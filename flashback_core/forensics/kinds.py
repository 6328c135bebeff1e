"""The frozen list of fault kinds and healthy kinds, and which runs belong to which split.

``kinds.json`` beside this file says of each kind its strengths and whether it is held out. It was
printed once by ``python -m flashback_core.forensics.kinds`` and is frozen: a detector may be fitted
on what it calls ``train`` and calibrated on ``calibration``; a held-out kind is in neither.

Splits are by seed and by kind. The last digit of a seed decides: 0–3 is ``train``, 4–5
``calibration``, 6–9 ``test``; runs of a held-out kind are ``test`` whatever their seed.

Sets of fault kinds: ``seed`` (the six of the published data set), ``hard`` (43 kinds whose
visibility was studied), ``reported`` (taken from public failure reports) and ``placebo``. Kinds
that `add` adds are ``added`` (or ``healthy``): they are only ever ``test``, and are scored apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from flashback_core import faults
from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.healthy import HEALTHY

__all__ = [
    "ABILITIES",
    "LATER",
    "SEED_KINDS",
    "KindEntry",
    "Kinds",
    "abilities",
    "add",
    "build_kinds",
    "load_kinds",
    "load_later",
]

ABILITIES = {
    "batch": "the loop hands its batches to the fault",
    "labels": "the batch holds integer labels",
    "tokens": "inputs are bytes of text",
    "images": "inputs are images, and labels say what they show",
    "attention": "a trained weight of queries and keys",
    "buffers": "the model has buffers, as batch norm has",
    "head": "an untied output head of the shape of the token embedding",
    "router": "a mixture of experts",
    "dropout": "dropout above 0",
    "clip": "gradient clipping",
    "scheduler": "a learning-rate scheduler",
    "scaler": "float16 with a loss scaler",
    "replicas": "a batch goes through the model in two or more parts",
    "state": "the optimizer has state",
    "first_moment": "the optimizer keeps a momentum",
    "second_moment": "the optimizer keeps a second moment per element",
    "eps": "the optimizer's eps is one number",
    "betas": "the optimizer is Adam",
    "weight_decay": "weight decay above 0",
    "full": "all parameters are trained",
    "small": "small enough for float16 on a CPU",
    "fast": "a step takes a few milliseconds",
}
"""What a fault or a healthy kind may need of a task."""

SEED_KINDS = (
    "lr_spike_loud", "lr_spike_subtle", "bit_flip", "lowprec_overflow", "data_poison_heavy",
    "data_poison_subtle",
)  # fmt: skip
HARD_KINDS = (
    "w_flip_exp", "w_flip_exp_lo", "w_flip_mant_hi", "w_flip_mant_lo", "v_flip_up", "v_flip_down",
    "opt_lost", "opt_lost_nobc", "m_lost", "stale_half", "attn_scale", "attn_blowup",
    "resume_old_weights", "bf16_master", "dropout_off", "dropout_high", "batch_stuck", "batch_dup1",
    "epoch_replay", "shuffle5", "dup_in_batch", "low_byte_noise", "case_fold", "label_shift",
    "label_noise10", "lr_x1_5", "lr_ramp", "sched_restart", "sched_offset", "lr_zero", "eps_small",
    "eps_large", "wd_x100", "clip_dropped", "beta2_changed", "grad_flip_exp", "grad_flip_mant",
    "fp8_overflow_inf", "nan_one", "grad_zero_layer", "grad_x4", "grad_noise", "layer_frozen",
)  # fmt: skip
_SPLIT_OF_DIGIT = ("train",) * 4 + ("calibration",) * 2 + ("test",) * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KindEntry:
    """One kind of the frozen list.

    Args:
        name: The kind.
        set: ``seed``, ``hard``, ``reported``, ``placebo``, ``added`` or ``healthy``.
        family: Family of a fault kind, else ``healthy``.
        strength: Usual strength; None for healthy kinds.
        strengths: Range from which strengths are drawn, log-uniformly; None is always the usual.
        needs: Abilities that its tasks have.
        is_held_out: Whether it is never in train or calibration.
        background: Healthy kind that its runs and their twins do; None is drawn for each run.
    """

    name: str
    set: str
    family: str
    strength: float | None
    strengths: tuple[float, float] | None
    needs: tuple[str, ...]
    is_held_out: bool
    background: str | None = None


@dataclass(frozen=True, slots=True)
class Kinds:
    """The frozen list by name."""

    entries: Mapping[str, KindEntry]

    def __getitem__(self, name: str) -> KindEntry:
        """The kind `name`.

        Raises:
            ValueError: If the list has no such kind.
        """
        try:
            return self.entries[name]
        except KeyError:
            msg = f"{name!r} is not in the frozen list of {len(self.entries)} kinds (kinds.json)"
            raise ValueError(msg) from None

    def names(self, *sets: str) -> tuple[str, ...]:
        """Names of the kinds of some sets, in the order of the list."""
        return tuple(name for name, entry in self.entries.items() if entry.set in sets)

    def split(self, name: str, seed: int) -> str:
        """``train``, ``calibration`` or ``test`` for a run of a kind and a seed."""
        return "test" if self[name].is_held_out else _SPLIT_OF_DIGIT[seed % 10]


def abilities(config: TaskConfig) -> frozenset[str]:
    """What a task of `config` has, see `ABILITIES`."""
    family, optimizer = config.family, config.optimizer
    conditions = {
        "batch": True,
        "scheduler": True,
        "state": True,
        "labels": family != "denoiser",
        "tokens": config.is_text,
        "images": family in ("mlp", "cnn", "vit"),
        "attention": family in ("gpt", "moe", "vit"),
        "buffers": family == "cnn",
        "head": family in ("gpt", "moe"),
        "router": family == "moe",
        "dropout": config.dropout > 0,
        "clip": config.clip is not None,
        "scaler": config.precision == "fp16",
        "replicas": config.micro_batches > 1,
        "first_moment": optimizer in ("adamw", "sgdm", "lion", "muon"),
        "second_moment": optimizer in ("adamw", "rmsprop"),
        "eps": optimizer in ("adamw", "rmsprop"),
        "betas": optimizer == "adamw",
        "weight_decay": config.weight_decay > 0,
        "full": family != "lora",
        "small": config.size == "micro" or family in ("mlp", "denoiser"),
        "fast": config.size == "micro" or family in ("mlp", "denoiser"),
    }
    return frozenset(name for name, is_there in conditions.items() if is_there)


_ADDED: dict[str, KindEntry] = {}


LATER = ("tied_weights_drift", "duplicate_augment", "tied_head", "augmented")
"""Kinds of ours that were added after the list was frozen, see `later`."""


def load_later(names: Iterable[str]) -> None:
    """Add the kinds of `LATER` where one of them, or the set ``added``, is among `names`."""
    if {"added", *LATER} & set(names):
        from flashback_core.forensics import later  # noqa: F401  # it adds them when it is imported


def add(name: str, *, background: str | None = None) -> KindEntry:
    """Add a kind to the list, for this process: a registered fault kind or a healthy kind.

    It is held out: no detector is fitted on it.

    Args:
        name: The kind.
        background: Healthy kind that the runs of a fault kind and their twins do; None is drawn.

    Raises:
        ValueError: If the list has it already, it is no kind, it needs an unknown ability, or there
            is no such background.
    """
    if background is not None and background not in HEALTHY:
        msg = f"{background!r} is no healthy kind that could be the background of {name!r}"
        raise ValueError(msg)
    if name in load_kinds().entries:
        msg = f"the list has a kind {name!r} already; choose another name"
        raise ValueError(msg)
    if name in HEALTHY:
        entry = _added(name, "healthy", "healthy", HEALTHY[name].needs)
    else:
        kind = faults.kind_of(name)
        entry = _added(name, "added", kind.family, kind.needs, kind.strength, kind.strengths)
    unknown = sorted(set(entry.needs) - set(ABILITIES))
    if unknown:
        msg = f"{name!r} needs {unknown}, which are not among the known abilities"
        raise ValueError(msg)
    entry = replace(entry, background=background)
    _ADDED[name] = entry
    return entry


def _added(
    name: str,
    of: str,
    family: str,
    needs: tuple[str, ...],
    strength: float | None = None,
    strengths: tuple[float, float] | None = None,
) -> KindEntry:
    return KindEntry(
        name=name, set=of, family=family, strength=strength, strengths=strengths, needs=needs,
        is_held_out=True,
    )  # fmt: skip


def load_kinds() -> Kinds:
    """The frozen list, and after it what `add` added.

    Raises:
        ValueError: If ``kinds.json`` is not of this version or names an ability that is not known.
    """
    return Kinds({**_frozen(), **_ADDED})


@lru_cache(maxsize=1)
def _frozen() -> dict[str, KindEntry]:
    data = json.loads(files(__package__).joinpath("kinds.json").read_text("utf-8"))
    if data.get("version") != 1:
        msg = f"kinds.json has version {data.get('version')!r}; this flashback reads version 1"
        raise ValueError(msg)
    entries = {name: _entry(name, fields) for name, fields in data["kinds"].items()}
    unknown = {need for e in entries.values() for need in e.needs} - set(ABILITIES)
    if unknown:
        msg = f"kinds.json needs {sorted(unknown)}, which are not among the known abilities"
        raise ValueError(msg)
    return entries


def _entry(name: str, fields: Mapping[str, Any]) -> KindEntry:
    bounds = fields["strengths"]
    return KindEntry(
        name=name,
        set=fields["set"],
        family=fields["family"],
        strength=fields["strength"],
        strengths=None if bounds is None else (float(bounds[0]), float(bounds[1])),
        needs=tuple(fields["needs"]),
        is_held_out=bool(fields["held_out"]),
    )


def build_kinds() -> dict[str, Any]:
    """The content of ``kinds.json`` from the code: a third of each set is held out, by a hash."""
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(faults.kinds(), key=lambda n: (_set_of(n), n)):
        kind = faults.kind_of(name)
        found[name] = {
            "set": _set_of(name),
            "family": kind.family,
            "strength": kind.strength,
            "strengths": kind.strengths,
            "needs": list(kind.needs),
        }
    for name, healthy in HEALTHY.items():
        found[name] = {
            "set": "healthy",
            "family": "healthy",
            "strength": None,
            "strengths": None,
            "needs": list(healthy.needs),
        }
    for name in found:
        found[name]["held_out"] = name in _held_out(found)
    return {"version": 1, "kinds": found}


def _set_of(name: str) -> str:
    if name in SEED_KINDS:
        return "seed"
    if name in HARD_KINDS:
        return "hard"
    return "placebo" if name.startswith("placebo_") else "reported"


def _held_out(found: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """A third of each set but the seed's six and plain runs, the lowest hashes of it."""
    out: set[str] = set()
    for chosen in ("hard", "reported", "placebo", "healthy"):
        names = [n for n, f in found.items() if f["set"] == chosen and n != "plain"]
        out |= set(_lowest_hashes(names, round(len(names) / 3)))
    return out


def _lowest_hashes(names: Iterable[str], n: int) -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:n]


if __name__ == "__main__":
    print(json.dumps(build_kinds(), indent=1))
