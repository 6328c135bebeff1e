"""Attribution: from what a finding looks like to its likely causes, with probabilities.

Three parts, all plain numbers in ``causes.json``:

* a multinomial logistic function over the causes that runs with a known fault have shown, of the
  signs and numbers of `detectors.signature`;
* *mechanisms*: which signs each cause can leave. A cause that was never shown is named where they
  are there; one that was shown counts for little where they are not;
* a share for causes that are in no list, which is what makes ``unknown`` an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.folder import read_json
from flashback_core.detectors.signature import NUMBERS
from flashback_core.errors import DetectorError
from flashback_core.report.model import MOST_CAUSES, Cause

__all__ = ["FILE", "CauseModel", "Mixture", "is_statistical", "load_causes"]

Floats = npt.NDArray[np.float64]

FILE = "causes.json"
VERSION = 1
NUMBER_WEIGHT = 0.2
"""Weight of a number beside a sign, which is 0 or 1."""
BIAS = 0.3
LEAST = 0.01
"""Probability below which a cause is not named."""
_DIGITS = 3
_STATISTICAL = frozenset({
    "loss_shift", "gradient_shift", "update_shift", "balance_shift", "outlier", "sign_shift",
    "distribution_shift", "weight_shift", "odd_batch", "divergence", "gradient_explosion",
    "never_learns", "lr_milestone", "schedule_turned",
})  # fmt: skip
"""Kinds of findings that point to no mechanism by themselves."""


def is_statistical(signs: frozenset[str]) -> bool:
    """Whether no certain rule is among the signs."""
    return signs <= _STATISTICAL


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the parts are weighed; set where no run was seen (`forensics.fitting_causes`).

    Attributes:
        temperature: What the logistic function's scores are divided by.
        even: Share of belief that all shown causes whose signs are there get alike.
        unfit: Weight of a cause that was shown and whose signs are not there.
        unseen: Weight of a cause that was never shown, whose signs are there, after a certain rule.
        unseen_statistical: The same for all such causes together, after a statistical finding.
        unknown: Weight of causes that are in no list, after a certain rule.
        unknown_statistical: The same after a statistical finding.
    """

    temperature: float = 0.5
    even: float = 0.1
    unfit: float = 0.03
    unseen: float = 0.3
    unseen_statistical: float = 0.3
    unknown: float = 0.1
    unknown_statistical: float = 0.3


def _fits(alternative: frozenset[str], signs: frozenset[str]) -> bool:
    """Whether the signs of an alternative are there, and those behind ``!`` are not."""
    return all(
        (sign[1:] not in signs) if sign[:1] == "!" else sign in signs for sign in alternative
    )


