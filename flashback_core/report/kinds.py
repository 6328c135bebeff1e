"""What each kind of finding looks like, in a clause."""

from __future__ import annotations

import re

from flashback_core.report.model import Finding
from flashback_core.report.text import clean

__all__ = ["DIRECTIONS", "finding_words", "kind_words", "told_kind"]

KINDS = {
    "lr_jump": "the learning rate jumped",
    "lr_spike": "the learning rate jumped",
    "lr_spike_subtle": "the learning rate rose a little",
    "lr_drop": "the learning rate dropped",
    "lr_zero": "the learning rate fell to zero",
    "lr_shift": "the learning rate changed",
    "nonfinite": "numbers that are NaN or infinite appeared",
    "nan": "numbers that are NaN appeared",
    "loss_nonfinite": "the loss became NaN or infinite",
    "loss_spike": "the loss jumped",
    "loss_shift": "the loss left its usual range",
    "loss_zero": "the loss fell to exactly zero",
    "loss_frozen": "the loss stopped changing",
    "update_shift": "the updates of the weights left their usual size",
    "odd_batch": "one batch had an unusual gradient",
    "update_jump": "all updates became larger by one factor",
    "update_zero": "a part of the model stopped being updated",
    "dead_group": "a part of the model stopped being updated",
    "gradient_shift": "the gradients left their usual size",
    "grad_shift": "the gradients left their usual size",
    "grad_spike": "the gradients jumped",
    "grad_zero": "a part of the model stopped getting gradients",
    "weights_changed": "weights changed outside the optimizer, between two steps",
    "params_changed": "weights changed outside the optimizer, between two steps",
    "outside_weights": "weights changed outside the optimizer, between two steps",
    "outside_state": "the optimizer's state changed between two steps",
    "state_changed": "the optimizer's state changed between two steps",
    "state_lost": "the optimizer's state was lost",
    "buffers_changed": "buffers of the model changed between two steps",
    "config_changed": "the configuration changed",
    "eval_mode": "a part of the model that trains was put into eval mode",
    "train_mode": "a part of the model was put into train mode",
    "freeze": "a part of the model was frozen",
    "unfreeze": "a part of the model that was still began to train",
    "replica_divergence": "copies of the model on different processes are not the same any more",
    "resume_discontinuity": "a resume did not bring everything back",
    "batch_repeat": "a batch came a second time",
    "batch_repeated": "a batch came a second time",
    "data_replay": "batches that had come before came again",
    "no_reshuffle": "the batches came again in the same order",
    "duplicate_samples": "samples are repeated inside a batch",
    "labels_misaligned": "the labels no longer belong to their inputs",
    "gradients_capped": "the largest gradients became one and the same number",
    "gradients_kept": "gradients add up from step to step",
    "labels_changed": "samples that had come before came with other labels",
    "inputs_changed": "samples that had come before came with other inputs",
    "batch_duplicates": "samples are repeated inside a batch",
    "data_shift": "the data changed",
    "poison": "the data of some batches looks poisoned",
    "poisoned_batch": "the data of a batch looks poisoned",
    "bit_flip": "a number in the weights changed by itself",
    "skip_loop": "the optimizer skips one step after another",
    "step_skipped": "the optimizer skipped a step",
    "never_learns": "the run never learnt anything",
    "gradual": "the run went wrong little by little",
    "slow_step": "steps became slow",
    "loss_jump": "the loss jumped",
    "gradient_explosion": "the gradients exploded and stayed huge",
    "missing_gradient": "weights that are to be trained got no gradient any more",
    "update_lost": "weights with a gradient did not move",
    "precision_lost": "the weights lost most of their precision",
    "divergence": "the run diverges: the loss climbs and does not come back",
    "skipped_step": "the optimizer skipped a step",
    "zero_gradient": "the gradient of a part of the model fell to exactly zero",
    "zero_update": "a part of the model stopped being updated",
    "balance_shift": "the balance between the parts of the model changed",
    "outlier": "the largest values no longer fit the others",
    "sign_shift": "the signs of the gradients changed their pattern",
    "distribution_shift": "the sizes of gradients or updates changed their distribution",
    "weight_shift": "the weights left their usual size",
    "lr_milestone": "the learning rate changed as at a milestone of a schedule",
    "lr_off_schedule": "the learning rate is not the one that its scheduler says",
    "schedule_step": "the learning-rate scheduler was stepped too often, late or set back",
    "schedule_stopped": "the learning-rate scheduler stopped",
    "schedule_bent": "the learning rate began to move faster, with no jump",
    "schedule_turned": "the learning rate began to climb",
    "optimizer_step_reset": "the optimizer's own count of steps jumped or began anew",
    "clip_dropped": "gradients are not clipped any more",
    "clip_changed": "gradients are clipped to another norm",
    "not_enough_data": "too few steps for a verdict",
    "consensus": "many metrics left their usual range together",
    "unknown": "something changed that fits no known kind",
}


