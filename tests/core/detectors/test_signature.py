"""The signature: signs from findings, numbers from what the metrics did."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.features import Feature
from flashback_core.detectors.signature import EXACT, NUMBERS, ROWS, numbers_of, signs_of
from flashback_core.report.model import Finding

NO_EXACT = np.full((len(EXACT), ROWS + 1), np.nan)


def finding(kind: str, text: str = "") -> Finding:
    """A finding with one sentence of evidence."""
    return Finding(
        step=3, interval=(3, 3), kind=kind, confidence=0.9, severity="bad", evidence=(text,)
    )


def numbers(z: np.ndarray, lr: np.ndarray | None = None, **exact: list[float]) -> dict[str, float]:
    """Numbers by name, of gradient features that deviate by `z`, (groups, rows)."""
    items = [
        Feature(f"group:g{i}:grad_norm", "gradient", f"g{i}", "before", "") for i in range(len(z))
    ]
    fields = NO_EXACT.copy()
    for name, values in exact.items():
        fields[EXACT.index(f"exact:{name}")] = values
    found = numbers_of(items, z, np.empty(0) if lr is None else lr, fields)
    return dict(zip(NUMBERS, found.tolist(), strict=True))


@pytest.mark.parametrize(
    ("kind", "text", "facts"),
    [
        ("weights_changed", "the update of step 3: head.weight (1 of its entries).",
         {"one entry", "head"}),
        ("weights_changed", "the update of step 3: h.0.attn.weight (64 of its entries).",
         {"one tensor", "attention"}),
        ("weights_changed", "the update of step 3: a.weight, b.weight, c.weight and 26 more.",
         {"many tensors"}),
        ("weights_changed", "the update of step 3: h.0.router.bias, h.1.router.bias.", {"router"}),
        ("state_changed", "the update of step 3: exp_avg_sq of a.weight.",
         {"one tensor", "second moment only"}),
        ("state_changed", "the update of step 3: step of a, step of b, step of c and 2 more.",
         {"many tensors", "step only"}),
        ("config_changed", "at step 3: weight_decay of group 0: 0.1 → 10.9.",
         {"weight_decay", "weight_decay up"}),
        ("config_changed", "at step 3: p of drop: 0.1 → 0.0; p of b: 0.1 → 0.0.",
         {"dropout", "dropout to zero"}),
        ("config_changed", "at step 3: eps of group 0: 1e-08 → 1e-12.", {"eps", "eps down"}),
        ("lr_jump", "went from 0.03 to 0.7 at step 3, 21.3 times the value before, and came back",
         {"far up", "came back"}),
        ("lr_off_schedule", "says 0.2: 0 times that, and 1 times until then.", {"zero"}),
        ("schedule_step", "The scheduler's own counter went from 311 to 0 at step 3.",
         {"back to the start"}),
        ("schedule_step", "The scheduler's own counter went from 163 to 344.", {"far ahead"}),
        ("nonfinite", "1 gradient entry was NaN or infinite at step 3.", {"one entry"}),
        ("zero_update", "The update of a, b was exactly zero from step 3 on.", {"several groups"}),
        ("duplicate_samples", "hold the same sample more than once (16).", {"several"}),
        ("update_shift", "In the update family …", set()),
    ],
)  # fmt: skip
def test_evidence_gives_facts(kind: str, text: str, facts: set[str]) -> None:
    """How much changed, of what, and in which direction, is read from the evidence."""
    assert signs_of([finding(kind, text)]) == {kind, *(f"{kind}: {fact}" for fact in facts)}


def test_findings_of_a_step_add_up() -> None:
    """All kinds of a step are signs."""
    assert signs_of([finding("eval_mode"), finding("outlier")]) == {"eval_mode", "outlier"}


def test_groups_may_have_any_number() -> None:
    """Twice the groups that do the same give the same numbers."""
    z = np.array([[9.0] * ROWS, [8.0] * ROWS, [0.5] * ROWS])
    assert numbers(z) == numbers(np.concatenate([z, z]))


def test_a_pulse_is_not_a_shift() -> None:
    """What passes moves the numbers of the onset only."""
    pulse = numbers(np.array([[20.0, 0.1, 0.1, 0.1]] * 3))
    shift = numbers(np.array([[20.0] * ROWS] * 3))
    now, later = "gradient before middle now", "gradient before middle later"
    assert pulse[now] == shift[now] > 10 * pulse[later]
    assert shift[later] == shift[now]
    assert pulse["gradient before share later"] == 0.0 < shift["gradient before share later"]


def test_learning_rate_and_exact_fields_tell_now_and_later() -> None:
    """A spike of the rate passes; a batch that came before may stay."""
    found = numbers(
        np.ones((1, ROWS)), np.array([1.0, np.e, 1.0, 1.0, 1.0]), batch_seen=[-1, 7, 7, 7, 7]
    )
    assert (found["lr now"], found["lr later"]) == (pytest.approx(1.0), 0.0)
    assert found["exact:batch_seen now"] == found["exact:batch_seen later"] == 1.0
    assert found["exact:labels now"] == 0.0


def test_no_row_and_no_finite_number() -> None:
    """Nothing known is nothing moved, and every number is finite."""
    assert not numbers_of([], np.empty((0, 0)), np.empty(0), NO_EXACT).any()
    found = numbers(np.full((2, ROWS), np.inf), np.array([np.nan] * 5))
    assert all(np.isfinite(v) for v in found.values())
