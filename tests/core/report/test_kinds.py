"""`report.kinds` and `report.look`: every kind that our detectors name is said in words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashback_core
import flashback_plugins
from flashback_core.detectors import evidence
from flashback_core.detectors.rules.outside import OUTSIDE, setting_kind
from flashback_core.report import kinds
from flashback_core.report.advice import commands, look_at
from flashback_core.report.look import LOOK, look_words
from flashback_core.report.model import DetectionReport, Finding

CORE = Path(flashback_core.__file__).parent
PLUGINS = Path(flashback_plugins.__file__).parent
FILES = [*sorted((CORE / "detectors").rglob("*.py")), *sorted(PLUGINS.glob("_lightning_*.py"))]

COMPUTED = {
    "KINDS[family]": set(evidence.KINDS.values()),
    "f'zero_{what}'": {"zero_gradient", "zero_update"},
    "str(event.get('kind', kind))": {
        "replica_divergence",
        "weights_changed",
        "state_changed",
    },
    "self.kind": {"gradients_kept", "inputs_changed", "labels_changed"},
    "_KINDS[change.what]": {"weights_changed", "state_changed"},
    "kind": {
        *(kind for _, _, kind in OUTSIDE),
        *("schedule_step", "schedule_stopped"),
        *("zero_gradient", "missing_gradient"),
        *(
            setting_kind({f"{name} of x": (not now, now)})[0]
            for name in ("requires_grad", "training", "momentum")
            for now in (True, False)
        ),
    },
}
"""Kinds that an expression in the detectors can have, by the expression as it is written."""


def expressions(path: Path) -> Iterator[ast.expr]:
    """The `kind` of every finding that is made in `path`."""
    tree = ast.parse(path.read_text("utf-8"))
    places = {"Finding": None, "certain": 1}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [a.arg for a in node.args.args]
            if "kind" in names and node.returns and "Finding" in ast.unparse(node.returns):
                places[node.name] = names.index("kind")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            at = places.get(node.func.id, -1)
            yield from (k.value for k in node.keywords if k.arg == "kind" and at != -1)
            if at is not None and 0 <= at < len(node.args):
                yield node.args[at]


def values(expression: ast.expr) -> set[str]:
    """What an expression can be."""
    if isinstance(expression, ast.Constant):
        return {str(expression.value)}
    if isinstance(expression, ast.IfExp):
        return values(expression.body) | values(expression.orelse)
    written = ast.unparse(expression)
    assert written in COMPUTED, f"say in COMPUTED which kinds {written!r} can be"
    return COMPUTED[written]


def produced() -> set[str]:
    """Every kind that our detectors can give a finding."""
    return {kind for path in FILES for e in expressions(path) for kind in values(e)}


def test_the_kinds_are_found() -> None:
    """The search sees kinds written in each of the ways that our detectors use."""
    seen = produced()
    assert {"lr_jump", "lr_milestone", "nonfinite", "consensus", "replica_divergence"} <= seen
    assert {"weights_changed", "zero_update", "update_shift", "never_learns", "freeze"} <= seen
    assert {"schedule_step", "lr_off_schedule", "optimizer_step_reset"} <= seen
    assert len(seen) > 40


@pytest.mark.parametrize("kind", sorted(produced()))
def test_every_kind_of_ours_has_words(kind: str) -> None:
    """A kind has a headline of its own, says where to look first, and gives commands."""
    assert kind in kinds.KINDS, f"describe {kind!r} in report/kinds.py"
    assert kind in LOOK, f"say in report/look.py where to look for {kind!r}"
    finding = made(kind)
    report = DetectionReport(
        status="bad", n_steps=9, first_step=0, last_step=8, findings=(finding,), source="runs/x"
    )
    assert any("flashback show runs/x --steps" in c.text for c in commands(report, finding))
    assert look_at(finding).endswith((".", "!"))


def made(kind: str, *texts: str) -> Finding:
    """A finding of a kind with evidence."""
    return Finding(
        step=5, interval=(5, 5), kind=kind, confidence=0.9, severity="bad", evidence=texts
    )


def test_unknown_kinds_are_read_aloud() -> None:
    """A kind that nobody has described is its own name in words, and gets no advice."""
    assert kinds.kind_words("adam_step_reset") == "adam step reset"
    assert look_words("qwertz") == ""
    assert look_words("Data_Poisoned") == look_words("batch_odd") != ""


@pytest.mark.parametrize(
    ("kind", "family", "times", "words"),
    [
        ("outlier", "peak", "9.5", "a single huge value appeared"),
        ("outlier", "peak", "0.11", "the largest values shrank"),
        ("outlier", "gradient", "9.5", kinds.KINDS["outlier"]),
        ("update_shift", "update_lr", "2", "the updates of the weights became larger"),
        ("gradient_shift", "gradient", "1e-07", "the gradients became smaller"),
        ("loss_shift", "loss", "3", kinds.KINDS["loss_shift"]),
    ],
)
def test_words_follow_the_evidence(kind: str, family: str, times: str, words: str) -> None:
    """Up or down is what the evidence of the finding's own family says."""
    text = (
        f"x was {times} times the median of 49 steps, at step 5: 9.0 robust deviations ({family})."
    )
    assert kinds.finding_words(made(kind, "A headline.", text)) == words


def test_a_rate_that_fell_did_not_jump() -> None:
    """The learning rate fell or jumped as its evidence has it."""
    text = "The learning rate went from 0.001 to {} at step 5, 0.5 times the value before."
    assert kinds.finding_words(made("lr_jump", text.format("1e-08"))) == "the learning rate fell"
    assert kinds.finding_words(made("lr_jump", text.format("0.1"))) == kinds.KINDS["lr_jump"]


def test_advice_follows_the_evidence() -> None:
    """Largest values that shrank are not looked for among flipped bits."""
    text = "x was {} times the median, at step 5: 9.0 robust deviations (peak)."
    assert "cuts off" in look_at(made("outlier", text.format(0.2)))
    assert "flipped bit" in look_at(made("outlier", text.format(7)))


def test_a_norm_of_the_whole_that_moved_is_told_in_place_of_the_balance() -> None:
    """Every share falls when one part makes the norm jump: that is said, and where to look."""
    shares = "In the composition family the third strongest member was 17 times its threshold."
    norm = "grad_norm (1e+34) was 2e+34 times the median: 442.0 robust deviations (gradient)."
    part = "group:head:grad_norm (3) was 2 times the median: 9.0 robust deviations (gradient)."
    found = made("balance_shift", shares, norm, part)
    assert kinds.finding_words(found) == "the gradients became larger"
    assert look_at(found) == LOOK["gradient_shift"]
    found = made("balance_shift", shares, part)
    assert kinds.finding_words(found) == kinds.KINDS["balance_shift"]
    assert look_at(found) == LOOK["balance_shift"]
