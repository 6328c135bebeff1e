"""Fitting causes: what was shown is named, what was not is named by its mechanism or unknown."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.detectors.signature import NUMBERS
from flashback_core.forensics import fitting_causes
from flashback_core.forensics.fitting_causes import Example, examples_of, fit_causes, held_out
from flashback_core.forensics.tables import LabelledRun
from flashback_core.testing import healthy_run, run_with_fault

SIGNS = {
    "nan_one": {"nonfinite", "nonfinite: one entry"},
    "stuck_in_eval": {"eval_mode"},
    "grad_noise": {"distribution_shift"},
    "data_poison_heavy": {"distribution_shift"},
}


def example(cause: str, seed: int) -> Example:
    """An example; the two statistical kinds differ in one number only."""
    numbers = np.random.default_rng(seed).normal(size=len(NUMBERS)) * 0.2
    numbers[0] += {"grad_noise": 4.0, "data_poison_heavy": -4.0}.get(cause, 0.0)
    return Example(cause=cause, seed=str(seed), signs=frozenset(SIGNS[cause]), numbers=numbers)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Example]:
    """Four kinds with three seeds each, as if runs had given them."""
    found = [example(cause, seed) for cause in SIGNS for seed in range(3)]
    monkeypatch.setattr(fitting_causes, "examples_of", lambda *_: iter(found))
    return found


def test_fitted_causes_name_what_was_shown(shown: list[Example]) -> None:
    """New runs of the same kinds are told apart, also by numbers alone."""
    model = fit_causes([], FirstBadStepDetector())
    assert model is not None
    for cause in SIGNS:
        new = example(cause, 99)
        assert model.causes(new.signs, new.numbers)[0].name == cause
    assert model.provenance["n_findings"] == len(shown)
    assert model.provenance["held_out"]["seed"]["first"] == 1.0
    assert set(model.provenance["held_out"]) == {"seed", "kind", "unknown"}


def test_a_kind_left_out_is_named_by_its_mechanism(shown: list[Example]) -> None:
    """`nan_one` was not seen, and one non-finite entry points to it."""
    assert shown
    rest = [e for e in shown if e.cause != "nan_one"]
    model = fitting_causes._model(rest)
    assert model.causes(frozenset(SIGNS["nan_one"]))[0].name == "nan_one"
    assert "nan_one" not in model.without("nan_one").probabilities(
        frozenset(SIGNS["nan_one"]), None
    )


def test_the_fit_is_the_same_each_time(shown: list[Example]) -> None:
    """No chance is in it, and the order of the runs says nothing."""
    first = fit_causes([], FirstBadStepDetector())
    shown.reverse()
    again = fit_causes([], FirstBadStepDetector())
    assert first is not None
    assert again is not None
    assert first.mixture == again.mixture
    np.testing.assert_allclose(first.weights, again.weights, atol=2e-3)


def test_examples_are_what_the_detector_finds() -> None:
    """A finding near the fault with its numbers; a healthy run and a missed fault give none."""
    facts = {"fault_kind": "nan_one", "split": "train"}
    runs = [
        LabelledRun(run_id="nan_one__s4", table=table, facts={**facts, "first_bad_step": bad})
        for table, bad in (
            (run_with_fault(first_bad_step=120, kind="nonfinite"), 120),
            (run_with_fault(first_bad_step=120, kind="nonfinite"), 90),
            (healthy_run(), -1),
        )
    ]
    (found,) = examples_of(runs, FirstBadStepDetector())
    assert (found.cause, found.seed) == ("nan_one", "4")
    assert "nonfinite" in found.signs
    assert found.numbers is not None


def test_one_kind_is_too_few() -> None:
    """Then there are no causes."""
    assert fit_causes([], FirstBadStepDetector()) is None


def test_held_out_counts(shown: list[Example]) -> None:
    """First, first three, class, and what was stated against what was right."""
    nan, eval_ = shown[0], shown[3]
    judged = [(nan, {"nan_one": 0.8}), (eval_, {"nan_one": 0.6, "stuck_in_eval": 0.3})]
    found = held_out(judged)
    assert (found["first"], found["first_three"], found["class"]) == (0.5, 1.0, 0.5)
    assert found["stated_and_right"] == [[1, 0.6, 0.0], [1, 0.8, 1.0]]
