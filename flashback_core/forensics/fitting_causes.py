"""Fitting the causes of findings: on the findings that the detector itself makes.

What is learnt is judged where it was not seen, always on the training runs: with each seed left out
(its kinds are known from other seeds), and with each kind left out (is it then named by its
mechanism; and, with the mechanism taken away too, is it unknown). The mixture is the one with the
best log loss over the three.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.attribution import CauseModel, Mixture
from flashback_core.detectors.first_bad_step import FirstBadStepDetector, series_of
from flashback_core.detectors.signature import NUMBERS
from flashback_core.forensics.kinds import load_kinds
from flashback_core.forensics.mechanisms import MECHANISMS
from flashback_core.forensics.tables import LabelledRun
from flashback_core.report.model import MOST_CAUSES, UNKNOWN, Finding

__all__ = ["Example", "examples_of", "fit_causes", "held_out", "log_loss"]

Floats = npt.NDArray[np.float64]
Judged = tuple["Example", dict[str, float]]

NEAR = 2
"""Steps by which a finding may be off and still be of the fault."""
RIDGE = 0.03
_STEPS = 300
_SHARES = {"seed": 0.7, "kind": 0.2, "unknown": 0.1}
"""Weight of each judgement: 18 of the 61 kinds of the frozen list are never trained on."""
_GRID = {
    "temperature": (0.35, 0.5, 0.7, 1.0), "even": (0.0, 0.05, 0.1, 0.2, 0.3),
    "unfit": (0.03, 0.1, 0.3, 1.0), "unseen": (0.1, 0.2, 0.3, 0.5, 0.8),
    "unseen_statistical": (0.1, 0.3, 0.6, 1.0), "unknown": (0.03, 0.06, 0.1, 0.2),
    "unknown_statistical": (0.05, 0.1, 0.2, 0.3),
}  # fmt: skip
_ROUNDS = 3
_LEAST = 1e-3
_STATED = (0.0, 0.3, 0.5, 0.7, 0.9, 1.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A finding whose cause is known.

    Attributes:
        cause: The fault kind.
        seed: Seed of the run; runs of one seed are left out together.
        signs: As `signs_of` gives them.
        numbers: As `numbers_of` gives them, or None.
    """

    cause: str
    seed: str
    signs: frozenset[str]
    numbers: Floats | None


def examples_of(runs: Iterable[LabelledRun], detector: FirstBadStepDetector) -> Iterator[Example]:
    """What the detector finds within `NEAR` steps of each run's fault; nothing where it misses."""
    for run in runs:
        if run.first_bad_step is None:
            continue
        for _, table in series_of(run.table):
            series = detector.series((*table.names, *table.exact_names))
            series.update(table, run.table.events)
            series.finish()
            near = [f for f in series.findings() if _is_near(f, run.first_bad_step)]
            if near:
                signs, numbers = series.signature(near[0])
                seed = run.run_id.rpartition("__s")[2]
                yield Example(
                    cause=str(run.facts["fault_kind"]), seed=seed, signs=signs, numbers=numbers
                )
                break


def _is_near(finding: Finding, step: int) -> bool:
    return finding.severity == "bad" and abs(finding.step - step) <= NEAR


def fit_causes(runs: Iterable[LabelledRun], detector: FirstBadStepDetector) -> CauseModel | None:
    """Likely causes of what `detector` finds, from runs of the training split.

    Args:
        runs: Labelled runs, never of the split ``test``.
        detector: The detector, fitted.

    Returns:
        The causes; None where it finds the faults of fewer than two kinds.
    """
    known = load_kinds().entries
    examples = [e for e in examples_of(runs, detector) if e.cause in known]
    if len({e.cause for e in examples}) < 2:
        return None
    folds = _folds(examples)
    best = _best_mixture(folds)
    model = replace(_model(examples), mixture=best)
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "n_findings": len(examples),
        "n_kinds": len(model.kinds),
        "log_loss_weights": _SHARES,
        "held_out": {how: held_out(_judged(fold, how, best)) for how, fold in folds.items()},
    }
    return replace(model, provenance=facts)


# -- the logistic function -----------------------------------------------------------------------


def _model(examples: Sequence[Example]) -> CauseModel:
    """Fitted on `examples`, with the usual mixture."""
    kinds = tuple(sorted({e.cause for e in examples}))
    signs = tuple(sorted({sign for e in examples for sign in e.signs}))
    entries = load_kinds().entries
    families = {name: entries[name].family for name in sorted({*kinds, *MECHANISMS})
                if name in entries}  # fmt: skip
    empty = CauseModel(
        kinds=kinds,
        signs=signs,
        scale=_scale([e.numbers for e in examples if e.numbers is not None]),
        weights=np.zeros((0, 0)),
        families=families,
        mechanisms={name: signs for name, signs in MECHANISMS.items() if name in families},
    )
    x = np.stack([empty.inputs(e.signs, e.numbers) for e in examples])
    y = np.array([kinds.index(e.cause) for e in examples])
    return replace(empty, weights=np.round(_logistic(x, y, len(kinds)), 3))


def _scale(numbers: Sequence[Floats]) -> Floats:
    found = np.stack(numbers) if numbers else np.zeros((1, len(NUMBERS)))
    return np.asarray(np.round(np.sqrt((found**2).mean(axis=0)) + 0.1, 3))