DIRECTIONS = {
    "outlier": ("peak", "a single huge value appeared", "the largest values shrank"),
    "gradient_shift": ("gradient", "the gradients became larger", "the gradients became smaller"),
    "update_shift": (
        "update",
        "the updates of the weights became larger",
        "the updates of the weights became smaller",
    ),
}
"""Family whose evidence says how a kind moved, and the words for up and for down."""

_WHOLE = (("gradient_shift", "grad_norm "), ("update_shift", "update_norm "))
"""What evidence on the norm of the whole model begins with."""
_TIMES = re.compile(r"\bwas ([\d.e+-]+) times")
_RATE = re.compile(r"went from (\S+) to (\S+) at step")


def kind_words(kind: str | None) -> str:
    """What a kind of finding looks like, as a clause."""
    if not kind:
        return KINDS["unknown"]
    return KINDS.get(kind) or clean(kind.replace("_", " "))


def told_kind(finding: Finding) -> str:
    """The kind that people are told: where the whole norm moved, not the balance of its parts.

    The share of every part falls when one of them makes the whole norm jump.

    Examples:
        >>> text = "grad_norm (9.1) was 7 times the median: 99.0 robust deviations (gradient)."
        >>> told_kind(
        ...     Finding(step=3, interval=(3, 3), kind="balance_shift", confidence=0.9,
        ...             severity="bad", evidence=("In the composition family …", text))
        ... )
        'gradient_shift'
    """
    if finding.kind == "balance_shift":
        for kind, norm in _WHOLE:
            if any(text.startswith(norm) for text in finding.evidence):
                return kind
    return finding.kind


def finding_words(finding: Finding) -> str:
    """What a finding looks like, as a clause that says up or down where its evidence does.

    Examples:
        >>> text = "grad_max / grad_norm was 0.5 times the median: 9.0 robust deviations (peak)."
        >>> finding_words(
        ...     Finding(step=3, interval=(3, 3), kind="outlier", confidence=0.9, severity="bad",
        ...             evidence=(text,))
        ... )
        'the largest values shrank'
    """
    if finding.kind == "lr_jump" and _fell(finding):
        return "the learning rate fell"
    kind = told_kind(finding)
    family, up, down = DIRECTIONS.get(kind, ("", "", ""))
    moved = _moved(finding, family) if family else 1.0
    if moved == 1.0:
        return kind_words(kind)
    return up if moved > 1.0 else down


def _moved(finding: Finding, family: str) -> float:
    """How many times its usual value the family's strongest metric was; 1.0 where none says so."""
    for text in finding.evidence:
        said = _TIMES.search(text)
        if said and f"({family}" in text.rpartition(": ")[2]:
            return _float(said[1])
    return 1.0


def _fell(finding: Finding) -> bool:
    said = _RATE.search(" ".join(finding.evidence))
    return said is not None and _float(said[2]) < _float(said[1])


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0
