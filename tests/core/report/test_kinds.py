"""`report.kinds`: kinds of findings in words."""

from __future__ import annotations

from flashback_core.detectors.evidence import KINDS
from flashback_core.report import kinds


def test_unknown_kinds_are_read_aloud() -> None:
    """A kind that nobody has described is its own name in words."""
    assert kinds.kind_words("adam_step_reset") == "adam step reset"


def test_kinds_of_our_detector_have_words() -> None:
    """Every kind that the shipped detector can name is described."""
    named = {*KINDS.values(), "lr_jump", "lr_milestone", "nonfinite", "skipped_step", "skip_loop"}
    named |= {
        "loss_zero",
        "loss_jump",
        "divergence",
        "never_learns",
        "zero_gradient",
        "zero_update",
    }
    assert named <= set(kinds.KINDS)
