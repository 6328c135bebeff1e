"""The fault kinds by name, and `make`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from flashback_core.faults import (
    data,
    gradients,
    placebos,
    rates,
    replicas,
    schedule,
    settings,
    state,
    updates,
    weights,
)
from flashback_core.faults.base import Fault, is_positive
from flashback_core.faults.kind import Kind, Place

__all__ = ["ALIASES", "kind_of", "kinds", "make", "register"]

_MODULES = (
    rates, schedule, settings, gradients, state, weights, updates, replicas, data, placebos,
)  # fmt: skip
_KINDS: dict[str, Kind] = {kind.name: kind for module in _MODULES for kind in module.KINDS}

ALIASES = {
    "lr_reset_on_resume": "sched_restart",
    "optimizer_state_lost": "opt_lost",
    "data_replay": "epoch_replay",
    "no_reshuffle": "epoch_replay",
    "group_frozen_silently": "layer_frozen",
    "grad_accum_scale": "grad_x4",
    "grad_bit_flip": "bit_flip",
    "fp8_overflow": "lowprec_overflow",
    "poison_heavy": "data_poison_heavy",
    "poison_subtle": "data_poison_subtle",
    "beta2_wrong": "beta2_changed",
    "drop_off": "dropout_off",
    "drop_high": "dropout_high",
}
"""Names used in failure reports for kinds that stand here under another name."""


def kinds() -> tuple[str, ...]:
    """Names of all fault kinds, sorted."""
    return tuple(sorted(_KINDS))


def kind_of(name: str) -> Kind:
    """The kind called `name`, or that `name` is an alias of.

    Raises:
        ValueError: If there is none; the message names close ones.
    """
    wanted = ALIASES.get(name, name)
    if wanted in _KINDS:
        return _KINDS[wanted]
    close = difflib.get_close_matches(str(name), [*_KINDS, *ALIASES], n=3)
    hint = f"; close to it: {', '.join(close)}" if close else ""
    msg = f"{name!r} is not one of the {len(_KINDS)} fault kinds (see faults.kinds()){hint}"
    raise ValueError(msg)


def register(kind: Kind) -> Kind:
    """Add a fault kind; `make` knows it from then on.

    Raises:
        ValueError: If the name is taken.
    """
    if kind.name in _KINDS or kind.name in ALIASES:
        msg = f"there is a fault kind {kind.name!r} already; choose another name"
        raise ValueError(msg)
    _KINDS[kind.name] = kind
    return kind


def make(
    kind: str,
    *,
    step: int,
    strength: float | None = None,
    seed: int = 0,
    place: Place | Mapping[str, str | int] | str | None = None,
) -> Fault:
    """A fault that is ready to be attached to a training loop.

    Args:
        kind: One of `kinds`.
        step: First bad step, counted in attempted optimizer steps from 0.
        strength: How strong, in the unit of the kind; None is its usual strength.
        seed: Chooses tensor, element, bit and random values.
        place: Where it acts: a `Place`, a dict of its fields, or the name (or pattern) of a
            parameter. What it leaves open is chosen by `seed`.

    Raises:
        ValueError: If the kind is not known, the step is negative or the strength not above 0.

    Examples:
        >>> fault = make("lr_spike_loud", step=400)
        >>> fault.description
        'learning rate × 60; from step 400, once'
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        msg = f"a fault starts at a step, an integer from 0; got {step!r}"
        raise ValueError(msg)
    if strength is not None and not is_positive(strength):
        msg = f"strength is a finite number above 0, or None for the usual one; got {strength!r}"
        raise ValueError(msg)
    spec = kind_of(kind)
    return spec.act(spec, step=step, strength=strength, seed=seed, place=_place(place))


def _place(place: Place | Mapping[str, str | int] | str | None) -> Place:
    if isinstance(place, Place):
        return place
    if place is None:
        return Place()
    if isinstance(place, str):
        return Place(tensor=place)
    unknown = sorted(set(place) - {"tensor", "element", "bit"})
    if unknown:
        msg = f"a place has tensor, element and bit, not {', '.join(map(repr, unknown))}"
        raise ValueError(msg)
    return Place(**place)  # type: ignore[arg-type]  # the values come from the caller's JSON
