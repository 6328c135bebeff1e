"""Attribution: which kinds of finding fit which kinds of fault.

A finding either names a cause (``lr_jump``, ``config_changed``, ``batch_repeated``) or a symptom
(``update_shift``: the updates changed their size). Only the first is an attribution; it is right if
the fault belongs to one of the families that the cause stands for.
"""

from __future__ import annotations

from flashback_core.forensics.kinds import load_kinds, load_later
from flashback_core.report.model import Finding

__all__ = ["CAUSES", "TOP", "is_attributed", "is_in_top", "is_same_family", "ranked"]

TOP = 3
"""Fault kinds of a ranking that count as named."""

_WEIGHTS = frozenset({"weight_bits", "precision", "resume", "replicas", "attention", "experts"})
_UNMOVED = frozenset({"update", "zero_gradient", "precision", "mode", "rate"})
_BROKEN_NUMBERS = frozenset({"nonfinite", "precision", "gradient_bits", "weight_bits", "labels"})

_BY_FINDINGS = {
    ("lr_jump", "lr_spike", "lr_drop", "lr_zero", "lr_shift", "lr_ramp", "lr_off_schedule",
     "update_jump"):
        frozenset({"rate", "schedule"}),
    ("state_changed", "state_lost"): frozenset({"state", "resume"}),
    ("weights_changed", "buffers_changed"): _WEIGHTS,
    ("config_changed",): frozenset({"settings", "mode", "zero_gradient", "update"}),
    ("eval_mode", "train_mode"): frozenset({"mode"}),
    ("batch_repeated", "data_replay", "no_reshuffle", "duplicate_samples"):
        frozenset({"data_order"}),
    ("labels_misaligned", "labels_changed"): frozenset({"labels", "data_poison"}),
    ("gradients_kept",): frozenset({"gradient_scale"}),
    ("gradients_capped",): frozenset({"precision"}),
    ("inputs_changed",): frozenset({"data_poison"}),
    ("update_lost", "zero_update", "zero_gradient", "missing_gradient", "freeze"): _UNMOVED,
    ("precision_lost", "skip_loop", "skipped_step"): frozenset({"precision"}),
    ("nonfinite", "non_finite", "loss_nonfinite"): _BROKEN_NUMBERS,
    ("loss_zero", "loss_frozen"): frozenset({"labels"}),
}  # fmt: skip

CAUSES = {finding: families for findings, families in _BY_FINDINGS.items() for finding in findings}
"""Families of faults that the cause named by a finding stands for."""


def is_attributed(finding: str, fault: str) -> bool | None:
    """Whether a kind of finding names the cause of a kind of fault; None where it names none."""
    families = CAUSES.get(finding)
    load_later([fault])
    kinds = load_kinds().entries
    if families is None or fault not in kinds:
        return None
    return kinds[fault].family in families


def is_same_family(kind: str, other: str) -> bool:
    """Whether two fault kinds are of one family; a kind that is not known is of none."""
    kinds = load_kinds().entries
    return kind in kinds and other in kinds and kinds[kind].family == kinds[other].family


def ranked(finding: Finding) -> tuple[str, ...]:
    """Fault kinds that a finding holds likely, the likeliest first; empty where it ranks none."""
    return tuple(cause.name for cause in finding.causes)


def is_in_top(finding: Finding, fault: str) -> bool | None:
    """Whether the kind of a fault is among the `TOP` that a finding ranks; None without ranks."""
    names = ranked(finding)
    return fault in names[:TOP] if names else None
