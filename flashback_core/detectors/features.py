"""Features: which a run has follows from its columns; each in a coordinate that has no scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from flashback_core.schema import N_BINS

__all__ = ["FAMILIES", "FLOORS", "Feature", "Features", "Part", "columns_of", "parts_of"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FAMILIES = (
    "loss", "gradient", "update", "update_lr", "composition", "peak", "sign", "histogram",
    "parameter",
)  # fmt: skip
"""``update_lr`` holds update norms divided by the learning rate, so that a schedule does not show;
``update`` holds them as they are, where the learning rate is not known. The rest is as the
docstring of `feature_stream` says."""

FLOORS = {
    "loss": 5e-3, "gradient": 0.01, "update": 0.02, "update_lr": 0.02, "composition": 0.02,
    "peak": 0.02, "sign": 0.01, "histogram": 0.02, "parameter": 1e-6,
}  # fmt: skip
"""Smallest scale of a feature by family: in smooth runs a change of some per cent is no evidence,
however small the noise. Optimizers that normalise their updates (Adafactor, Lion) hardly have any
noise in update norms and their shares."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One series of a run: which metric it is made of, its family, group and phase.

    Attributes:
        metric: The metric of the index that people look up.
        family: One of `FAMILIES`.
        group: Parameter group, or "" for the whole model.
        phase: ``before`` or ``after``, as in `schema.Metric`.
        label: What the feature is, in words; for a logarithm the quantity without it.
    """

    metric: str
    family: str
    group: str
    phase: str
    label: str


@dataclass(frozen=True)
class Features:
    """Features over a stretch of rows.

    Attributes:
        items: What each row of `values` is.
        values: Finite values of shape (features, rows).
        start: Row of the run that the first of them is.
    """

    items: tuple[Feature, ...]
    values: Floats
    start: int = 0

    @cached_property
    def is_after(self) -> Bools:
        """Whether each feature describes the update rather than the gradient."""
        return np.array([item.phase == "after" for item in self.items], dtype=bool)

    @cached_property
    def floor(self) -> Floats:
        """Smallest scale of each feature, of shape (features, 1)."""
        floors = [FLOORS[item.family] for item in self.items]
        return np.array(floors).reshape(-1, 1)


@dataclass(frozen=True, slots=True)
class Part:
    """How a feature is made: a transform of columns `top` and `bottom`."""

    item: Feature
    how: str  # log, ratio, by_lr, loss, logit, growth, mean, spread
    top: str = ""
    bottom: str = ""


def columns_of(part: Part) -> Iterator[str]:
    """Columns that a feature is made of."""
    if part.how in ("mean", "spread"):
        yield from (f"hist_{part.top}:{i}" for i in range(N_BINS))
    else:
        yield part.top
    if part.bottom:
        yield part.bottom


def parts_of(names: Sequence[str], has: frozenset[str]) -> Iterator[Part]:
    """The features of a run with these columns, `names` in order and `has` as a set."""
    split = [name.split(":") for name in names if name.startswith("group:")]
    groups = sorted({part[1] for part in split if len(part) == 3})
    if "loss" in has:
        yield Part(Feature("loss", "loss", "", "before", "loss"), "loss", "loss")
    yield from _gradients(names, groups, has)
    yield from _updates(groups, has)
    yield from _histogram_parts(has)


def _gradients(names: Sequence[str], groups: Sequence[str], has: frozenset[str]) -> Iterator[Part]:
    yield from _norms("", "grad_norm", "grad_max", "gradient", has)
    for name in (n for n in names if n.startswith("grad_norm_p")):
        yield Part(Feature(name, "gradient", "", "before", name), "log", name)
    for group in groups:
        yield from _norms(group, "grad_norm", "max_abs", "gradient", has)
        name, norm = f"group:{group}:sign_flip", f"group:{group}:grad_norm"
        if name in has:
            item = Feature(name, "sign", group, "before", name)
            yield Part(item, "logit", name, norm if norm in has else "")


def _updates(groups: Sequence[str], has: frozenset[str]) -> Iterator[Part]:
    family = "update_lr" if "lr" in has else "update"
    for group in ("", *groups):
        yield from _norms(group, "update_norm", "update_max", family, has)
        name = f"group:{group}:param_norm" if group else "param_norm"
        if name in has:
            item = Feature(name, "parameter", group, "after", f"growth of {name}")
            yield Part(item, "growth", name, "lr" if "lr" in has else "")


def _norms(group: str, norm: str, peak: str, family: str, has: frozenset[str]) -> Iterator[Part]:
    """A norm by itself, over the learning rate, over the whole model's, and the peak over it."""
    prefix = f"group:{group}:" if group else ""
    metric, phase = prefix + norm, "before" if family == "gradient" else "after"
    if metric not in has:
        return
    by_lr = family == "update_lr"
    label = f"{metric} / lr" if by_lr else metric
    yield Part(
        Feature(metric, family, group, phase, label), "by_lr" if by_lr else "log", metric,
        "lr" if by_lr else "",
    )  # fmt: skip
    if group and norm in has:
        item = Feature(metric, "composition", group, phase, f"{metric} / {norm}")
        yield Part(item, "share", metric, norm)
    if prefix + peak in has:
        item = Feature(prefix + peak, "peak", group, phase, f"{prefix}{peak} / {metric}")
        yield Part(item, "ratio", prefix + peak, metric)


def _histogram_parts(has: frozenset[str]) -> Iterator[Part]:
    rate = "lr" if "lr" in has else "update_norm"
    for kind, phase, unit in (("grad", "before", "grad_norm"), ("update", "after", rate)):
        if not all(f"hist_{kind}:{i}" in has for i in range(N_BINS)):
            continue
        for how, label in (
            ("mean", f"mean bin of hist_{kind}, less log4 {unit},"),
            ("spread", f"width of hist_{kind} in bins"),
        ):
            item = Feature(f"hist_{kind}:0", "histogram", "", phase, label)
            yield Part(item, how, kind, unit if unit in has else "")