@dataclass(frozen=True, eq=False)
class CauseModel:
    """Likely causes of a finding.

    Attributes:
        kinds: Causes that runs have shown.
        signs: Signs that count.
        scale: Scale of each number, (len(NUMBERS),).
        weights: Of signs, numbers and a constant, (signs + numbers + 1, kinds).
        families: Coarse class of each cause, shown or not.
        mechanisms: Signs that each cause can leave: alternatives, of which one has to be there; a
            sign behind ``!`` must not be there.
        mixture: How the parts are weighed.
        provenance: Where it comes from, for people.
    """

    kinds: tuple[str, ...]
    signs: tuple[str, ...]
    scale: Floats
    weights: Floats
    families: Mapping[str, str]
    mechanisms: Mapping[str, tuple[frozenset[str], ...]]
    mixture: Mixture = Mixture()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same of every finding."""
        return isinstance(other, CauseModel) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # equal by its numbers, which are many

    @cached_property
    def _place(self) -> dict[str, int]:
        return {sign: i for i, sign in enumerate(self.signs)}

    def causes(self, signs: frozenset[str], numbers: Floats | None = None) -> tuple[Cause, ...]:
        """The likeliest causes, at most `MOST_CAUSES`; what is missing to 1 is unknown.

        Args:
            signs: What `signs_of` gave.
            numbers: What `numbers_of` gave; None where the statistics know nothing of the step.
        """
        found = self.probabilities(signs, numbers)
        best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MOST_CAUSES]
        return tuple(
            Cause(name=name, probability=round(p, _DIGITS), family=self.families[name])
            for name, p in best
            if p >= LEAST
        )

    def probabilities(self, signs: frozenset[str], numbers: Floats | None) -> dict[str, float]:
        """Probability of each cause; they leave a share for what is unknown."""
        return self.mixed(self.scores(signs, numbers), signs)

    def inputs(self, signs: frozenset[str], numbers: Floats | None) -> Floats:
        """What the logistic function sees, (signs + numbers + 1,)."""
        has = np.zeros(len(self.signs))
        has[[self._place[s] for s in signs if s in self._place]] = 1.0
        z = np.zeros(len(NUMBERS)) if numbers is None else numbers / self.scale
        return np.concatenate([has, NUMBER_WEIGHT * z, [BIAS]])

    def scores(self, signs: frozenset[str], numbers: Floats | None) -> Floats:
        """Score of each cause that was shown, (kinds,)."""
        return np.asarray(self.inputs(signs, numbers) @ self.weights)

    def mixed(self, scores: Floats, signs: frozenset[str]) -> dict[str, float]:
        """Probabilities from scores: causes that were shown, those that fit, and a rest."""
        by, statistical = self.mixture, is_statistical(signs)
        fit = self.fitting(signs)
        is_fit = np.array([name in fit for name in self.kinds])
        shown = _softmax(scores / by.temperature)
        if is_fit.any():
            shown = (1.0 - by.even) * shown + by.even * is_fit / is_fit.sum()
        n_likely = float(np.exp(-(shown * np.log(shown + 1e-12)).sum()))
        shown = shown * np.where(is_fit, n_likely, by.unfit)
        weights = dict(zip(self.kinds, shown.tolist(), strict=True))
        unseen = sorted(fit - set(self.kinds))
        each = by.unseen_statistical / max(len(unseen), 1) if statistical else by.unseen
        weights |= dict.fromkeys(unseen, each)
        total = sum(weights.values()) + (by.unknown_statistical if statistical else by.unknown)
        return {name: weight / total for name, weight in weights.items()}

    def fitting(self, signs: frozenset[str]) -> set[str]:
        """Causes whose mechanism leaves these signs; what is certain outweighs statistics."""
        telling = signs if is_statistical(signs) else signs - _STATISTICAL
        return {
            k for k, leaves in self.mechanisms.items() if any(_fits(a, telling) for a in leaves)
        }

    def without(self, name: str) -> CauseModel:
        """The same model, which has never heard of the cause `name`."""
        rest = {k: v for k, v in self.mechanisms.items() if k != name}
        return replace(self, mechanisms=rest)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": VERSION,
            "provenance": dict(self.provenance),
            "mixture": {name: getattr(self.mixture, name) for name in Mixture.__slots__},
            "families": dict(self.families),
            "mechanisms": {k: [sorted(a) for a in v] for k, v in self.mechanisms.items()},
            "kinds": list(self.kinds),
            "signs": list(self.signs),
            "numbers": list(NUMBERS),
            "scale": self.scale.tolist(),
            "weights": self.weights.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: object = FILE) -> CauseModel:
        """The model that `to_dict` made plain.

        Raises:
            DetectorError: If it is none, or one of another version.
        """
        try:
            model = cls(
                kinds=tuple(data["kinds"]),
                signs=tuple(data["signs"]),
                scale=np.array(data["scale"], np.float64),
                weights=np.array(data["weights"], np.float64),
                families=dict(data["families"]),
                mechanisms={
                    k: tuple(frozenset(a) for a in v) for k, v in data["mechanisms"].items()
                },
                mixture=Mixture(**data["mixture"]),
                provenance=dict(data.get("provenance", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"{where}: no causes of a detector ({error!r}); fit the detector again"
            raise DetectorError(msg) from error
        shape = (len(model.signs) + len(NUMBERS) + 1, len(model.kinds))
        if data.get("version") != VERSION or tuple(data["numbers"]) != NUMBERS:
            msg = (
                f"{where}: causes of version {data.get('version')!r}, with other numbers than this "
                f"flashback's version {VERSION}; fit the detector again"
            )
            raise DetectorError(msg)
        unclassed = {*model.kinds, *model.mechanisms} - set(model.families)
        if model.weights.shape != shape or len(model.scale) != len(NUMBERS) or unclassed:
            msg = (
                f"{where}: weights of shape {model.weights.shape}, expected {shape}, and a class "
                "for each cause; fit the detector again"
            )
            raise DetectorError(msg)
        return model

    def save(self, folder: str | Path) -> Path:
        """Write `FILE` into `folder`; return the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        parts = (f"  {json.dumps(key)}: {_lines(value)}" for key, value in self.to_dict().items())
        text = "{\n" + ",\n".join(parts) + "\n}\n"
        (folder / FILE).write_text(text, encoding="utf-8")
        return folder


def load_causes(folder: str | Path) -> CauseModel | None:
    """The causes of the detector in `folder`; None where it has none."""
    path = Path(folder) / FILE
    if not path.exists():
        return None
    return _loaded(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _loaded(path: Path, _: int) -> CauseModel:
    return CauseModel.from_dict(read_json(path), path)


def _lines(value: Any) -> str:
    """JSON with a line for each row of a list of lists, each entry of an object."""
    if isinstance(value, dict):
        parts = (f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
        return "{\n" + ",\n".join(parts) + "\n  }"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
    return json.dumps(value)


def _softmax(scores: Floats) -> Floats:
    e = np.exp(scores - scores.max(initial=-np.inf))
    return np.asarray(e / e.sum()) if len(e) else e