def _logistic(x: Floats, y: npt.NDArray[np.int64], n: int) -> Floats:
    """Ridge multinomial logistic regression, each kind counting the same (Nesterov's method)."""
    target = np.eye(n)[y]
    each = 1.0 / np.bincount(y, minlength=n)[y]
    each *= len(y) / each.sum()
    rate = 1.0 / (0.5 * np.linalg.norm(x, 2) ** 2 * each.max() + RIDGE)
    w: Floats = np.zeros((x.shape[1], n))
    ahead = w
    t = 1.0
    for _ in range(_STEPS):
        scores = x @ ahead
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        new = ahead - rate * (x.T @ ((p - target) * each[:, None]) + RIDGE * ahead)
        later = (1.0 + np.sqrt(1.0 + 4.0 * t * t)) / 2.0
        ahead, w, t = new + (t - 1.0) / later * (new - w), new, later
    return w


# -- judged where it was not seen ----------------------------------------------------------------

Fold = list[tuple[Example, CauseModel, Floats]]


def _folds(examples: Sequence[Example]) -> dict[str, Fold]:
    """Each example with the scores of a model that did not see its seed, or its kind."""
    by_kind = _left_out(examples, "cause")
    hidden = [(e, model.without(e.cause), scores) for e, model, scores in by_kind]
    return {"seed": _left_out(examples, "seed"), "kind": by_kind, "unknown": hidden}


def _left_out(examples: Sequence[Example], what: str) -> Fold:
    out: Fold = []
    for value in sorted({getattr(e, what) for e in examples}):
        rest = [e for e in examples if getattr(e, what) != value]
        mine = [e for e in examples if getattr(e, what) == value]
        if rest:
            model = _model(rest)
            out += [
                (e, model, model.scores(e.signs, e.numbers)) for e in mine
                if what == "cause" or e.cause in model.kinds
            ]  # fmt: skip
    return out


def _best_mixture(folds: dict[str, Fold]) -> Mixture:
    """The mixture with the least loss, one of its numbers at a time."""
    best = Mixture()
    for _, (name, values) in itertools.product(range(_ROUNDS), _GRID.items()):
        tried = [replace(best, **{name: value}) for value in values]
        best = min(tried, key=lambda mixture: _loss(folds, mixture))
    return best


def _judged(fold: Fold, how: str, mixture: Mixture) -> list[Judged]:
    return [
        (replace(e, cause=UNKNOWN) if how == "unknown" else e,
         replace(model, mixture=mixture).mixed(scores, e.signs))
        for e, model, scores in fold
    ]  # fmt: skip


def _loss(folds: dict[str, Fold], mixture: Mixture) -> float:
    return sum(
        share * log_loss(_judged(folds[how], how, mixture))
        for how, share in _SHARES.items()
        if folds[how]
    )


def _chance(example: Example, causes: dict[str, float]) -> float:
    if example.cause == UNKNOWN:
        return 1.0 - sum(causes.values())
    return causes.get(example.cause, 0.0)


def log_loss(judged: Sequence[Judged]) -> float:
    """Mean negative logarithm of the probability of what was true."""
    return float(np.mean([-np.log(max(_chance(e, p), _LEAST)) for e, p in judged]))


def held_out(judged: Sequence[Judged]) -> dict[str, Any]:
    """How good probabilities are: log loss, first and first three right, class, calibration."""
    if not judged:
        return {"n": 0}
    ranks = [sorted(p, key=lambda name: -p[name]) for _, p in judged]
    truth = [e.cause for e, _ in judged]
    entries = load_kinds().entries
    stated = np.array([p[r[0]] for (_, p), r in zip(judged, ranks, strict=True)])
    first = np.array([r[0] == cause for r, cause in zip(ranks, truth, strict=True)])
    out: dict[str, Any] = {"n": len(judged), "log_loss": round(log_loss(judged), 3)}
    if UNKNOWN not in truth:
        three = [cause in r[:3] for r, cause in zip(ranks, truth, strict=True)]
        coarse = [_class(p) == entries[e.cause].family for e, p in judged]
        out |= {
            "first": round(float(first.mean()), 3),
            "first_three": round(float(np.mean(three)), 3),
            "class": round(float(np.mean(coarse)), 3),
            "class_unknown": round(float(np.mean([_class(p) == UNKNOWN for _, p in judged])), 3),
            "stated_and_right": _reliability(stated, first),
        }
    else:
        rest = [1.0 - sum(p.values()) for _, p in judged]
        out["unknown"] = round(float(np.mean(rest)), 3)
    return out


def _class(causes: dict[str, float]) -> str:
    """`Finding.family` of these causes."""
    entries, sums = load_kinds().entries, dict[str, float]()
    for name in sorted(causes, key=lambda n: -causes[n])[:MOST_CAUSES]:
        family = entries[name].family
        sums[family] = sums.get(family, 0.0) + causes[name]
    best = max(sums, key=lambda f: sums[f])
    return best if sums[best] > 1.0 - sum(sums.values()) else UNKNOWN


def _reliability(stated: Floats, right: npt.NDArray[np.bool_]) -> list[list[float]]:
    """By probability of the first cause: findings, what was stated, what was right."""
    out = []
    for low, high in itertools.pairwise(_STATED):
        mine = (stated >= low) & (stated < high)
        if mine.any():
            share = float(right[mine].mean())
            out.append([int(mine.sum()), round(float(stated[mine].mean()), 3), round(share, 3)])
    return out
